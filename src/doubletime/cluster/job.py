"""A job as a person asks for it, and the plan that follows from what this process and its hosts are."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from doubletime.cluster import across, allocation, implementations, launch, network, placement
from doubletime.cluster.hosts import Host
from doubletime.cluster.implementations import Implementation
from doubletime.cluster.loaded import Library
from doubletime.cluster.placement import Placement
from doubletime.cluster.ssh import Ssh
from doubletime.environment import BACKEND_VARIABLE, own_cores
from doubletime.errors import LaunchError

LAUNCHERS = ("mpi", "ssh")
# Ranks that share a core of this host, or in all where it has few: beyond, it would only swap.
_MOST_A_CORE, _MOST_ON_FEW_CORES = 16, 256


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        command: what each rank runs.
        hosts: where; None for what a batch system has allotted, else this host.
        ranks: how many; None for one per slot, or per core where this host is the only one.
        per_host: how many on each host; None where the slots decide.
        ssh: how hosts are reached; None for the batch system's way where there is one, else plain ssh.
        launcher: "mpi", "ssh" for our own, or None for what is there.
        backend: of the process group where the program names none; None for what fits.
        environment: variables for the ranks.
        bind: whether each rank is bound to cores of its own; None for on this host only.
        tag_output: whether rank and host stand before each line of output.
        log_folder: where each rank's output goes as well; None for nowhere.
    """

    command: Sequence[str]
    hosts: tuple[Host, ...] | None = None
    ranks: int | None = None
    per_host: int | None = None
    ssh: Ssh | None = None
    launcher: str | None = None
    backend: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    bind: bool | None = None
    tag_output: bool = False
    log_folder: Path | None = None


@dataclass(frozen=True)
class Prepared:
    """What a request comes to.

    Attributes:
        request: what was asked for.
        plan: what to start.
        implementation: whose launcher it is.
        placement: ranks on hosts.
        is_across: whether it is on other hosts than this one.
    """

    request: Request
    plan: launch.LaunchPlan
    implementation: Implementation
    placement: Placement
    is_across: bool


def prepare(request: Request, library: Library | None = None) -> Prepared:
    """Find hosts, launcher and interface, and plan the job.

    Args:
        request: what is asked for.
        library: the question which MPI library ranks load, where it has been asked already.

    Raises:
        LaunchError: if it cannot be started as asked.
    """
    for name, value, known in (
        ("--launcher", request.launcher, LAUNCHERS),
        ("--backend", request.backend, ("mpi", "gloo", "nccl")),
    ):
        if value is not None and value not in known:
            raise LaunchError(
                f"{name} {value!r} is none of {', '.join(known)}", f"{name} {known[0]}"
            )
    library = library or Library()
    try:
        placed, is_across, is_allotted = _place(request)
        loaded = library.name() if _needs_library(request) else None
    finally:
        library.close()
    implementation = _implementation(request, loaded, is_across=is_across)
    environment = dict(request.environment)
    if request.backend is not None:
        environment[BACKEND_VARIABLE] = request.backend
    # Who names an ssh means it, whatever their profile has set.
    overruled = across.REACHING if request.ssh is not None else ()
    user_environment = {name: value for name, value in os.environ.items() if name not in overruled}
    plan = launch.plan(
        request.command,
        placed.ranks,
        implementation,
        cores=launch.Cores(own=own_cores(), online=os.cpu_count() or 1),
        python=sys.executable,
        user_environment=user_environment,
        environment=environment,
        is_root=os.geteuid() == 0,
        bind=request.bind,
        placement=placed if is_across else None,
        ssh=_reach(request, implementation, is_allotted=is_allotted) if is_across else None,
        folder=folder(),
        interface=network.interface_to(placed.hosts) if is_across else None,
    )
    return Prepared(request, plan, implementation, placed, is_across)


def _place(request: Request) -> tuple[Placement, bool, bool]:
    """The placement, whether it leaves this host, and whether a batch system allotted its hosts."""
    allotted = allocation.from_slurm(os.environ)
    hosts = request.hosts or allotted
    if hosts is None:
        if request.per_host is not None and request.ranks is not None:
            _refuse_crowd(request.ranks)
            placed = placement.place([Host("localhost")], request.ranks, request.per_host)
        else:
            ranks = request.ranks or request.per_host or own_cores()
            _refuse_crowd(ranks)
            placed = placement.place([Host("localhost")], ranks)
        return placed, False, False
    placed = placement.place(hosts, request.ranks, request.per_host)
    is_across = len(placed.hosts) > 1 or not network.is_here(placed.hosts[0])
    names = {host.name for host in allotted or ()}
    return placed, is_across, names >= set(placed.hosts)


def _refuse_crowd(ranks: int) -> None:
    cores = own_cores()
    most = max(_MOST_ON_FEW_CORES, _MOST_A_CORE * cores)
    if ranks > most:
        raise LaunchError(
            f"-n {ranks}: {ranks} processes on the {cores} core{'s' * (cores > 1)} of this host",
            f"-n {cores}; {most} are the most",
        )


def _implementation(request: Request, library: str | None, *, is_across: bool) -> Implementation:
    if request.launcher == "ssh":
        if request.backend == "mpi":
            raise LaunchError(
                "--launcher ssh starts no MPI, and --backend mpi needs one", "--backend gloo"
            )
        return implementations.over_ssh()
    can_do_without = request.launcher is None and request.backend != "mpi" and is_across
    if can_do_without and not implementations.candidates():
        return implementations.over_ssh()
    return implementations.find(library)


def _needs_library(request: Request) -> bool:
    """Whether ranks load an MPI library through mpi4py, so that it has to be that of `mpiexec`."""
    return (
        request.launcher != "ssh"
        and request.backend in (None, "mpi")
        and request.command[0] == sys.executable
    )


def _reach(
    request: Request, implementation: Implementation, *, is_allotted: bool
) -> tuple[str, ...] | None:
    """The words before a host's name; None for Slurm's own way."""
    is_own = implementation.name == implementations.OWN
    if is_allotted and request.ssh is None and not is_own and shutil.which("srun"):
        return None
    words = (request.ssh or Ssh()).argv("host", "")
    words = words[: words.index("--")]
    program = shutil.which(words[0])
    if program is None:
        raise LaunchError(
            f"there is no {words[0]} to reach hosts with",
            "install an ssh client (apt-get install openssh-client), or --ssh-command COMMAND",
        )
    return (program, *(word for word in words[1:] if word != "-T"))


def folder() -> str:
    """This folder as the shell names it: its real path may go through a mount of this host alone."""
    named, real = os.environ.get("PWD", ""), Path.cwd()
    if named.startswith("/") and Path(named).is_dir() and Path(named).samefile(real):
        return named
    return str(real)
