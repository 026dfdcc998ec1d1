"""The table of collectives, line by line, on each MPI: one job runs it whole, and the scenarios."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from checks.report import TIMEOUT_S, expect_ended_well, expect_passed
from contract.jobs import JOBS, SCRIPT
from contract.table import DTYPES, MOVEMENTS, REDUCTIONS, cases

pytestmark = pytest.mark.timeout(TIMEOUT_S + 30)


@functools.cache
def _names(ranks: int) -> dict[tuple[str, str], list[str]]:
    names: dict[tuple[str, str], list[str]] = {}
    for case in cases(ranks):
        names.setdefault((case.collective, case.dtype), []).append(case.name)
    return names


def _lines() -> Iterator[object]:
    for mpi, ranks in JOBS:
        for collective in (*REDUCTIONS, *MOVEMENTS):
            for dtype in DTYPES:
                label = f"{mpi}-{ranks}-{collective}-{dtype}"
                yield pytest.param(mpi, ranks, collective, dtype, id=label)


@pytest.mark.parametrize(("mpi", "ranks", "collective", "dtype"), list(_lines()))
def test_matches_one_process(mpi: str, ranks: int, collective: str, dtype: str) -> None:
    expect_passed(SCRIPT, mpi, ranks, _names(ranks)[collective, dtype])


@pytest.mark.parametrize(("mpi", "ranks"), JOBS)
def test_the_job_ends_well(mpi: str, ranks: int) -> None:
    expect_ended_well(SCRIPT, mpi, ranks)
