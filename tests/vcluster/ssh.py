"""Login between the hosts of a cluster, by keys that are its own."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from vcluster.links import Port
from vcluster.requirements import program

_START_S = 10.0


def prepare(folder: Path, ports: Sequence[tuple[str, str]]) -> None:
    """Write keys, settings and the command `ssh` of a cluster.

    Args:
        folder: of the cluster; all hosts see it.
        ports: name and address of every host.
    """
    for key in ("id", "hostkey"):
        generate = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(generate, check=True, stdin=subprocess.DEVNULL)
    (folder / "authorized_keys").write_text((folder / "id.pub").read_text())
    kind, key, *_ = (folder / "hostkey.pub").read_text().split()
    known = (f"{name},{address} {kind} {key}\n" for name, address in ports)
    (folder / "known_hosts").write_text("".join(known))
    # The default exchange of keys takes 0.1 s of computing for both ends, which here share cores: on
    # machines of their own logins would be faster than with it here.
    (folder / "ssh_config").write_text(
        "Host *\n"
        f"  IdentityFile {folder}/id\n"
        "  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n"
        "  BatchMode yes\n"
        "  StrictHostKeyChecking yes\n"
        "  ConnectTimeout 10\n"
        "  LogLevel ERROR\n"
        "  KexAlgorithms curve25519-sha256\n"
    )
    command = folder / "ssh"
    config = shlex.quote(str(folder / "ssh_config"))
    command.write_text(f'#!/bin/sh\nexec {program("ssh")} -F {config} "$@"\n')
    command.chmod(0o755)


def temporary(folder: Path, host: str) -> Path:
    """A host's own folder for temporary files, which its TMPDIR names.

    Hosts see one /tmp and count processes alike: what Open MPI leaves there under the name of host and
    process id when it is killed would be in the way of a later job.
    """
    return folder / host / "tmp"


def start_server(
    folder: Path, port: Port, enter: Sequence[str], settings: Mapping[str, str] | None = None
) -> None:
    """Start sshd on a host and wait until it listens.

    Args:
        folder: of the cluster.
        port: the host.
        enter: the words that run a command on it.
        settings: lines of sshd_config that differ from the usual ones.

    Raises:
        TimeoutError: if it does not listen within 10 s; with its log.
    """
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on it
    own = folder / port.name
    lines = {
        "Port": "22",
        "ListenAddress": port.address,
        "HostKey": f"{folder}/hostkey",
        "AuthorizedKeysFile": f"{folder}/authorized_keys",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "yes",
        "StrictModes": "no",
        "UsePAM": "no",
        "UseDNS": "no",
        "PidFile": f"{own}/sshd.pid",
        "SetEnv": f"TMPDIR={temporary(folder, port.name)}",
        **(settings or {}),
    }
    text = "".join(f"{name} {value}\n" for name, value in lines.items())
    (own / "sshd_config").write_text(text)
    files = ["-f", str(own / "sshd_config"), "-E", str(own / "sshd.log")]
    subprocess.run([*enter, program("sshd"), *files], check=True, stdin=subprocess.DEVNULL)
    end_s = time.monotonic() + _START_S
    while not (own / "sshd.pid").exists():
        if time.monotonic() > end_s:
            log = own / "sshd.log"
            text = log.read_text() if log.exists() else "no log"
            raise TimeoutError(f"sshd on {port.name} does not listen: {text}")
        time.sleep(0.01)
