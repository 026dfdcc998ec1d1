"""What is more than one call of one collective, check by check, on each MPI: one job runs all."""

from __future__ import annotations

import pytest

from checks.report import TIMEOUT_S, expect_ended_well, expect_passed
from contract.jobs import JOBS
from contract.scenarios import SCENARIOS

SCRIPT = "contract/scenario_job.py"
pytestmark = pytest.mark.timeout(TIMEOUT_S + 30)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize(("mpi", "ranks"), JOBS)
def test_scenario(mpi: str, ranks: int, name: str) -> None:
    expect_passed(SCRIPT, mpi, ranks, [name])


@pytest.mark.parametrize(("mpi", "ranks"), JOBS)
def test_the_job_ends_well(mpi: str, ranks: int) -> None:
    expect_ended_well(SCRIPT, mpi, ranks)
