"""The `torch.backends` entry point: teaches torch.distributed the `mpi` backend.

`import torch` calls `autoload`, which loads neither mpi4py nor an MPI library: it puts four functions in
the place of torch's own, each of which does its work only for the `mpi` backend. At the end of a process it
waits for gloo's threads.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import itertools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.distributed as dist

    from doubletime.mpi.process_group import ProcessGroupMPI

# Names the reduction algorithm that the mpi backend's own all_reduce takes, `auto` or one of the catalogue.
ALL_REDUCE_VARIABLE = "DOUBLETIME_ALLREDUCE"


@dataclass(frozen=True)
class Creation:
    """What torch is told of a group that it is creating; `ProcessGroupMPI.create` hears only the ranks."""

    group_name: str
    backend: str
    timeout: timedelta
    store: Any
    rank: int
    world_size: int


_creating: list[Creation] = []


class _Factory:
    """Stands for the class `ProcessGroupMPI` where torch creates groups."""

    @staticmethod
    def create(ranks: Sequence[int]) -> ProcessGroupMPI:
        """A group of these world ranks; all ranks if the list is empty. Collective over them."""
        return _create(_creating[-1], ranks)


def autoload() -> None:
    """Called by `import torch`; safe to call again."""
    import torch.distributed as dist

    from doubletime import gloo_threads

    _end_with_parent()
    if not dist.is_available():
        return
    atexit.register(gloo_threads.await_idle)
    from torch.distributed import distributed_c10d as c10d

    if hasattr(c10d, "ProcessGroupMPI"):
        return  # loaded already, or a torch that was built with MPI of its own
    c10d.ProcessGroupMPI = _Factory  # type: ignore[misc, assignment]
    c10d._MPI_AVAILABLE = True
    _replace("is_mpi_available", lambda _: _is_mpi_available)
    _replace("init_process_group", _around_init)
    _replace("_new_process_group_helper", _around_creation)
    _replace("monitored_barrier", _around_monitored_barrier)


def _replace(name: str, around: Callable[[Any], Any]) -> None:
    """Put another function in the place of torch's, wherever torch has imported it to."""
    import torch.distributed as dist
    from torch.distributed import device_mesh, distributed_c10d

    original = getattr(distributed_c10d, name)
    replacement = functools.wraps(original)(around(original))
    for module in (distributed_c10d, dist, device_mesh):
        if getattr(module, name, None) is original:
            setattr(module, name, replacement)


def _is_mpi_available() -> bool:
    """Check if the MPI backend is available: whether an MPI library can be loaded here."""
    from doubletime.mpi import library

    return library.is_available()


def _names_mpi(backend: Any) -> bool:
    return "mpi" in str(backend or "").lower().replace(":", ",").split(",")


def _around_init(original: Any) -> Any:
    signature = inspect.signature(original)

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        backend = given.get("backend")
        if not _names_mpi(backend):
            original(*args, **kwargs)
            return
        from torch.distributed import distributed_c10d as c10d

        from doubletime.mpi import ending, job, library

        library.load()  # its error says more than torch's
        timeout = given.get("timeout") or c10d._get_default_timeout(c10d.Backend("mpi"))
        joined = job.join(timeout.total_seconds())
        _refuse_contradiction(given, joined.rank, joined.world_size)
        given.pop("rank", None)
        given.pop("world_size", None)
        if str(backend).lower() != "mpi":
            given["rank"], given["world_size"] = joined.rank, joined.world_size
            if given.get("store") is None:
                given["store"] = _store(joined, timeout)
        hook_before = sys.excepthook
        original(**given)
        ending.install(hook_before)

    return init_process_group


def _refuse_contradiction(given: dict[str, Any], rank: int, world_size: int) -> None:
    """`rank` and `world_size` are MPI's to say; an argument may only agree."""
    from doubletime.errors import LauncherMismatchError
    from doubletime.mpi import library

    for name, wanted, found in (
        ("rank", given.get("rank", -1), rank),
        ("world_size", given.get("world_size", -1), world_size),
    ):
        if wanted not in (-1, found):
            raise LauncherMismatchError(
                f"init_process_group({name}={wanted}), but {library.describe()} says {name} {found}",
                f"leave rank and world_size out, and start with: mpiexec -n "
                f"{given.get('world_size', -1) if given.get('world_size', -1) > 0 else world_size} "
                f"{library.command_line()}",
            )


def _store(joined: Any, timeout: timedelta) -> dist.Store:
    """A store over all ranks for the backends that need one; its address travels over MPI."""
    import torch.distributed as dist

    host = "127.0.0.1" if joined.ranks_on_host == joined.world_size else joined.host
    if joined.rank == 0:
        store = dist.TCPStore(
            host, 0, joined.world_size, is_master=True, timeout=timeout, wait_for_workers=False
        )
        joined.world.bcast((host, store.port), root=0)
        return store
    host, port = joined.world.bcast(None, root=0)
    return dist.TCPStore(host, port, joined.world_size, is_master=False, timeout=timeout)


