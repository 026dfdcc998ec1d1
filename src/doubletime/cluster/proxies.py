"""What a launcher has started on a host above a rank, to be ended there when the launcher cannot."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from pathlib import Path

# The kernel keeps 15 letters of a name.
_NAMES = frozenset(("hydra_pmi_proxy", "hydra_bstrap_pr", "hydra_bstrap_proxy", "prted", "orted"))
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish"))
_SSHD = frozenset(("sshd", "sshd-session"))
_TERMINATION_S = 0.5  # between SIGTERM and SIGKILL


class Proxies:
    """The launcher's processes that a process descends from.

    Only those of this user, and only up to the first that is something else: a login's shell or
    sshd, or the launcher itself. The sshd of such a login is known too.
    """

    def __init__(self, pid: int) -> None:
        """Find them now: should one end, what is above it is not known any more.

        Args:
            pid: of the process that they are above.
        """
        self._descriptors: list[int] = []  # a pid may be given to another process
        above = _above(pid, _NAMES)
        while above is not None:
            pid, descriptor = above
            self._descriptors.append(descriptor)
            above = _above(pid, _NAMES)
        self._login = _sshd_above(pid) if self._descriptors else None

    def end_login(self) -> None:
        """End the sshd that serves the launcher, out of reach: it would wait to be rid of its last words."""
        if self._login is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._login, signal.SIGTERM)

    def end(self) -> None:
        """End the launcher's processes that still run."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for descriptor in self._descriptors:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, number)
            end_s = time.monotonic() + _TERMINATION_S
            while self._are_left() and time.monotonic() < end_s:
                time.sleep(0.02)

    def _are_left(self) -> bool:
        ended, _, _ = select.select(self._descriptors, [], [], 0)
        return len(ended) < len(self._descriptors)


def _sshd_above(pid: int) -> int | None:
    """Descriptor of the sshd whose login a process is, be it through a shell; None where it is none."""
    shell = _above(pid, _SHELLS)
    if shell is not None:
        pid, descriptor = shell
        os.close(descriptor)
    login = _above(pid, _SSHD)
    return None if login is None else login[1]


def _above(pid: int, names: frozenset[str]) -> tuple[int, int] | None:
    """Pid and descriptor of a process's parent; None where it has another name or owner than wanted."""
    descriptor = None
    try:
        parent = int(_status(pid)["PPid"])
        descriptor = os.pidfd_open(parent)
        status = _status(parent)
        is_wanted = status["Name"] in names and int(status["Uid"].split()[0]) == os.geteuid()
        if is_wanted and int(_status(pid)["PPid"]) == parent:
            return parent, descriptor
    except OSError:
        pass  # it ended, or is of another world than this one's /proc
    if descriptor is not None:
        os.close(descriptor)
    return None


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
