"""The whole table as checks that run within a job."""

from __future__ import annotations

import functools
import zlib

from checks.job import Check
from contract.collectives import CALLS, Setting
from contract.table import Case, cases
from contract.values import difference, stains, wide

# Every rank gets the same result: then the same bits, or replicas drift apart.
ALIKE = frozenset({"all_reduce", "all_reduce_coalesced", "broadcast", "all_gather"})


def check(case: Case, rank: int, world_size: int) -> int | None:
    """Run one case; a digest of its result where all ranks must hold the same."""
    setting = Setting(case, rank, world_size)
    if case.refused:
        return refuse(setting)
    outcome = CALLS[case.collective](setting)
    for position, (actual, expected) in enumerate(outcome):
        wrong = difference(actual, expected) or stains(actual, case.layout)
        assert wrong is None, f"tensor {position}: {wrong}"
    if case.collective not in ALIKE:
        return None
    # all_gather also lists this rank's own input, which differs
    alike = outcome[:world_size] if case.collective == "all_gather" else outcome
    return zlib.crc32(b"".join(wide(actual).tobytes() for actual, _ in alike))


def refuse(setting: Setting) -> None:
    """The call must raise, and say which operation and which type."""
    case = setting.case
    try:
        CALLS[case.collective](setting)
    except (TypeError, ValueError, RuntimeError) as error:
        text = str(error)
    else:
        raise AssertionError("was not refused")
    assert case.op is not None
    assert case.op in text, f"does not name {case.op}: {text}"
    # torch itself refuses some complex reductions, and says only "complex"
    kind = "complex" if case.dtype.startswith("complex") else case.dtype
    assert kind in text, f"does not name {case.dtype}: {text}"


def checks(world_size: int) -> dict[str, Check]:
    """All cases for this many ranks."""
    return {case.name: functools.partial(check, case) for case in cases(world_size)}
