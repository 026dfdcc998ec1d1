"""From "this command on so many ranks" to one exact command line: pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from doubletime.cluster.across import Job
from doubletime.cluster.beginning import FOLDER_VARIABLE
from doubletime.cluster.implementations import Dialect, Implementation
from doubletime.cluster.network import Interface
from doubletime.cluster.placement import Placement
from doubletime.environment import BIND_VARIABLE, HOSTS_VARIABLE, LAUNCHER_VARIABLE
from doubletime.errors import LaunchError

OURS = (
    LAUNCHER_VARIABLE,
    HOSTS_VARIABLE,
    BIND_VARIABLE,
    FOLDER_VARIABLE,
)  # an outer job's are not this one's
# Hydra hands to other hosts what it is told to, but never the last variable of all.
LAST_VARIABLE = "DOUBLETIME_LAST"
_RANK_MODULE = "doubletime.cluster.rank"
_HANDED_OVER = frozenset(
    (
        *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "TZ", "LANG"),
        *("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES"),
        *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    )
)
_HANDED_OVER_PREFIXES = (
    *("PYTHON", "TORCH", "PYTORCH_", "DOUBLETIME_", "LC_"),
    *("OMP_", "MKL_", "KMP_", "OPENBLAS_", "GOMP_"),
    *("CUDA_", "NVIDIA_", "HIP_", "ROCR_", "HSA_"),
    *("MASTER_", "GLOO_", "NCCL_", "RCCL_", "FI_", "UCX_", "PSM2_", "PSM3_"),
    *("OMPI_", "PRTE_", "PMIX_MCA_", "MPICH_", "MPIR_CVAR_", "I_MPI_", "MV2_", "MVP_"),
    *("HF_", "WANDB_", "TOKENIZERS_"),
)


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

    @property
    def program(self) -> tuple[str, ...]:
        """What each rank's watch runs: `script.py`, `-m module` or `-- executable`, and arguments."""
        return self.argv[self.argv.index(_RANK_MODULE) + 1 :]

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
    bind: bool | None = None,
    placement: Placement | None = None,
    ssh: Sequence[str] | None = None,
    folder: str = ".",
    interface: Interface | None = None,
) -> LaunchPlan:
    """Plan a job on this host, or across hosts where a placement is given.

    On this host each rank is bound to its share of the cores where there is one for each and all
    cores of the host are ours. (The launchers count cores from the host's first, so in a part of
    the host they would bind to cores that are not ours.) Across hosts the cores are not known
    here: each host divides its own among its ranks (`cluster.cores`).

    Args:
        command: what each rank runs.
        ranks: how many, at least 1; as many as the placement has.
        implementation: the MPI that starts them.
        cores: of this host.
        python: the interpreter that this process runs on.
        user_environment: what the user has set already; it is left as it is.
        environment: variables for the ranks, which win over everything.
        is_root: whether the user is root.
        bind: whether ranks are bound to cores; None for on this host only.
        placement: ranks on hosts.
        ssh: the words before a host's name that reach it; None for Slurm's own srun.
        folder: in which ranks on other hosts start.
        interface: by which this host reaches the others; None where that is not known.

    Raises:
        LaunchError: if there is no command, less than one rank, or a setting that the
            implementation cannot be told.
    """
    if ranks < 1:
        raise LaunchError(f"{ranks} ranks cannot be started", "-n 2")
    if not command:
        raise LaunchError("no command to start", "doubletime run -n 2 script.py")
    rank_command = _rank_command(command, python)
    own = environment or {}
    if placement is None:
        flags, wanted = _here(implementation.dialect, ranks, cores, bind=bind is not False)
    else:
        shared = {
            LAUNCHER_VARIABLE: "run",
            HOSTS_VARIABLE: ",".join(placement.hosts),
            FOLDER_VARIABLE: folder,
            **({BIND_VARIABLE: "1"} if bind else {}),
            **implementation.dialect.environment,
        }
        job = Job(
            placement=placement,
            ssh=ssh,
            in_slurm="SLURM_JOB_ID" in user_environment,
            variables=handed_over({**user_environment, **shared, **own}, also=own),
            folder=folder,
            interface=interface,
            version=implementation.version,
        )
        words = implementation.dialect.across(job)
        flags, wanted = words.flags, {**shared, **words.environment}
    if is_root:
        wanted = {**wanted, **implementation.dialect.environment_root}
    added = {
        name: value
        for name, value in wanted.items()
        if name in OURS or name not in user_environment
    }
    last = {} if placement is None else {LAST_VARIABLE: ""}
    return LaunchPlan((*implementation.command, *flags, *rank_command), {**added, **own, **last})


def handed_over(environ: Mapping[str, str], also: Iterable[str] = ()) -> tuple[str, ...]:
    """The variables that ranks on other hosts get from this process, of those that it has.

    Paths, threads, devices, and the settings of the libraries that train and communicate; nothing
    that tells of this host or login (HOSTNAME, HOME, TMPDIR, SSH_…).

    Args:
        environ: what this process has.
        also: names to hand over besides, as by `--env`.
    """
    own = set(also)
    return tuple(
        name
        for name in sorted(environ)
        if name in own or name in _HANDED_OVER or name.startswith(_HANDED_OVER_PREFIXES)
    )


def _here(
    dialect: Dialect, ranks: int, cores: Cores, *, bind: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Flags and variables of a job on this host."""
    share = cores.own // ranks
    is_bound = bind and ranks > 1 and share >= 1 and cores.own == cores.online
    values = {"ranks": str(ranks), "share": str(share)}
    flags = (*(dialect.bound if is_bound else dialect.unbound), *dialect.local)
    wanted = {
        LAUNCHER_VARIABLE: "run",
        "OMP_NUM_THREADS": str(max(1, share)),
        **dialect.environment,
        **(dialect.environment_bound if is_bound else dialect.environment_unbound),
        **(dialect.environment_crowded if share < 1 else {}),
    }
    return (
        tuple(flag.format(**values) for flag in flags),
        {name: value.format(**values) for name, value in wanted.items()},
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
