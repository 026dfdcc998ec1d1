"""Runs the whole table in one job: mpiexec -n N python table_job.py FOLDER [BACKEND [WORD ...]].

With words, only the cases whose names contain one of them.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import torch.distributed as dist

from checks.job import Record, join
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


def main(folder: Path, backend: str = "mpi", *words: str) -> None:
    """Run the table and leave this rank's record in the folder."""
    join(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    record = Record(folder, rank)
    for case in cases(world_size):
        if not words or any(word in case.name for word in words):
            record.run(case.name, lambda case=case: check(case, rank, world_size))
    record.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
