"""Starts a job once, and tells of each of its checks how it went on every rank."""

from __future__ import annotations

import functools
import json
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ranks import ROOT, run_ranks

TIMEOUT_S = 240


@dataclass(frozen=True)
class Report:
    """What a job left.

    Attributes:
        checks: for each rank, by the check's name: its state, its text, its digest.
        ended: "" where the job ended well, else how it ended and all that it wrote.
    """

    checks: list[dict[str, dict[str, Any]]]
    ended: str

    def fault(self, name: str) -> str | None:
        """What is wrong with one check, or None."""
        lines = []
        for rank, checks in enumerate(self.checks):
            check = checks.get(name)
            if check is None:
                last = next(reversed(checks), "none")
                lines.append(f"rank {rank} never came to it; the last it began was {last}")
            elif check["state"] == "started":
                lines.append(f"rank {rank} began it and never ended it")
            elif check["state"] == "failed":
                lines.append(f"rank {rank}: {check['text']}")
        digests = {checks[name]["digest"] for checks in self.checks if name in checks}
        if not lines and len(digests) > 1:
            lines.append("ranks hold results that are not the same bits")
        return f"{name}\n" + "\n".join(lines) if lines else None


@functools.cache
def report(script: str, mpi: str, ranks: int, backend: str = "mpi") -> Report:
    """Run a job, a path below tests/; the second caller gets the first one's report."""
    with tempfile.TemporaryDirectory(prefix="checks-") as name:
        folder = Path(name)
        ended = ""
        try:
            job = run_ranks(
                ROOT / "tests" / script,
                ranks,
                mpi=mpi,
                timeout=TIMEOUT_S,
                env={"PYTHONPATH": str(ROOT / "tests"), "MASTER_PORT": str(free_port())},
                args=[name, backend],
            )
            if job.exit_code:
                ended = f"exit code {job.exit_code}\n{job.show()}"
        except AssertionError as error:
            ended = str(error)
        return Report([_read(folder / f"rank-{rank}.jsonl") for rank in range(ranks)], ended)


def expect_passed(
    script: str, mpi: str, ranks: int, names: Sequence[str], backend: str = "mpi"
) -> None:
    """Fail the running test with what went wrong in these checks of a job."""
    found = report(script, mpi, ranks, backend)
    faults = [fault for name in names if (fault := found.fault(name))]
    if faults:
        pytest.fail(f"{len(faults)} of {len(names)}\n" + "\n".join(faults[:5]), pytrace=False)


def expect_ended_well(script: str, mpi: str, ranks: int, backend: str = "mpi") -> None:
    """Fail the running test if a job did not end by itself with exit code 0."""
    if ended := report(script, mpi, ranks, backend).ended:
        pytest.fail(ended, pytrace=False)


def free_port() -> int:
    """For backends that meet at a port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _read(path: Path) -> dict[str, dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    checks = (json.loads(line) for line in lines)
    return {check["name"]: check for check in checks}
