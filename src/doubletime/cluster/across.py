"""What each launcher wants to hear about a job across hosts: pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from doubletime.cluster.network import Interface
from doubletime.cluster.placement import Placement
from doubletime.errors import LaunchError

# By which each hears how hosts are reached.
REACHING = (
    *("HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"),
    *("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent"),
)
# What supervision adds when it starts the launcher, on top of the plan.
_ADDED_LATER = ("DOUBLETIME_CONTROL",)
_FORWARDED_ALWAYS = ("OMPI_", "PRTE_", "PMIX_")  # by Open MPI itself, which complains when told to


@dataclass(frozen=True)
class Job:
    """A job across hosts.

    Attributes:
        placement: ranks on hosts.
        ssh: the words before a host's name that reach it; None for Slurm's own srun.
        in_slurm: whether this process runs within a Slurm allocation.
        variables: names of those that ranks get from this process, on every host.
        folder: in which they start.
        interface: by which this host reaches the others; None where that is not known.
        version: of the launcher.
    """

    placement: Placement
    ssh: Sequence[str] | None
    in_slurm: bool
    variables: Sequence[str]
    folder: str
    interface: Interface | None
    version: str


@dataclass(frozen=True)
class Words:
    """What to say.

    Attributes:
        flags: between the launcher and what the ranks run.
        environment: variables that it reads.
    """

    flags: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def hydra(job: Job) -> Words:
    """MPICH's and MVAPICH's."""
    reach, environment = _hydra_launcher(job, "HYDRA_LAUNCHER_EXTRA_ARGS")
    # Not -iface: the ranks hear of it too, and other hosts may name theirs otherwise.
    own = () if job.interface is None else ("-localhost", job.interface.address)
    flags = (*reach, *own, "-hosts", str(job.placement), "-bind-to", "none", *_hydra_ranks(job))
    return Words(flags, environment)


def intel(job: Job) -> Words:
    """Intel MPI's: a Hydra that counts ranks of each host alike, unless a host is named again."""
    reach, environment = _hydra_launcher(job, "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS")
    own = () if job.interface is None else ("-iface", job.interface.name)
    counts = {count for _, count in job.placement.counts}
    if len(counts) == 1:
        hosts, per_host = job.placement.hosts, counts.pop()
    else:
        hosts, per_host = job.placement.host_of, 1
    flags = (*reach, *own, "-hosts", ",".join(hosts), "-ppn", str(per_host), *_hydra_ranks(job))
    # Else it would bind ranks as it sees fit, and a batch system's tasks per host would decide.
    alone = {"I_MPI_PIN": "0", "I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "0"}
    return Words(flags, {**environment, **alone})


def open_mpi(job: Job) -> Words:
    """Open MPI's, 4 and 5: the latter hands what concerns hosts to PRRTE."""
    is_prrte = int(job.version.partition(".")[0]) >= 5
    prefix = "PRTE_MCA_" if is_prrte else "OMPI_MCA_"
    environment = {}
    if job.ssh is not None:
        agent = "plm_ssh_agent" if is_prrte else "plm_rsh_agent"
        environment[prefix + agent] = _line(job.ssh)
        if job.in_slurm:  # whose daemons and hosts it would use unasked
            environment[prefix + "plm"] = "ssh" if is_prrte else "rsh"
            environment[prefix + "ras"] = "^slurm"
    if job.interface is not None:
        setting = "prte_if_include" if is_prrte else "oob_tcp_if_include"
        environment[prefix + setting] = job.interface.network
    names = [name for name in job.variables if not name.startswith(_FORWARDED_ALWAYS)]
    if is_prrte:  # `*` takes what is there at the start; a name that is not there would be told
        names = [*(name for name in names if not name.startswith("DOUBLETIME_")), "DOUBLETIME_*"]
    else:
        names += [name for name in _ADDED_LATER if name not in names]
        environment |= dict.fromkeys(_ADDED_LATER, "")
    flags = ["--host", str(job.placement), "--map-by", "slot", "--bind-to", "none"]
    flags += ["--wdir", job.folder]
    for name in names:
        flags += ["-x", name]
    return Words((*flags, "-n", str(job.placement.ranks)), environment)


def own(job: Job) -> Words:
    """Those of `doubletime.cluster.sshexec`."""
    if job.ssh is None:
        raise LaunchError("without an MPI, hosts are reached by ssh", "--ssh-command ssh")
    return Words(("--hosts", str(job.placement), "--ssh-command", shlex.join(job.ssh), "--"))


def _hydra_launcher(job: Job, extra: str) -> tuple[tuple[str, ...], dict[str, str]]:
    if job.ssh is None:
        return ("-launcher", "slurm"), {}
    program, *options = job.ssh
    environment = {extra: _line(options)} if options else {}
    return ("-launcher", "ssh", "-launcher-exec", program), environment


def _hydra_ranks(job: Job) -> tuple[str, ...]:
    names = [*job.variables, *(name for name in _ADDED_LATER if name not in job.variables)]
    handed = ("-genvlist", ",".join(names))
    return (*handed, "-wdir", job.folder, "-n", str(job.placement.ranks))


def _line(words: Sequence[str]) -> str:
    """Words for a launcher that splits at blanks and knows no quotes."""
    for word in words:
        if not word or any(letter.isspace() or letter in "\"'\\" for letter in word):
            raise LaunchError(
                f"an mpiexec cannot hand {word!r} to ssh: it splits at blanks, quoted or not",
                "use a path without blanks, or a script that holds the options (--ssh-command FILE)",
            )
    return " ".join(words)
