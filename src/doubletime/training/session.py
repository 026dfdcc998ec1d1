"""Join the job: process group, device and threads from whatever started this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from doubletime import environment
from doubletime.cluster import allocation, network
from doubletime.errors import LauncherMismatchError, LaunchError
from doubletime.mpi import library


@dataclass(frozen=True)
class Session:
    """This process's part in the job.

    Attributes:
        rank, world_size: in the whole job; 0 of 1 for a plain `python`.
        local_rank, local_world_size: on this host.
        hosts: how many have ranks.
        device: where this rank computes.
        backend: of the process group; None for a plain `python`, which needs no group.
        threads: of this rank's computations on the CPU.
        launcher: who started the ranks; None for a plain `python`.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    hosts: int
    device: torch.device
    backend: str | None
    threads: int
    launcher: str | None

    def describe(self) -> str:
        """One line that says what `init` found and chose."""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        if self.backend is None:
            return f"1 process, no group, on {self.device}, {threads}"
        ranks = f"{self.world_size} rank{'s' if self.world_size > 1 else ''}"
        if self.hosts > 1:
            ranks += f" on {self.hosts} hosts"
        over = f"mpi ({library.describe()})" if self.backend == "mpi" else self.backend
        started = f"started by {self.launcher}" if self.launcher else "no launcher"
        device = self.device.type
        return f"{ranks} over {over}, {started}, on {device}, {threads} each"


_SOCKETS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_SLURM_PORTS = range(20000, 28000)  # below those that Linux gives to connections
_session: Session | None = None


def init(backend: str | None = None, device: str | torch.device | None = None) -> Session:
    """Join the job, or stand alone, and say nothing; `api.init` tells of arguments and errors."""
    global _session  # a process has one default group, so it has one session
    if _session is not None and (_session.backend is None or dist.is_initialized()):
        if backend not in (None, _session.backend):
            raise LauncherMismatchError(
                f"backend {backend!r} was asked for, this process has joined over "
                f"{_session.backend!r} already",
                "name the backend in the first call of init()",
            )
        return _session
    place = environment.place()
    chosen = _device(device, place)
    if dist.is_initialized():
        backend = dist.get_backend()
    elif place is not None or backend is not None:
        backend = backend or _default_backend(place, chosen)
        _make_group(backend, place)
    _session = _session_here(place, chosen, backend)
    return _session


def has_joined() -> bool:
    """Whether `init` has been called, and `leave` has not since."""
    return _session is not None


def current() -> Session:
    """The session of this process; joins the job if that was not done yet."""
    return init()


def leave() -> None:
    """Leave the job: destroy the process group. A later `init` joins again."""
    global _session
    _session = None
    if dist.is_initialized():
        dist.destroy_process_group()


def _device(asked: str | torch.device | None, place: environment.Place | None) -> torch.device:
    name = str(asked or ("cuda" if torch.cuda.is_available() else "cpu"))
    if name == "cuda":
        local_rank = (place.local_rank or 0) if place else 0
        name = f"cuda:{local_rank % torch.cuda.device_count()}"
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _default_backend(place: environment.Place | None, device: torch.device) -> str:
    told = os.environ.get(environment.BACKEND_VARIABLE)
    if told:
        return told
    # Only srun starts ranks where there is no MPI.
    is_sure = place is not None and place.speaks_mpi and place.launcher != "Slurm"
    if is_sure or (place is not None and place.speaks_mpi and library.is_available()):
        return "mpi"
    return "nccl" if device.type == "cuda" else "gloo"


def _make_group(backend: str, place: environment.Place | None) -> None:
    known = set(dist.Backend.backend_list)
    # "gloo", or one for each device: "cpu:mpi,cuda:nccl"
    if unknown := {part.rpartition(":")[2] for part in backend.lower().split(",")} - known:
        raise LaunchError(
            f"there is no backend {sorted(unknown)[0]!r}", "choose among mpi, gloo and nccl"
        )
    if "nccl" in backend and not torch.cuda.is_available():
        raise LaunchError(
            f"backend {backend!r} needs a GPU on each rank, and {socket.gethostname()} has none that "
            "torch can use",
            "--backend gloo, or mpi",
        )
    _tell_interface(place)
    if "mpi" in backend or (place is not None and not place.speaks_mpi):
        dist.init_process_group(backend)
    elif place is None:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    elif "MASTER_ADDR" in os.environ:
        dist.init_process_group(backend, rank=place.rank, world_size=place.world_size)
    else:
        store = _slurm_store(place) if place.launcher == "Slurm" else _store_through_mpi(place)
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.world_size)


