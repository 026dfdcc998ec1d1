"""Runs every comparison in one job: mpiexec -n N python engines_job.py FOLDER [BACKEND [WORD ...]].

With words, only those whose names contain one of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch.distributed as dist

from checks.job import Record, join
from multiprocess.engines import ENGINES


def main(folder: Path, backend: str = "mpi", *words: str) -> None:
    """Run the comparisons and leave this rank's record in the folder."""
    join(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    record = Record(folder, rank)
    for name, check in ENGINES.items():
        if not words or any(word in name for word in words):
            record.run(name, lambda check=check: check(rank, world_size))
    record.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
