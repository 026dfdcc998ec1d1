"""What the doctor leaves for others to read: the hosts of a cluster, in a file beside its profile.

The profile (`collectives.profile`, by `bench links`) says how fast links are; this says which hosts
there are, how many cores they give, by which interface they are reached, with which MPI, and what
stood in the way of a job.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doubletime.cluster.doctor.finding import Severity
from doubletime.errors import DataError

if TYPE_CHECKING:  # a job that starts reads this file and needs nothing else of the doctor
    from doubletime.cluster.doctor.diagnosis import Diagnosis
    from doubletime.cluster.doctor.facts import HostFacts, Survey

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KIND = "doubletime cluster hosts"
_REMEDY = "doubletime doctor --hosts … writes one"


@dataclass(frozen=True)
class KnownHost:
    """One host as the doctor found it.

    Attributes:
        name: by which it was asked for; all else is empty where it let nobody in.
        address: its own, on the way to the others; empty for a host alone.
        interface: which that is on.
        network: which the interface reaches directly.
        cores: that a job may use.
        slots: ranks that it was to take; 0 where nobody said.
        mpi, library: of mpiexec, and what mpi4py loads; empty where there is none.
        python: its version.
        gpus: a line each, as nvidia-smi tells.
        addresses: all its own that others may reach.
        date: when it was looked at, in UTC, ISO 8601.
    """

    name: str
    address: str = ""
    interface: str = ""
    network: str = ""
    cores: int = 0
    slots: int = 0
    mpi: str = ""
    library: str = ""
    python: str = ""
    gpus: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    date: str = ""


@dataclass(frozen=True)
class Problem:
    """What stood in the way of a job.

    Attributes:
        hosts: on which, or between which two.
        what: one sentence.
    """

    hosts: tuple[str, ...]
    what: str


@dataclass(frozen=True)
class ClusterHosts:
    """What was found of a cluster.

    Attributes:
        hosts: those that were looked at.
        is_fit: whether nothing stood in the way of a job when the doctor looked last.
        date: when that was, in UTC, ISO 8601.
        doubletime: the version that looked.
        problems: on hosts that were looked at.
    """

    hosts: tuple[KnownHost, ...]
    is_fit: bool
    date: str
    doubletime: str
    problems: tuple[Problem, ...] = ()

    def with_before(self, before: ClusterHosts) -> ClusterHosts:
        """This, and what was known of other hosts before."""
        seen = {host.name for host in self.hosts}
        return replace(
            self,
            hosts=(*self.hosts, *(host for host in before.hosts if host.name not in seen)),
            problems=(
                *self.problems,
                *(each for each in before.problems if seen.isdisjoint(each.hosts)),
            ),
        )

    def text(self) -> str:
        """As TOML, which `parse` reads."""
        import tomli_w

        whole = {
            "kind": KIND,
            "is_fit": self.is_fit,
            "date": self.date,
            "doubletime": self.doubletime,
            "host": [asdict(host) for host in self.hosts],
            "problem": [asdict(problem) for problem in self.problems],
        }
        return tomli_w.dumps(whole)


def of(diagnosis: Diagnosis) -> ClusterHosts:
    """What is worth keeping of a diagnosis."""
    from importlib.metadata import version

    survey = diagnosis.survey
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    looked_at = survey.hosts if survey.names else (survey.here,)
    known = {facts.host: _known(survey, facts, now) for facts in looked_at}
    for name in survey.names:
        known.setdefault(name, KnownHost(name, date=now))
    problems = (
        Problem(tuple(finding.host.split(" - ")), finding.what)
        for finding in diagnosis.findings
        if finding.severity is Severity.ERROR
    )
    return ClusterHosts(
        tuple(known[name] for name in survey.names or known),
        diagnosis.is_fit,
        now,
        version("doubletime"),
        tuple(each for each in problems if known.keys() >= set(each.hosts)),
    )


def read(file: Path) -> ClusterHosts:
    """What is in a file.

    Raises:
        DataError: if the file is not there, or is none of these; names what is wrong.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the cluster's hosts {file} cannot be read: {error}", _REMEDY) from error
    return parse(text, str(file))


def parse(text: str, name: str) -> ClusterHosts:
    """Read what `ClusterHosts.text` wrote.

    Raises:
        DataError: if it is none of these; names what is wrong.
    """
    try:
        whole = tomllib.loads(text)
        if whole.get("kind") != KIND:
            raise ValueError(f"it calls itself {whole.get('kind')!r}")
        return ClusterHosts(
            tuple(KnownHost(**_fields(KnownHost(""), table)) for table in whole["host"]),
            bool(whole["is_fit"]),
            str(whole["date"]),
            str(whole["doubletime"]),
            tuple(Problem(**_fields(Problem((), ""), each)) for each in whole.get("problem", ())),
        )
    except KeyError as error:
        raise DataError(f"{name} does not say {error}", _REMEDY) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{name} does not hold a cluster's hosts: {error}", _REMEDY) from error


def _fields(example: KnownHost | Problem, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table's values, of the types that the fields have.

    Raises:
        ValueError, TypeError: if one is of another type.
    """
    values: dict[str, Any] = {}
    for name in {each.name for each in fields(example)} & table.keys():
        value = tuple(table[name]) if isinstance(table[name], list) else table[name]
        if type(value) is not type(getattr(example, name)):
            raise ValueError(f"{name} = {table[name]!r}")
        values[name] = tuple(map(str, value)) if isinstance(value, tuple) else value
    return values


def _known(survey: Survey, facts: HostFacts, date: str) -> KnownHost:
    address = facts.address([name for name in survey.names if name != facts.host])
    interface = facts.interface(address)
    record: Mapping[str, Any] = facts.record
    return KnownHost(
        name=facts.host,
        address=address or "",
        interface=interface.name if interface else "",
        network=interface.network if interface else "",
        cores=facts.cores,
        slots=facts.slots or 0,
        mpi=str(facts.mpi or ""),
        library=str(facts.library or ""),
        python=str(record["python"]["version"]),
        gpus=tuple((record["gpus"] or "").splitlines()),
        addresses=tuple(each.address for each in facts.interfaces if not each.is_inward),
        date=date,
    )
