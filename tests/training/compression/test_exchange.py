"""Compressed gradients over ranks: what the papers say, nothing lost, the same bits on every rank."""

from __future__ import annotations

import pytest

from checks.report import TIMEOUT_S, expect_ended_well, expect_passed
from training.compression.compression_job import NAMES

SCRIPT = "training/compression/compression_job.py"
JOBS = [("mpi", 2), ("gloo", 3)]
pytestmark = pytest.mark.timeout(TIMEOUT_S + 30)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("backend", "ranks"), JOBS)
def test_over_ranks(backend: str, ranks: int, name: str) -> None:
    expect_passed(SCRIPT, "mpich", ranks, [name], backend)


@pytest.mark.parametrize(("backend", "ranks"), JOBS)
def test_the_job_ends_well(backend: str, ranks: int) -> None:
    expect_ended_well(SCRIPT, "mpich", ranks, backend)
