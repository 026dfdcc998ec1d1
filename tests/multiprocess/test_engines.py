"""PyTorch's engines over the backend: each computes what a single process computes."""

from __future__ import annotations

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


def test_the_hook_serves_gloo_too(tmp_path: Path) -> None:
    args = [str(tmp_path), "gloo", "hooks.reduction_algorithms"]
    run_ranks(
        ROOT / "tests" / SCRIPT, 3, env={"PYTHONPATH": str(ROOT / "tests")}, args=args, timeout=90
    ).check()
    for rank in range(3):
        assert '"state": "passed"' in (tmp_path / f"rank-{rank}.jsonl").read_text()