def _is_placeholder(store: Any) -> bool:
    import torch.distributed as dist

    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return type(store) is dist.Store


_side_groups = itertools.count()


@functools.cache
def _side_store() -> dist.Store:
    """The store of groups of other backends beside a default group of `mpi`."""
    from torch.distributed import distributed_c10d as c10d

    from doubletime.mpi import job

    timeout = c10d._get_default_timeout(c10d.Backend("gloo"))
    return _store(job.join(timeout.total_seconds()), timeout)


def _around_creation(original: Any) -> Any:
    signature = inspect.signature(original)

    def _new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        import torch.distributed as dist

        given = signature.bind(*args, **kwargs).arguments
        if _is_placeholder(given["store"]) and not _names_mpi(given["backend"]):
            # torch gives the `mpi` group a store that can do nothing; a group of another backend beside
            # it needs a real one. All ranks come here, as all must call new_group.
            # A name of its own: groups are called alike again after destroy_process_group.
            given["store"] = dist.PrefixStore(f"{next(_side_groups)}/", _side_store())
            args, kwargs = (), given
        _creating.append(
            Creation(
                given["group_name"], str(given["backend"]), given["timeout"], given["store"],
                given["group_rank"], given["group_size"],
            )
        )  # fmt: skip
        try:
            return original(*args, **kwargs)
        finally:
            _creating.pop()

    return _new_process_group_helper


def _create(creation: Creation, ranks: Sequence[int]) -> ProcessGroupMPI:
    from doubletime.mpi import ending, job
    from doubletime.mpi.group import Group
    from doubletime.mpi.process_group import ProcessGroupMPI

    timeout_s = creation.timeout.total_seconds()
    joined = job.join(timeout_s)
    ending.install(sys.excepthook)  # also where the default group is of another backend
    members = list(ranks) or list(range(joined.world_size))
    group = Group(joined, members, creation.group_name, timeout_s)
    made = ProcessGroupMPI(
        group, creation.store, _other_backends(creation, group.rank, len(members))
    )
    algorithm = os.environ.get(ALL_REDUCE_VARIABLE)
    if algorithm:
        from doubletime.collectives.hook import in_place_of_native

        made.instead = in_place_of_native(made, algorithm)
    return made


def _other_backends(creation: Creation, rank: int, world_size: int) -> dict[str, Any]:
    """Groups of the other backends in `cpu:mpi,cuda:nccl`, by device type.

    A process group written in Python takes the place of torch's whole group, so it holds these itself.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    others: dict[str, Any] = {}
    for device, backend in c10d.BackendConfig(
        c10d.Backend(creation.backend)
    ).device_backend_map.items():
        if backend == "mpi":
            continue
        store = dist.PrefixStore(f"{creation.group_name}/{device}/", creation.store)
        if backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = creation.timeout
            made: Any = dist.ProcessGroupNCCL(store, rank, world_size, options)
        elif backend == "gloo":
            made = dist.ProcessGroupGloo(store, rank, world_size, timeout=creation.timeout)
        else:
            plugin = c10d.Backend._plugins[backend.upper()]
            made = plugin.creator_fn(store, rank, world_size, creation.timeout)
        outer = dist.ProcessGroup(store, rank, world_size)
        kind = c10d.Backend.backend_type_map.get(backend, dist.ProcessGroup.BackendType.CUSTOM)
        outer._set_default_backend(kind)
        outer._register_backend(torch.device(device), kind, made)
        others[device] = outer
    return others


def _around_monitored_barrier(original: Any) -> Any:
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> Any:
        from torch.distributed import distributed_c10d as c10d

        # only a group of ours was made by a module that is loaded by now
        module = sys.modules.get("doubletime.mpi.process_group")
        if module is not None and not c10d._rank_not_in_group(group):
            chosen = c10d._get_default_group() if group is None else group
            if isinstance(chosen, module.ProcessGroupMPI):
                if isinstance(timeout, (int, float)):
                    timeout = timedelta(seconds=timeout)
                return chosen.monitored_barrier(timeout, wait_all_ranks)
        return original(group, timeout, wait_all_ranks)

    return monitored_barrier


def _end_with_parent() -> None:
    """Let worker processes of a rank (a DataLoader's) end when the rank does, however it ends.

    They would otherwise look for their parent every 5 seconds only. Forked workers ask the kernel to end
    them; spawned ones, which come here by importing torch, watch their parent's sentinel.
    """
    import multiprocessing

    from doubletime import environment

    if environment.place() is None:
        return
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_exit_after, args=(parent.sentinel,), name="doubletime-parent", daemon=True
        ).start()
    os.register_at_fork(after_in_child=_ask_kernel_to_end_with_parent)


def _exit_after(sentinel: int) -> None:
    from multiprocessing.connection import wait

    wait([sentinel])
    os._exit(1)


def _ask_kernel_to_end_with_parent() -> None:
    import ctypes
    import signal

    # The kernel means the thread that forked: one that may end before the process is no parent.
    if threading.current_thread() is threading.main_thread():
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
