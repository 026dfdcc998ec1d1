"""Measure the links of a virtual cluster by bare TCP, with no MPI and no torch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from vcluster.cluster import VirtualCluster

_PROGRAM = str(Path(__file__).with_name("transfer.py"))
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Link:
    """What one TCP connection between two hosts gets.

    Attributes:
        round_trip_s: the median of 1 byte there and back.
        bytes_per_s: in one direction, once the connection is warm.
    """

    round_trip_s: float
    bytes_per_s: float


def link(cluster: VirtualCluster, source: str, target: str, nbytes: int = 16 << 20) -> Link:
    """Send so many bytes from one host to another.

    Raises:
        RuntimeError: if the connection fails; with what the sender said.
    """
    address = cluster.host(target).address
    python = [sys.executable, "-S", _PROGRAM]
    server = subprocess.Popen(
        [*cluster.enter(target), *python, "serve", address],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert server.stdout is not None
    try:
        port = server.stdout.readline().decode().strip()
        sender = [*python, "send", address, port, str(nbytes)]
        done = cluster.exec(source, sender, timeout=_TIMEOUT_S)
        if done.returncode:
            raise RuntimeError(f"{source} to {target}: {done.stderr}")
        server.wait(_TIMEOUT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):  # as a rule it has ended
            os.killpg(server.pid, signal.SIGKILL)
        server.stdout.close()
        server.wait()
    return Link(**json.loads(done.stdout))


def all_at_once(cluster: VirtualCluster, nbytes: int = 16 << 20) -> dict[str, Link]:
    """Let every host send to the next one, and the last to the first, all at the same time.

    Returns:
        By the sender's name, what it got while it received as well.
    """
    hosts = cluster.hosts
    following = hosts[1:] + hosts[:1]

    def send(source: str, target: str) -> Link:
        return link(cluster, source, target, nbytes)

    with ThreadPoolExecutor(len(hosts)) as senders:
        return dict(zip(hosts, senders.map(send, hosts, following), strict=True))
