"""A task trained on every mesh has the parameters, losses and metrics of one process."""

import functools
import json
from pathlib import Path

import pytest

from ranks import ROOT, run_ranks
from training.mesh_task import reference

JOB = Path(__file__).with_name("mesh_job.py")
ENV = {"PYTHONPATH": str(ROOT / "tests")}

_reference = functools.cache(reference)


TWO = ["dp=2>fsdp=2", "fsdp=2>dp=2", "tp=2", "pp=2", "pp=2:zero_bubble"]
FOUR = [
    "fsdp=4>dp=2,tp=2",
    "dp=2,fsdp=2",
    "fsdp=2,tp=2",
    "dp=2,pp=2>dp=4",
    "dp=4>pp=2,tp=2",
]
EIGHT = ["dp=2,pp=2,tp=2"]


@pytest.mark.parametrize(
    ("n", "backend", "meshes"),
    [(2, "mpi", TWO), (2, "gloo", TWO), (4, "mpi", FOUR), (4, "gloo", FOUR), (8, "mpi", EIGHT)],
    ids=["2 mpi", "2 gloo", "4 mpi", "4 gloo", "8 mpi"],
)
def test_every_mesh_trains_as_one_process(n, backend, meshes, tmp_path):
    done = run_ranks(JOB, n, env=ENV, args=[backend, str(tmp_path), *meshes], timeout=90).check()
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == meshes
    numbers, losses, metrics = _reference()
    for _, found, found_losses, found_metrics, _ in lines:
        assert found.keys() == numbers.keys()
        for name, expected in numbers.items():
            assert found[name] == pytest.approx(expected, rel=1e-9, abs=1e-12), name
        assert found_losses == pytest.approx(losses[-len(found_losses) :], rel=1e-9)
        assert found_metrics == pytest.approx(metrics, rel=1e-6)  # accuracy is float32
