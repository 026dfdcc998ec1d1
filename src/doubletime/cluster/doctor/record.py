"""What the doctor leaves for others to read: the hosts of a cluster, in a file beside its profile.

The profile (`collectives.profile`, by `bench links`) says how fast links are; this says which hosts
there are, how many cores they give, by which interface they are reached, with which MPI.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from doubletime.cluster.doctor.diagnosis import Diagnosis
from doubletime.cluster.doctor.facts import HostFacts, Survey
from doubletime.errors import DataError

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
        name: by which it was asked for.
        address: its own, on the way to the others; empty for a host alone.
        interface: which that is on.
        network: which the interface reaches directly.
        cores: that a job may use.
        slots: ranks that it was to take; 0 where nobody said.
        mpi, library: of mpiexec, and what mpi4py loads; empty where there is none.
        python: its version.
        gpus: a line each, as nvidia-smi tells.
    """

    name: str
    address: str
    interface: str
    network: str
    cores: int
    slots: int
    mpi: str
    library: str
    python: str
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClusterHosts:
    """What was found of a cluster.

    Attributes:
        hosts: those that answered.
        is_fit: whether nothing stood in the way of a job.
        date: when, in UTC, ISO 8601.
        doubletime: the version that looked.
    """

    hosts: tuple[KnownHost, ...]
    is_fit: bool
    date: str
    doubletime: str

    def text(self) -> str:
        """As TOML, which `parse` reads."""
        import tomli_w

        whole = {
            "kind": KIND,
            "is_fit": self.is_fit,
            "date": self.date,
            "doubletime": self.doubletime,
            "host": [{**asdict(host), "gpus": list(host.gpus)} for host in self.hosts],
        }
        return tomli_w.dumps(whole)


def path_beside(profile: Path) -> Path:
    """Where it is: profile.hosts.toml beside profile.toml."""
    return profile.with_suffix(".hosts.toml")


def of(diagnosis: Diagnosis) -> ClusterHosts:
    """What is worth keeping of a diagnosis."""
    survey = diagnosis.survey
    hosts = survey.hosts if survey.names else (survey.here,)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return ClusterHosts(
        tuple(_known(survey, facts) for facts in hosts),
        diagnosis.is_fit,
        now,
        version("doubletime"),
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
        hosts = tuple(
            KnownHost(**{**table, "gpus": tuple(table.get("gpus", ()))}) for table in whole["host"]
        )
        return ClusterHosts(hosts, bool(whole["is_fit"]), str(whole["date"]), whole["doubletime"])
    except KeyError as error:
        raise DataError(f"{name} does not say {error}", _REMEDY) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{name} does not hold a cluster's hosts: {error}", _REMEDY) from error


def _known(survey: Survey, facts: HostFacts) -> KnownHost:
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
    )
