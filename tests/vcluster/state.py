"""The folder of a cluster: what it is, written so that another process can find it again."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from vcluster.links import Port
from vcluster.namespaces import Machine

_PREFIX = "vcluster-"
_FILE = "state.json"
_UNFINISHED_S = 60.0  # a folder without a state for so long belongs to nobody


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        name, address: by which the others reach it.
        machine: its namespaces.
        own_pids: its processes that belong to no job: the first one, and sshd.
    """

    name: str
    address: str
    machine: Machine
    own_pids: tuple[int, ...]


@dataclass(frozen=True)
class State:
    """All that has to be known of a running cluster.

    Attributes:
        switch: the outermost machine; the cluster lives as long as it.
        hosts: in order.
    """

    switch: Machine
    hosts: tuple[Host, ...]

    def ports(self) -> list[Port]:
        """Where the hosts that still run meet the network."""
        return [
            Port(host.name, index, host.machine)
            for index, host in enumerate(self.hosts)
            if host.machine.is_running
        ]


def new_folder() -> Path:
    """An empty folder with a name that no other cluster has; removes those that dead ones left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if _is_stale(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=_PREFIX))


def write(folder: Path, state: State) -> None:
    """Keep the state in the cluster's folder, whole or not at all."""
    partial = folder / f"{_FILE}.partial"
    partial.write_text(json.dumps(asdict(state), indent=1))
    partial.rename(folder / _FILE)


def read(folder: Path) -> State | None:
    """The state of the cluster in this folder; None where there is none or it runs no more."""
    try:
        found = json.loads((folder / _FILE).read_text())
    except FileNotFoundError:
        return None
    hosts = (
        Host(each["name"], each["address"], Machine(**each["machine"]), tuple(each["own_pids"]))
        for each in found["hosts"]
    )
    state = State(Machine(**found["switch"]), tuple(hosts))
    return state if state.switch.is_running else None


def _is_stale(folder: Path) -> bool:
    try:
        if not (folder / _FILE).exists():
            return time.time() - folder.stat().st_mtime > _UNFINISHED_S
    except FileNotFoundError:
        return False  # its own cluster has just removed it
    return read(folder) is None
