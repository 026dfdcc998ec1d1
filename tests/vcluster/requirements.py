"""What a virtual cluster needs of the machine: the right to make namespaces, and some programs."""

from __future__ import annotations

import os
import shutil
import subprocess

# program: the Debian package that brings it
_PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "cc": "gcc libc6-dev",
    "nsenter": "util-linux",
}
_FOR_SLURM = {
    "slurmctld": "slurm-wlm",
    "munged": "munge",
}
# Where programs for root lie; not in every user's PATH.
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def program(name: str) -> str:
    """The whole path of a program.

    Raises:
        FileNotFoundError: naming the package that brings it.
    """
    found = shutil.which(name, path=_PATH)
    if found is None:
        raise FileNotFoundError(f"no {name}: apt-get install {(_PROGRAMS | _FOR_SLURM)[name]}")
    return found


def missing_packages(*, slurm: bool = False) -> list[str]:
    """The Debian packages that are still to be installed, those for Slurm too if asked."""
    programs = _PROGRAMS | (_FOR_SLURM if slurm else {})
    missing = {programs[name] for name in programs if shutil.which(name, path=_PATH) is None}
    return sorted(word for package in missing for word in package.split())


def refusal() -> str | None:
    """Why this process may make no virtual cluster at all; None where it may."""
    if os.geteuid() != 0:
        return "a virtual cluster needs root"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "true"],
        capture_output=True,
        text=True,
    )
    if tried.returncode:
        return f"this machine grants no namespaces ({tried.stderr.strip()})"
    return None
