"""Task: what to train, in one class; and how a name or a file becomes one."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from doubletime.errors import TaskError

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

Data = Dataset[Any] | tuple[Tensor, ...]


class Task:
    """What to train. A subclass must have `model` and `train_data`; the rest has defaults.

    The defaults train a classifier: batches `(inputs, targets)`, cross-entropy, accuracy, SGD.

    Attributes:
        name: how runs of it are called; the class's name by default.
        global_batch: samples per step, over all ranks together.
        epochs: passes over the training data.
        seed: of the initial parameters and of the order of the samples.
        noun: what samples are called in figures, such as "images".
        num_workers: processes per rank that load a dataset which does not lie in memory.
    """

    name: str = ""
    global_batch: int = 128
    epochs: int = 1
    seed: int = 0
    noun: str = "samples"
    num_workers: int = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give each subclass a name of its own."""
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def prepare(self) -> None:
        """Fetch what the data needs; called once per host, before any rank asks for data.

        Raises:
            DataError: if the data cannot be had; then `substitute` is asked.
        """

    def substitute(self) -> Task | None:
        """What to train instead where `prepare` raised a DataError; None to give up."""
        return None

    def model(self) -> nn.Module:
        """A fresh model, its parameters drawn from torch's default generator."""
        raise self._without("model() that returns an nn.Module")

    def train_data(self) -> Data:
        """A map-style dataset, or a tuple of tensors with one row per sample."""
        raise self._without("train_data() that returns a dataset or a tuple of tensors")

    def _without(self, what: str) -> TaskError:
        return TaskError(
            f"{type(self).__name__} does not say what to train, or on what", f"give it a {what}"
        )

    def test_data(self) -> Data | None:
        """Like `train_data`, for evaluation after each epoch; None for no evaluation."""
        return None

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss to descend: the mean over the batch's samples, a 0-dim tensor."""
        inputs, targets = batch
        return nn.functional.cross_entropy(model(inputs), targets)

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor | float]:
        """What to report of an evaluated batch: each the mean over the batch's samples."""
        inputs, targets = batch
        outputs = model(inputs)
        return {
            "loss": nn.functional.cross_entropy(outputs, targets),
            "accuracy": (outputs.argmax(dim=-1) == targets).float().mean(),
        }

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer over the model's parameters."""
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    def tensor_parallel_plan(self, model: nn.Module) -> Mapping[str, ParallelStyle] | None:
        """How ranks along `tp` divide the model's layers, by their names; None: it is derived.

        Names and styles are as `torch.distributed.tensor.parallel.parallelize_module` takes them;
        * in a name stands for any letters.
        """
        del model
        return None

    def lr_schedule(
        self, optimizer: torch.optim.Optimizer, steps: int
    ) -> torch.optim.lr_scheduler.LRScheduler | None:
        """The learning rate over the run's `steps`, stepped after each; None: constant."""
        del optimizer, steps
        return None


def load_task(spec: str, builtin: Mapping[str, type[Task]]) -> Task:
    """The task that `spec` names.

    Args:
        spec: a file `task.py`, one of its classes `task.py:Name`, or a name in `builtin`.
        builtin: the tasks that need no file, by name.

    Raises:
        TaskError: if there is no such task, or it lacks what a task must have.
    """
    if spec in builtin:
        return builtin[spec]()
    path_text, _, class_name = spec.partition(":")
    path = Path(path_text)
    if path.suffix != ".py":
        near = difflib.get_close_matches(spec, builtin, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise TaskError(
            f"{spec!r} is neither a task file nor a built-in task",
            f"{guess}built-in: {', '.join(sorted(builtin))}; or a file that ends in .py",
        )
    if not path.is_file():
        raise TaskError(f"there is no task file {path}", f"you are in {Path.cwd()}")
    task_class = _choose(path, _tasks_of(_import_file(path)), class_name)
    _check(path, task_class)
    try:
        return task_class()
    except Exception as error:
        raise TaskError(f"{task_class.__name__}() failed: {_where(error, path)}") from error


def _import_file(path: Path) -> ModuleType:
    """Import the file as a script's neighbours would see it: its folder first in sys.path."""
    path = path.resolve()
    name = path.stem if path.stem not in sys.modules else f"_doubletime_task_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise TaskError(f"{path} cannot be imported", "give the file the suffix .py")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # so that workers and pickle find its classes
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise TaskError(f"{path.name} cannot be imported: {_where(error, path)}") from error
    return module


def _where(error: Exception, path: Path) -> str:
    """`NameError: name 'x' is not defined (task.py, line 3)`: the last line in the user's file."""
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return said  # already names file and line
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).name == path.name]
    return f"{said} ({path.name}, line {lines[-1]})" if lines else said


def _tasks_of(module: ModuleType) -> dict[str, type[Task]]:
    """The Task subclasses that the module itself defines, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, Task)
        and value.__module__ == module.__name__
    }


def _choose(path: Path, tasks: dict[str, type[Task]], class_name: str) -> type[Task]:
    found = ", ".join(sorted(tasks))
    if class_name:
        if class_name not in tasks:
            has = f"it has {found}" if tasks else "it has none"
            raise TaskError(
                f"{path} has no task {class_name}", f"{has} (subclasses of doubletime.Task)"
            )
        return tasks[class_name]
    if not tasks:
        raise TaskError(
            f"{path} defines no task",
            "write `class MyTask(doubletime.Task)` with model() and train_data()",
        )
    if len(tasks) > 1:
        raise TaskError(
            f"{path} defines {len(tasks)} tasks: {found}", f"say which: {path}:{min(tasks)}"
        )
    return next(iter(tasks.values()))


def _check(path: Path, task: type[Task]) -> None:
    """A task must say what to train, and on what.

    Raises:
        TaskError: if a method or a sensible number is missing.
    """
    missing = [
        f"{name}()"
        for name in ("model", "train_data")
        if getattr(task, name) is getattr(Task, name)
    ]
    if missing:
        raise TaskError(
            f"{task.__name__} in {path} has no {' and no '.join(missing)}",
            "model() returns an nn.Module; train_data() a dataset or a tuple of tensors",
        )
