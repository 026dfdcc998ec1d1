"""What is more than one call of one collective, check by check, on each MPI."""

from __future__ import annotations

import pytest

from checks.report import TIMEOUT_S, expect_passed
from contract.jobs import JOBS, SCRIPT
from contract.scenarios import SCENARIOS

pytestmark = pytest.mark.timeout(TIMEOUT_S + 30)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize(("mpi", "ranks"), JOBS)
def test_scenario(mpi: str, ranks: int, name: str) -> None:
    expect_passed(SCRIPT, mpi, ranks, [name])