def _tell_interface(place: environment.Place | None, hosts: Sequence[str] = ()) -> None:
    """Have gloo and NCCL use the interface that leads to the other hosts.

    By themselves they take what this host's name leads to, be it 127.0.1.1, or the first they see,
    be it docker0. Under `doubletime run` the rank's watch has told them already.
    """
    if place is None:
        return
    if not hosts and place.launcher == "Slurm":
        hosts = allocation.step_hosts(os.environ)
    meeting_point = os.environ.get("MASTER_ADDR")
    found = network.settings(hosts)
    if not found and meeting_point is not None:
        found = network.settings_for(meeting_point)
    os.environ.update({name: value for name, value in found.items() if name in _SOCKETS})


def _store_through_mpi(place: environment.Place) -> dist.TCPStore:
    """A store on rank 0's host, whose address the ranks agree on through MPI.

    MPI is ended at once: left running it would keep ranks from ending that have failed.
    """
    comm = library.initialize()
    is_root = place.rank == 0
    store = None
    if is_root:
        store = dist.TCPStore("0.0.0.0", 0, place.world_size, True, wait_for_workers=False)
    hosts = environment.hosts_of(comm.allgather(environment.machine()))
    # By the names that the launcher knows: their own may lead elsewhere, or be the same on all.
    known = environment.job_hosts() or hosts
    _tell_interface(place, known)
    interface = network.interface_to(known) if is_root else None
    address = interface.address if interface else hosts[0]
    host, port = comm.bcast((address, store.port) if store else None, root=0)
    library.finalize()
    if store is not None:
        return store
    host = "127.0.0.1" if len(set(hosts)) == 1 else host
    return dist.TCPStore(host, port, place.world_size, False, wait_for_workers=False)


def _slurm_store(place: environment.Place) -> dist.TCPStore:
    """A store on the step's first host, whose address and port follow from what Slurm says."""
    hosts = allocation.step_hosts(os.environ)
    port = _SLURM_PORTS[0] + allocation.step_number(os.environ) % len(_SLURM_PORTS)
    is_root = place.rank == 0
    try:
        return dist.TCPStore(
            "0.0.0.0" if is_root else hosts[0],
            port,
            place.world_size,
            is_root,
            wait_for_workers=False,
        )
    except (RuntimeError, OSError) as error:
        raise LaunchError(
            f"rank {place.rank} cannot meet the others at {hosts[0]}, port {port}: {error}",
            "set MASTER_ADDR and MASTER_PORT to a host and a free port of it before srun",
        ) from error


def _session_here(
    place: environment.Place | None, device: torch.device, backend: str | None
) -> Session:
    """Ask the ranks of this host who shares its cores, and divide them."""
    launcher = place.launcher if place else None
    if launcher is not None and os.environ.get(environment.LAUNCHER_VARIABLE) == "run":
        launcher = "doubletime run"
    if backend is None:
        return Session(0, 1, 0, 1, 1, device, None, _set_threads(1), launcher)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = (environment.machine(), sorted(os.sched_getaffinity(0)))
    everyone: list[tuple[environment.Machine, list[int]]] = [mine] * world_size
    dist.all_gather_object(everyone, mine)
    neighbours = [other for other, (host, _) in enumerate(everyone) if host == mine[0]]
    sharers = sum(1 for host, cores in everyone if host == mine[0] and set(cores) & set(mine[1]))
    threads = _set_threads(sharers)
    return Session(
        rank,
        world_size,
        neighbours.index(rank),
        len(neighbours),
        len({host for host, _ in everyone}),
        device,
        backend,
        threads,
        launcher,
    )


def _set_threads(sharers: int) -> int:
    """Divide this process's cores among the ranks that share them, unless the user has decided."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, environment.own_cores() // sharers))
    return torch.get_num_threads()
