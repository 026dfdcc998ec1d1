"""One job of several ranks: joins the group, runs named checks, leaves a record of each.

A check is recorded before it starts and after it ends, so that one that hangs is named as well.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=40)
Check = Callable[[int, int], int | None]


def main(checks_of: Callable[[int], Mapping[str, Check]]) -> None:
    """Run the checks of this many ranks: mpiexec -n N python JOB FOLDER [BACKEND [WORD ...]].

    Each rank leaves its record in the folder. With words, only those whose names contain one of them.
    """
    folder, backend, *words = [*sys.argv[1:], "mpi"] if len(sys.argv) == 2 else sys.argv[1:]
    join(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    record = Record(Path(folder), rank)
    for name, check in checks_of(world_size).items():
        if not words or any(word in name for word in words):
            record.run(name, lambda check=check: check(rank, world_size))
    record.close()
    if dist.is_initialized():  # not so where a check that ends it has failed half-way
        dist.destroy_process_group()


def join(backend: str) -> None:
    """Make the default group; without an MPI of its own a backend is told rank and size."""
    torch.set_num_threads(1)
    if backend != "mpi":
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29571")
        os.environ.setdefault("RANK", os.environ["PMI_RANK"])
        os.environ.setdefault("WORLD_SIZE", os.environ["PMI_SIZE"])
    dist.init_process_group(backend, timeout=TIMEOUT)


class Record:
    """What one rank saw: one JSON line when a check starts and one when it ends."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file: TextIO = (folder / f"rank-{rank}.jsonl").open("w")

    def run(self, name: str, check: Callable[[], int | None]) -> None:
        """Run the check; what it returns is a digest that must agree on every rank."""
        self._write(name, "started")
        try:
            digest = check()
        except Exception:  # every kind of error is a finding, and the next check must run
            self._write(name, "failed", traceback.format_exc())
        else:
            self._write(name, "passed", digest=digest)

    def _write(self, name: str, state: str, text: str = "", digest: int | None = None) -> None:
        json.dump({"name": name, "state": state, "text": text, "digest": digest}, self._file)
        self._file.write("\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
