"""PyTorch's engines over the backend: each computes what a single process computes."""

from __future__ import annotations

import pytest

from checks.report import TIMEOUT_S, expect_ended_well, expect_passed
from multiprocess.engines import ENGINES

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
