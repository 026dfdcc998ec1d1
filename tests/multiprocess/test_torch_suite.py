"""PyTorch's own distributed suite on the backend: no failure, and its counts shown.

`TORCH_SUITE=all` (make torch-suite-all) runs it on Open MPI and Intel MPI too.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ranks import ROOT, run_ranks

TIMEOUT_S = 300
MPIS = ("mpich", "openmpi", "intel") if os.environ.get("TORCH_SUITE") == "all" else ("mpich",)
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped, (\d+) excluded$", re.MULTILINE)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.timeout(TIMEOUT_S + 30)
@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("mpi", MPIS)
def test_torch_suite(
    mpi: str, ranks: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    job = run_ranks(
        ROOT / "tests" / "torch_suite.py",
        ranks,
        mpi=mpi,
        timeout=TIMEOUT_S,
        env={"TEMP_DIR": str(tmp_path), "MASTER_PORT": str(_free_port())},
    ).check()
    closing = CLOSING.search(job.stdout)
    assert closing, job.show()
    record_property(
        "told", f"torch's suite, {mpi}, {ranks} ranks, {job.seconds:.0f} s: {closing[0]}"
    )
    passed, failed = int(closing[1]), int(closing[2])
    failures = [line for line in job.stdout.splitlines() if line.startswith("FAIL")]
    assert failed == 0, "\n".join(failures) + "\n" + job.stderr[-5000:]
    assert passed > 80, f"only {closing[0]}"


def test_every_exclusion_has_a_reason() -> None:
    lines = (ROOT / "tests" / "torch_suite_exclusions.txt").read_text().splitlines()
    for line in lines:
        if line and not line.startswith("#"):
            assert re.fullmatch(r"test_\w+\s+\S.*", line), line
