"""The options of verbs that start ranks, alike for all: on which hosts, and how; what is known of these."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from doubletime.errors import LaunchError

if TYPE_CHECKING:
    from doubletime.cluster.hosts import Host
    from doubletime.cluster.placement import Placement
    from doubletime.cluster.ssh import Ssh

HostsOption = Annotated[
    str | None,
    typer.Option("--hosts", metavar="LIST", help="Hosts and their slots: node1:2,node[02-16]:4."),
]
HostfileOption = Annotated[
    Path | None,
    typer.Option(
        "--hostfile", metavar="FILE", help="Hosts, one a line: `node1 slots=2` or `node1:2`."
    ),
]
SshConfigOption = Annotated[
    Path | None,
    typer.Option("--ssh-config", metavar="FILE", help="Settings of ssh instead of ~/.ssh/config."),
]
SshCommandOption = Annotated[
    str | None, typer.Option("--ssh-command", metavar="COMMAND", help="A command to use like ssh.")
]
BackendOption = Annotated[
    str | None,
    typer.Option(
        "--backend", metavar="mpi|gloo|nccl", help="What dt.init() joins over by default."
    ),
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="A variable for every rank; may be repeated."),
]
MaxRestartsOption = Annotated[
    int,
    typer.Option(
        "--max-restarts",
        min=0,
        help="Start the job again when it fails, so often, on the hosts that are healthy; "
        "DOUBLETIME_RESTART tells it which time.",
    ),
]
MinHostsOption = Annotated[
    int, typer.Option("--min-hosts", min=1, help="With --max-restarts: on no fewer hosts.")
]


@dataclass(frozen=True)
class Where:
    """What these options come to.

    Attributes:
        hosts: None for what a batch system has allotted, else this host.
        ssh: how they are reached; None where nothing is said about it.
    """

    hosts: tuple[Host, ...] | None = None
    ssh: Ssh | None = None


def where(
    hosts: str | None, hostfile: Path | None, ssh_config: Path | None, ssh_command: str | None
) -> Where:
    """Read the options.

    Raises:
        LaunchError: if hosts are named twice over or wrongly, or ssh's settings are not there.
    """
    if hosts is not None and hostfile is not None:
        raise LaunchError("--hosts and --hostfile both name hosts", "leave one of them out")
    return Where(_hosts(hosts, hostfile), _ssh(ssh_command, ssh_config))


def remembered(placement: Placement) -> tuple[str, ...]:
    """What the doctor has found of these hosts, in lines worth telling before a job starts there."""
    from doubletime.collectives.places import hosts_path, profile_path

    file = hosts_path(profile_path())
    if not file.exists():  # the rest takes a moment to load
        return ()
    from doubletime.cluster.doctor.recall import recall

    return recall(file, placement.counts)


def _hosts(text: str | None, file: Path | None) -> tuple[Host, ...] | None:
    from doubletime.cluster import hosts

    if text is not None:
        return hosts.parse(text)
    return None if file is None else hosts.read_hostfile(file)


def _ssh(command: str | None, config: Path | None) -> Ssh | None:
    from doubletime.cluster.ssh import Ssh

    if command is None and config is None:
        return None
    if config is not None and not config.is_file():
        raise LaunchError(f"--ssh-config {config}: there is no such file", "--ssh-config FILE")
    try:
        words = ["ssh"] if command is None else shlex.split(command)
    except ValueError as error:
        raise LaunchError(
            f"--ssh-command {command!r}: {error}", "--ssh-command 'ssh -p 2222'"
        ) from error
    if not words:
        raise LaunchError("--ssh-command names no command", "--ssh-command 'ssh -p 2222'")
    if "/" in words[0]:
        words[0] = str(Path(words[0]).absolute())
    return Ssh(tuple(words), None if config is None else config.absolute())
