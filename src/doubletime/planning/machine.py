"""What figures were measured on and with: host, processor, versions, date."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import torch


@dataclass(frozen=True)
class Machine:
    """A host and its software, as they belong beside every figure.

    Attributes:
        host: its name.
        cpu: the processor's model.
        cores: how many the host has; a rank may be bound to fewer.
        threads: how many torch computes with in this process.
        mpi: the MPI library, such as "MPICH 5.0.2".
        torch, mpi4py, python, doubletime: versions.
        date: when, in UTC, ISO 8601.
    """

    host: str
    cpu: str
    cores: int
    threads: int
    mpi: str
    torch: str
    mpi4py: str
    python: str
    doubletime: str
    date: str

    def show(self) -> str:
        """One line: what a reader must know to judge a figure."""
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return (
            f"{self.cpu}, {self.cores} cores, {threads} per rank; {self.mpi}, torch {self.torch}, "
            f"Python {self.python}; {self.date[:10]}"
        )


def describe(mpi: str) -> Machine:
    """This machine, now.

    Args:
        mpi: the MPI library in use, as `mpi.library.describe()` names it.
    """
    return Machine(
        host=os.uname().nodename,
        cpu=cpu_model(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        mpi=mpi,
        torch=torch.__version__,
        mpi4py=version("mpi4py"),
        python=platform.python_version(),
        doubletime=version("doubletime"),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model name, or its architecture where the system does not tell."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
