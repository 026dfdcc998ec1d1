"""What is more than one call of one collective, check by check, on each MPI: one job runs all."""

from __future__ import annotations

import pytest

from checks.report import report
from contract.jobs import JOBS
from contract.scenarios import SCENARIOS

SCRIPT, TIMEOUT_S = "contract/scenario_job.py", 150
pytestmark = pytest.mark.timeout(TIMEOUT_S + 30)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize(("mpi", "ranks"), JOBS)
def test_scenario(mpi: str, ranks: int, name: str) -> None:
    fault = report(SCRIPT, mpi, ranks, TIMEOUT_S).fault(name)
    if fault:
        pytest.fail(fault, pytrace=False)


@pytest.mark.parametrize(("mpi", "ranks"), JOBS)
def test_the_job_ends_well(mpi: str, ranks: int) -> None:
    found = report(SCRIPT, mpi, ranks, TIMEOUT_S)
    assert not found.ended, found.ended
