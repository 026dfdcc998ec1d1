"""Facts of hosts as agents tell them, for checks: of a good host, with what a test wants different."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from doubletime.cluster.doctor.diagnosis import judge
from doubletime.cluster.doctor.facts import HostFacts, Survey
from doubletime.cluster.doctor.finding import Finding

FOLDER = Path("/shared/job")
MPICH = "HYDRA build details:\n    Version:                                 5.0.2\n"
OPEN_MPI = "mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n"


def record(hosts: tuple[str, ...], index: int = 0, /, **changes: Any) -> dict[str, Any]:
    """What the agent of the index-th host tells."""
    folder = {
        "path": str(FOLDER),
        "exists": True,
        "source": "/dev/sda1",
        "mount": "/",
        "type": "ext4",
        "options": "rw,relatime",
        "space": {"total_nbytes": 1 << 40, "free_nbytes": 1 << 39, "free_files": 1 << 20},
    }
    addresses = {name: f"10.0.0.{number + 1}" for number, name in enumerate(hosts)}
    own = f"10.0.0.{index + 1}"  # also of a machine that is none of the hosts
    found: dict[str, Any] = {
        "user": "ann",
        "uid": 1000,
        "hostname": hosts[index] if hosts else "laptop",
        "system": "Linux 6.1.0 x86_64",
        "python": {
            "executable": "/shared/venv/bin/python",
            "prefix": "/shared/venv",
            "version": "3.11.7",
        },
        "packages": {
            "torch": "2.13.0+cpu",
            "mpi4py": "4.1.2",
            "doubletime": "0.1.0",
            "numpy": "2.4.6",
            "nvidia-nccl-cu12": None,
            "nvidia-nccl-cu13": None,
        },
        "mpiexec": {"path": "/shared/venv/bin/mpiexec", "said": MPICH},
        "library": {"text": "MPICH Version:      5.0.2\n"},
        "own_addresses": [own],
        "names": {name: [address] for name, address in addresses.items()},
        "routes": dict.fromkeys(hosts, own),
        "interfaces": [
            {"name": "lo", "address": "127.0.0.1", "width": 8, "mtu": 65536},
            {"name": "eth0", "address": own, "width": 24, "mtu": 1500, "mbit_per_s": 1000},
            {"name": "docker0", "address": "172.17.0.1", "width": 16, "mtu": 1500},
        ],
        "shm": {"total_nbytes": 16 << 30, "free_nbytes": 15 << 30, "free_files": 1 << 20},
        "memlock_nbytes": 8 << 20,
        "cores": {"all": 8, "own": 8, "quota": None},
        "busy": [],
        "gpus": None,
        "rdma": [],
        "verbs": None,
        "folder": folder,
        "checkpoints": {**folder, "error": None},
        "script": None,
        "variables": {},
    }
    return {**found, **changes}


def survey(*changes: dict[str, Any], slots: int | None = None, **more: Any) -> Survey:
    """A cluster of good hosts, the first of them this machine, but for each one's changes."""
    names = tuple(f"node{number + 1}" for number in range(len(changes)))
    hosts = tuple(
        HostFacts(name, record(names, index, **changes[index]), slots, is_file_seen=True)
        for index, name in enumerate(names)
    )
    usual: dict[str, Any] = {
        "here": next(iter(hosts), None),
        "hosts": hosts,
        "names": names,
        "folder": FOLDER,
        "checkpoints": FOLDER,
        "local": next(iter(names), None),
    }
    return Survey(**{**usual, **more})


def found(given: Survey) -> dict[tuple[str, str], Finding]:
    """All that checks find, by kind and host."""
    return {(finding.kind, finding.host): finding for finding in judge(given)}
