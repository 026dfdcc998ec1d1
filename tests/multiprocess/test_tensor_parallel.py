"""Tensor parallelism over several ranks: losses, gradients and parameters of one process."""

from __future__ import annotations

import pytest

from checks.report import TIMEOUT_S, expect_ended_well, expect_passed
from multiprocess.tensor_parallel import CHECKS

SCRIPT = "multiprocess/tensor_parallel_job.py"
JOBS = [("gloo", 2), ("mpi", 4)]
pytestmark = pytest.mark.timeout(TIMEOUT_S + 30)


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
@pytest.mark.parametrize(("backend", "ranks"), JOBS)
def test_computes_what_one_process_computes(backend: str, ranks: int, name: str) -> None:
    expect_passed(SCRIPT, "mpich", ranks, [name], backend)


@pytest.mark.parametrize(("backend", "ranks"), JOBS)
def test_the_job_ends_well(backend: str, ranks: int) -> None:
    expect_ended_well(SCRIPT, "mpich", ranks, backend)
