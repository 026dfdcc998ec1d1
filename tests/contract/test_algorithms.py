"""Reduction algorithms, line by line and check by check, over mpi and gloo: one job runs all."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from checks.report import TIMEOUT_S, expect_ended_well, expect_passed
from contract.algorithm_scenarios import CHECKS
from contract.algorithms import NAMES, lines
from doubletime.collectives.catalogue import find

SCRIPT = "contract/algorithm_job.py"
pytestmark = pytest.mark.timeout(TIMEOUT_S + 30)
JOBS = [("mpich", 3, "mpi"), ("openmpi", 2, "mpi"), ("intel", 2, "mpi"), ("mpich", 3, "gloo")]


@functools.cache
def _names(ranks: int) -> dict[tuple[str, str], list[str]]:
    names: dict[tuple[str, str], list[str]] = {}
    for line in lines(ranks):
        names.setdefault((line.algorithm, line.case.collective), []).append(line.name)
    return names


def _lines() -> Iterator[object]:
    for mpi, ranks, backend in JOBS:
        for algorithm in NAMES:
            for collective in find(algorithm).collectives:
                label = f"{mpi}-{ranks}-{backend}-{algorithm}-{collective}"
                yield pytest.param(mpi, ranks, backend, algorithm, collective, id=label)


@pytest.mark.parametrize(("mpi", "ranks", "backend", "algorithm", "collective"), list(_lines()))
def test_matches_one_process(
    mpi: str, ranks: int, backend: str, algorithm: str, collective: str
) -> None:
    expect_passed(SCRIPT, mpi, ranks, _names(ranks)[algorithm, collective], backend)


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize(("mpi", "ranks", "backend"), JOBS)
def test_beyond_the_table(mpi: str, ranks: int, backend: str, algorithm: str, check: str) -> None:
    expect_passed(SCRIPT, mpi, ranks, [f"{algorithm}:{check}"], backend)


@pytest.mark.parametrize(("mpi", "ranks", "backend"), JOBS)
def test_the_job_ends_well(mpi: str, ranks: int, backend: str) -> None:
    expect_ended_well(SCRIPT, mpi, ranks, backend)
