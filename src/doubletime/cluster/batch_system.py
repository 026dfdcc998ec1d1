"""A job for Slurm as the script that `sbatch` takes: pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from doubletime.errors import LaunchError

# minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]
_TIME = re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d(:\d\d)?)?")
_NAME = re.compile(r"[A-Za-z][\w-]*", re.ASCII)


@dataclass(frozen=True)
class Launch:
    """What `doubletime run` is to start, and what it is told; the hosts come from the batch system.

    Attributes:
        program: a script with its arguments, `-m` and a module, or an executable.
        backend: for `--backend`; None for the usual one.
        environment: for `--env`.
        max_restarts, min_hosts: for the options of these names; the defaults are left out.
    """

    program: Sequence[str]
    backend: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    max_restarts: int = 0
    min_hosts: int = 1

    def words(self) -> list[str]:
        """What comes after `doubletime run`."""
        if not self.program:
            raise LaunchError("no program to start", "doubletime slurm -N 4 script.py")
        options: list[str] = []
        if self.backend is not None:
            options += ["--backend", self.backend]
        for name, value in self.environment.items():
            options += ["--env", f"{name}={value}"]
        if self.max_restarts:
            options += ["--max-restarts", str(self.max_restarts)]
        if self.min_hosts > 1:
            options += ["--min-hosts", str(self.min_hosts)]
        return [*options, *self.program]


@dataclass(frozen=True)
class SlurmJob:
    """What is asked of Slurm.

    Attributes:
        name: of the job.
        nodes: how many hosts.
        per_host: ranks on each; None for one per GPU, or one.
        cpus: cores for each rank; None for Slurm's default.
        gpus: on each host; None for none.
        time: the most that it may take, as Slurm writes it: minutes, `HH:MM:SS`, `D-HH:MM`.
        partition, account: None for Slurm's default.
        output: the file that gets all that is printed; `%j` stands for the job's number.
        folder: where it runs, on every host.
        options: further ones of sbatch, by their long names; a value of None for a mere switch.
        setup: lines of shell before the start, such as `module load openmpi`.
    """

    name: str
    nodes: int
    folder: str
    per_host: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    output: str | None = None
    options: Mapping[str, str | None] = field(default_factory=dict)
    setup: Sequence[str] = ()

    @property
    def log(self) -> str:
        """The file that gets all that is printed."""
        return self.output or f"{self.name}-%j.log"


def slurm_script(job: SlurmJob, launch: Launch, python: str) -> str:
    """The script; `doubletime run` finds its hosts and ranks in what Slurm allots.

    Args:
        job: what is asked of Slurm.
        launch: what to start.
        python: the interpreter to start it with, the same path on every host.

    Raises:
        LaunchError: if something cannot be asked of Slurm so.
    """
    if job.nodes < 1:
        raise LaunchError(f"-N {job.nodes}: no hosts to run on", "-N 2")
    if job.time is not None and not _TIME.fullmatch(job.time):
        raise LaunchError(
            f"--time {job.time!r} is no time that Slurm knows",
            "--time 90 (minutes), --time 01:30:00 or --time 2-12:00 (days-hours:minutes)",
        )
    wanted: dict[str, str | None] = {
        "job-name": job.name,
        "nodes": str(job.nodes),
        "ntasks-per-node": str(job.per_host or job.gpus or 1),
    }
    for option, value in (
        ("cpus-per-task", job.cpus),
        ("gpus-per-node", job.gpus),
        ("time", job.time),
        ("partition", job.partition),
        ("account", job.account),
    ):
        if value is not None:
            wanted[option] = str(value)
    wanted |= {"output": job.log, "chdir": job.folder}
    if launch.max_restarts:
        wanted["no-kill"] = None  # a host that dies leaves the others to the job
    lines = [f"#SBATCH {_option(*pair)}" for pair in {**wanted, **job.options}.items()]
    start = _in_lines([python, "-m", "doubletime", "run", *launch.words()])
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            "",
            "set -eu",
            *job.setup,
            *([""] if job.setup else []),
            "# Each host's ranks divide its cores among themselves; Slurm shall not bind them first.",
            "export SLURM_CPU_BIND=none",
            "# The hosts, and how many ranks on each, come from Slurm. exec: signals reach the job.",
            f"exec {start}",
            "",
        ]
    )


def job_number(said: str) -> str:
    """The number of the job, from what `sbatch --parsable` prints (`12`, `12;cluster`)."""
    return said.strip().partition(";")[0]


def _option(name: str, value: str | None) -> str:
    if not _NAME.fullmatch(name):
        raise LaunchError(f"{name!r} is no option of sbatch", "--option qos=high")
    if value is None:
        return f"--{name}"
    if "\n" in value:
        raise LaunchError(f"--{name} {value!r}: Slurm reads its options line by line")
    return f"--{name}={shlex.quote(value)}"


def _in_lines(words: Sequence[str]) -> str:
    """A command for a shell; one that is long on a line per option, to be read."""
    quoted = [shlex.quote(word) for word in words]
    line = " ".join(quoted)
    if len(line) <= 100:
        return line
    lines = [" ".join(quoted[:4])]
    rest = quoted[4:]
    while rest and rest[0].startswith("--"):
        lines.append(" ".join(rest[:2]))
        rest = rest[2:]
    lines.append(" ".join(rest))
    return " \\\n    ".join(lines)
