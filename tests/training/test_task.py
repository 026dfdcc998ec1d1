"""A name or a file becomes a task, or an error that says what is missing."""

import sys
import textwrap

import pytest
import torch

from doubletime.cli.tasks import BUILT_IN
from doubletime.errors import TaskError
from doubletime.training.builtin import BUILTIN
from doubletime.training.task import Task, load_task
from doubletime.training.tasks.images import Digits

WHOLE = """
import torch
import doubletime as dt

class Small(dt.Task):
    def model(self):
        return torch.nn.Linear(2, 2)
    def train_data(self):
        return torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)
"""


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name in ("mine", "beside"):
            del sys.modules[name]


def _load(tmp_path, text, class_name=""):
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(text))
    return load_task(f"{path}{class_name}", BUILTIN)


def test_a_built_in_name():
    assert isinstance(load_task("digits", BUILTIN), Digits)


def test_help_names_every_built_in_task():
    assert list(BUILT_IN) == sorted(BUILTIN)
    assert {name: task.name for name, task in BUILTIN.items()} == {name: name for name in BUILT_IN}


def test_a_file_with_one_task(tmp_path):
    task = _load(tmp_path, WHOLE)
    assert (task.name, task.global_batch, task.epochs) == ("Small", 128, 1)


def test_a_file_imports_its_neighbour(tmp_path):
    (tmp_path / "beside.py").write_text(WHOLE)
    task = _load(tmp_path, "from beside import Small\nclass Mine(Small):\n    name = 'own name'\n")
    assert task.name == "own name"


def test_one_class_of_several(tmp_path):
    text = WHOLE + "class Large(Small): pass\n"
    assert _load(tmp_path, text, ":Large").name == "Large"
    with pytest.raises(TaskError, match="defines 2 tasks: Large, Small") as caught:
        _load(tmp_path, text)
    assert caught.value.remedy.endswith("mine.py:Large")


def test_a_class_that_is_not_there(tmp_path):
    with pytest.raises(TaskError, match="has no task Other") as caught:
        _load(tmp_path, WHOLE, ":Other")
    assert caught.value.remedy == "it has Small (subclasses of doubletime.Task)"


def test_a_missing_file_says_where_one_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TaskError, match=r"there is no task file absent\.py") as caught:
        load_task("absent.py", BUILTIN)
    assert caught.value.remedy == f"you are in {tmp_path}"


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(TaskError, match="'fashion-mnits' is neither a task file") as caught:
        load_task("fashion-mnits", BUILTIN)
    assert caught.value.remedy.startswith("did you mean fashion-mnist? built-in: digits, fashion-")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("x = 1\n", "defines no task"),
        ("from doubletime import Task\n", "defines no task"),
        (
            "import doubletime as dt\nclass Bare(dt.Task): pass\n",
            "has no model() and no train_data()",
        ),
        (WHOLE + "    train_data = dt.Task.train_data\n", "has no train_data()"),
        ("\n\nx = absent\n", "NameError: name 'absent' is not defined (mine.py, line 3)"),
        ("import no_such_thing\n", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("def broken(:\n", "SyntaxError: invalid syntax (mine.py, line 1)"),
        (WHOLE + "    def __init__(self): self.x = 1 / 0\n", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_describes_no_task(tmp_path, text, what):
    with pytest.raises(TaskError) as caught:
        _load(tmp_path, text)
    assert what in caught.value.what
    assert "mine.py" in caught.value.what


def test_the_defaults_train_a_classifier():
    class Plain(Task):
        pass

    outputs = torch.tensor([[4.0, 0.0], [0.0, 3.0], [2.0, 0.0]])
    targets = torch.tensor([0, 1, 1])
    task, model = Plain(), torch.nn.Identity()
    expected = -outputs.log_softmax(1)[torch.arange(3), targets].mean()
    assert torch.allclose(task.loss(model, (outputs, targets)), expected)
    metrics = task.metrics(model, (outputs, targets))
    assert float(metrics["accuracy"]) == pytest.approx(2 / 3)
    assert torch.allclose(metrics["loss"], expected)
    assert task.test_data() is None
    assert task.substitute() is None


@pytest.mark.parametrize("method", ["model", "train_data"])
def test_a_task_used_in_a_program_says_what_it_lacks(method):
    class Bare(Task):
        pass

    with pytest.raises(TaskError, match=rf"Bare does not say.*\n.*give it a {method}\(\)"):
        getattr(Bare(), method)()
