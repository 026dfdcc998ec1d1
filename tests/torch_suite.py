"""PyTorch's own distributed suite, which ships in its wheel, on one backend.

    TEMP_DIR=$(mktemp -d) mpiexec -n 3 python tests/torch_suite.py [test name ...]

One process a rank, one process group for the whole run, as PyTorch's own MPI run is. Rank 0 prints
a line for each test: ok, skip, excluded or FAIL, how long it took and why; then the counts. A hang
is the caller's to end. BACKEND chooses another backend than mpi.
"""

from __future__ import annotations

import os
import sys
import time
import unittest
from collections import Counter
from datetime import timedelta
from pathlib import Path

BACKEND = os.environ.setdefault("BACKEND", "mpi")
os.environ.setdefault("INIT_METHOD", "env://")
# The suite forms further groups through torch's own rendezvous.
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29577")

import torch  # noqa: E402 - the variables come first
import torch.distributed as dist  # noqa: E402 - the variables come first

dist.init_process_group(BACKEND, timeout=timedelta(seconds=60))
RANK, WORLD_SIZE = dist.get_rank(), dist.get_world_size()
os.environ["RANK"], os.environ["WORLD_SIZE"] = str(RANK), str(WORLD_SIZE)

from torch.testing._internal import common_distributed  # noqa: E402

# The suite's decorators look at these sets as it is imported; torch's own MPI build lacks both.
for _feature in ("ddp", "subgroup"):
    common_distributed.DistTestCases.backend_feature[_feature].add(BACKEND)

from torch.testing._internal.common_utils import TestCase  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

EXCLUSIONS = Path(__file__).with_name("torch_suite_exclusions.txt")
_SKIP_CODES = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}


class Suite(TestCase, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
    """The suite's tests on the group that is there."""

    rank = RANK
    world_size = WORLD_SIZE

    @property
    def init_method(self) -> str:
        return "env://"


def exclusions(text: str) -> dict[str, str]:
    """The tests that cannot apply, each with its reason: lines of `name  reason`."""
    lines = (line.split(maxsplit=1) for line in text.splitlines() if line and line[0] != "#")
    return dict(tuple(line) for line in lines)  # type: ignore[misc]


def prepare() -> None:
    """What the suite expects to find."""
    distributed_test.BACKEND = BACKEND
    folder = Path(os.environ["TEMP_DIR"])
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    dist.barrier()
    distributed_test.Barrier.init()


def run(name: str) -> tuple[str, str]:
    """Run one test.

    Returns:
        Its state, "ok", "skip" or "FAIL", and why.
    """
    result = unittest.TestResult()
    try:
        unittest.TestSuite([Suite(name)]).run(result)
    except SystemExit as leaving:
        result.errors.append((Suite(name), f"SystemExit: {leaving}"))
    skips = [reason for _, reason in result.skipped]
    bad = list(result.failures)
    for test, text in result.errors:  # the suite's decorators skip by exit code
        code = text.strip().rpartition("Exit: ")[2]
        if code.isdigit() and int(code) in _SKIP_CODES:
            skips.append(_SKIP_CODES[int(code)])
        else:
            bad.append((test, text))
    if bad:
        return "FAIL", bad[0][1]
    return ("skip", skips[0]) if skips else ("ok", "")


def agree(failed: bool) -> bool:
    """Meet after a test, so that one that failed on some ranks does not spoil the next.

    Returns:
        Whether it failed on any rank.
    """
    # The suite counts its own barriers; ranks that left a test early have been at fewer.
    barrier = distributed_test.Barrier
    highest = torch.tensor([barrier.barrier_id, int(failed)])
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    barrier.barrier_id = int(highest[0])
    return bool(highest[1])


def last_line(text: str) -> str:
    """The line of a traceback that says what was wrong."""
    lines = text.strip().splitlines() or [""]
    return next((line for line in reversed(lines) if "Error" in line or "Exit" in line), lines[-1])


def main() -> None:
    """Run the suite, or the tests that are named."""
    prepare()
    excluded = exclusions(EXCLUSIONS.read_text())
    known = sorted(name for name in dir(Suite) if name.startswith("test_"))
    count: Counter[str] = Counter()
    for name in sys.argv[1:] or known:
        started = time.monotonic()
        if name in excluded and not sys.argv[1:]:
            state, why = "excluded", excluded[name]
        else:
            state, why = run(name)
        if agree(state == "FAIL") and state != "FAIL":
            state, why = "FAIL", "on another rank"
        elif state == "FAIL":
            print(f"[rank {RANK}] {name}: {last_line(why)[:200]}", file=sys.stderr, flush=True)
            if os.environ.get("VERBOSE"):
                print(why, file=sys.stderr, flush=True)
        count[state] += 1
        if RANK == 0:
            seconds = time.monotonic() - started
            print(f"{state:9s}{name}  {seconds:.2f} s  {last_line(why)[:120]}", flush=True)
    if RANK == 0:
        print(
            f"{count['ok']} passed, {count['FAIL']} failed, {count['skip']} skipped,"
            f" {count['excluded']} excluded",
            flush=True,
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
