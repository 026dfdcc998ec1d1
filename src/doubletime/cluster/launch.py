"""From "this command on so many ranks" to one exact command line: pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from doubletime.cluster.implementations import Implementation
from doubletime.environment import LAUNCHER_VARIABLE
from doubletime.errors import LaunchError

_RANK_MODULE = "doubletime.cluster.rank"


@dataclass(frozen=True)
class Cores:
    """The cores (hardware threads) of this host.

    Attributes:
        own: how many this process may use.
        online: how many the host has.
    """

    own: int
    online: int


@dataclass(frozen=True)
class LaunchPlan:
    """What to start, and what it finds in its environment besides what this process has.

    Attributes:
        argv: the command line.
        environment: variables to add or replace.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]

    def shell(self) -> str:
        """The same as one line that a shell runs."""
        if not self.environment:
            return shlex.join(self.argv)
        return shlex.join(["env", *(f"{k}={v}" for k, v in self.environment.items()), *self.argv])


def plan(
    command: Sequence[str],
    ranks: int,
    implementation: Implementation,
    *,
    cores: Cores,
    python: str,
    user_environment: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
    is_root: bool = False,
    bind: bool = True,
) -> LaunchPlan:
    """Plan a job on this host.

    Each rank is bound to its share of the cores where there is one for each and all cores of the
    host are ours. (The launchers count cores from the host's first, so in a part of the host they
    would bind to cores that are not ours.)

    Args:
        command: what each rank runs.
        ranks: how many, at least 1.
        implementation: the MPI that starts them.
        cores: of this host.
        python: the interpreter that this process runs on.
        user_environment: what the user has set already; it is left as it is.
        environment: variables for the ranks, which win over everything.
        is_root: whether the user is root.
        bind: whether ranks may be bound to cores.

    Raises:
        LaunchError: if there is no command, or less than one rank.
    """
    if ranks < 1:
        raise LaunchError(f"{ranks} ranks cannot be started", "-n 2")
    if not command:
        raise LaunchError("no command to start", "doubletime run -n 2 script.py")
    dialect = implementation.dialect
    share = cores.own // ranks
    is_bound = bind and ranks > 1 and share >= 1 and cores.own == cores.online
    values = {"ranks": str(ranks), "share": str(share)}

    flags = (*dialect.local, *(dialect.bound if is_bound else dialect.unbound))
    wanted = {
        LAUNCHER_VARIABLE: "run",
        "OMP_NUM_THREADS": str(max(1, share)),
        **dialect.environment,
        **(dialect.environment_bound if is_bound else dialect.environment_unbound),
        **(dialect.environment_crowded if share < 1 else {}),
        **(dialect.environment_root if is_root else {}),
    }
    added = {
        name: value.format(**values)
        for name, value in wanted.items()
        if name == LAUNCHER_VARIABLE or name not in user_environment
    }
    return LaunchPlan(
        (
            str(implementation.mpiexec),
            *(flag.format(**values) for flag in flags),
            *("-n", str(ranks)),
            *_rank_command(command, python),
        ),
        {**added, **(environment or {})},
    )


def _rank_command(command: Sequence[str], python: str) -> list[str]:
    """Each rank runs its command under a watch that tells how it ended (`cluster.rank`)."""
    watched = [python, "-m", _RANK_MODULE]
    program, *rest = command
    while program == python and rest and rest[0] == "-u":
        rest = rest[1:]  # the watch writes line by line, which is as live and does not tear lines
    if program == python and rest and (rest[0] == "-m" or not rest[0].startswith("-")):
        return [*watched, *rest]
    return [*watched, "--", *command]
