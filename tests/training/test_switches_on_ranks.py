"""Each switch does on many ranks what a loop in plain torch does over whole batches."""

from pathlib import Path

import pytest

from ranks import run_ranks

TIMEOUT_S = 180  # two ranks compile a model, maybe beside other tests


@pytest.mark.timeout(TIMEOUT_S + 30)
@pytest.mark.parametrize(("backend", "n"), [("mpi", 2), ("gloo", 3)])
def test_switches_compute_what_whole_batches_would(backend, n):
    done = run_ranks(
        Path(__file__).with_name("switches_job.py"), n, args=[backend], timeout=TIMEOUT_S
    ).check()
    assert "all switches checked" in done.stdout
