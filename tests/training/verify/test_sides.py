"""Tasks that are right are found equal on ranks; of the others, each fault is found by its name.

One process's side is computed here, for all tasks; one job of ranks then compares all.
"""

import json
import sys
from pathlib import Path

import pytest

from doubletime.training import session
from doubletime.training.recipe import Recipe
from doubletime.training.verify import sides
from ranks import run_ranks

sys.path.insert(0, str(Path(__file__).parent))
import tasks_to_verify

FOLDER = Path(__file__).parent
STEPS = 4  # the fourth batch is the last of its epoch, and smaller

COMPARES = """
import json, sys
from dataclasses import asdict
from pathlib import Path
backend, names, steps, folder, tasks, *meshes = sys.argv[1:]
sys.path.insert(0, tasks)
import tasks_to_verify
from doubletime.training import session
from doubletime.training.recipe import Recipe
from doubletime.training.verify import sides
session.init(backend)
found = {}
for mesh in meshes or [None]:
    for name in names.split(","):
        task = getattr(tasks_to_verify, name)()
        recipe = Recipe.of(task, mesh=mesh)
        verdict = sides.against(task, recipe, int(steps), Path(folder, name), None)
        if verdict is not None:
            found[f"{name} {mesh}" if mesh else name] = asdict(verdict)
session.leave()
if found:
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One process's records of all tasks, to be compared with those of 2 ranks."""
    made = tmp_path_factory.mktemp("records")
    for kind in (*tasks_to_verify.EQUAL, *tasks_to_verify.FAULTS):
        task = kind()
        (made / kind.__name__).mkdir()
        sides.record(task, Recipe.of(task), STEPS, 2, made / kind.__name__)
    session.leave()
    return made


def _compare(folder, kinds, ranks, backend, *meshes):
    names = ",".join(kind.__name__ for kind in kinds)
    args = [backend, names, str(STEPS), str(folder), str(FOLDER), *meshes]
    done = run_ranks(COMPARES, ranks, args=args).check()
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def verdicts(folder):
    return _compare(folder, (*tasks_to_verify.EQUAL, *tasks_to_verify.FAULTS), 2, "mpi")


@pytest.mark.parametrize("kind", tasks_to_verify.FAULTS, ids=lambda kind: kind.__name__)
def test_a_fault_is_found_by_its_name(verdicts, kind):
    verdict = verdicts[kind.__name__]
    name, evidence = tasks_to_verify.FAULTS[kind]
    assert not verdict["is_equal"]
    assert [verdict["causes"][0]["name"], evidence in verdict["causes"][0]["what"]] == [name, True]
    assert verdict["causes"][0]["remedy"]


def _check_equal(verdict):
    assert verdict["is_equal"], verdict["causes"]
    assert len(verdict["rows"]) == STEPS
    if verdict["task"] != "FloatOnly":
        assert verdict["double_distance"] < 1e-12
        assert verdict["judged_in"] == "float64"
    assert verdict["distance"] < 1e-4


@pytest.mark.parametrize("kind", tasks_to_verify.EQUAL, ids=lambda kind: kind.__name__)
def test_a_task_that_is_right_is_found_equal(verdicts, kind):
    _check_equal(verdicts[kind.__name__])


def test_on_meshes_of_four_ranks_over_gloo_too(folder):
    meshes = ["dp=4", "dp=2,fsdp=2"]
    verdicts = _compare(folder, tasks_to_verify.EQUAL, 4, "gloo", *meshes)
    assert len(verdicts) == len(meshes) * len(tasks_to_verify.EQUAL)
    for name, verdict in verdicts.items():
        _check_equal(verdict)
        assert name.endswith(verdict["mesh"])


def test_on_hybrids_of_stages_and_tensors(folder):
    kinds, meshes = (tasks_to_verify.Right, tasks_to_verify.Dropout), ("dp=2,pp=2", "dp=2,tp=2")
    verdicts = _compare(folder, kinds, 4, "mpi", *meshes)
    assert len(verdicts) == len(meshes) * len(kinds)
    for verdict in verdicts.values():
        _check_equal(verdict)
