"""PyTorch's engines over the backend: each computes what a single process computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.report import TIMEOUT_S, expect_ended_well, expect_passed
from multiprocess.engines import ENGINES
from ranks import ROOT, run_ranks

SCRIPT = "multiprocess/engines_job.py"
pytestmark = pytest.mark.timeout(TIMEOUT_S + 30)
# An even and an odd number of ranks; on the other MPIs the smaller job.
JOBS = [("mpich", 3), ("mpich", 4), ("openmpi", 2), ("intel", 2)]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(("mpi", "ranks"), JOBS)
def test_computes_what_one_process_computes(mpi: str, ranks: int, name: str) -> None:
    expect_passed(SCRIPT, mpi, ranks, [name])


@pytest.mark.parametrize(("mpi", "ranks"), JOBS)
def test_the_job_ends_well(mpi: str, ranks: int) -> None:
    expect_ended_well(SCRIPT, mpi, ranks)


def test_hooks_and_pipelines_serve_gloo_too(tmp_path: Path) -> None:
    words = ["hooks.reduction_algorithms", "stages."]
    args = [str(tmp_path), "gloo", *words]
    run_ranks(
        ROOT / "tests" / SCRIPT, 3, env={"PYTHONPATH": str(ROOT / "tests")}, args=args, timeout=90
    ).check()
    names = {name for name in ENGINES if any(word in name for word in words)}
    for rank in range(3):
        lines = (tmp_path / f"rank-{rank}.jsonl").read_text().splitlines()
        ended = [line for line in map(json.loads, lines) if line["state"] != "started"]
        assert {line["name"] for line in ended} == names
        assert [line["text"] for line in ended if line["state"] != "passed"] == []
