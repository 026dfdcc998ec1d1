"""--reproducible: the same bits on any number of ranks, and after a restart on others."""

import subprocess
import sys
from pathlib import Path

from ranks import run_ranks

JOB = Path(__file__).with_name("reproducible_job.py")


def _bits(done):
    return [line for line in done.stdout.splitlines() if line.count(" ") == 1 and len(line) > 64]


def test_the_bits_are_those_of_one_process(tmp_path):
    alone = subprocess.run(
        [sys.executable, JOB, tmp_path, "one", "2", "-"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    [bits] = _bits(alone)

    def run(n, name, epochs, backend):
        return _bits(run_ranks(JOB, n, args=[str(tmp_path), name, str(epochs), backend]).check())

    assert len(set(run(4, "goes on", 1, "gloo"))) == 1
    assert run(8, "goes on", 2, "mpi") == [bits] * 8
