"""A tensor of more than 2**31 elements."""

from __future__ import annotations

import psutil
import pytest

from ranks import ROOT, run_ranks

NEEDED_NBYTES = 10 << 30


@pytest.mark.timeout(240)
def test_more_than_two_to_the_31_elements(mpi: str) -> None:
    available = psutil.virtual_memory().available
    if available < NEEDED_NBYTES:
        pytest.skip(f"needs {NEEDED_NBYTES >> 30} GiB of memory, {available >> 30} are free")
    job = run_ranks(
        ROOT / "tests" / "contract" / "large_job.py",
        2,
        mpi=mpi,
        timeout=200,
        env={"PYTHONPATH": str(ROOT / "tests")},
    ).check()
    assert job.stdout.count("elements are right") == 2
