"""ssh to many hosts at once: real processes, and what OpenSSH says when it fails, told apart."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubletime.cluster.ssh import (
    Reply,
    Settings,
    Ssh,
    Trouble,
    read_settings,
    run_on,
    trouble,
    without_steps,
)
from doubletime.errors import LaunchError

# What OpenSSH 8.4 to 10.0 writes.
_SAID = {
    "ssh: Could not resolve hostname nod1: Name or service not known": Trouble.NAME,
    "ssh: Could not resolve hostname n1: Temporary failure in name resolution": Trouble.NAME,
    "ssh: connect to host node1 port 22: Connection refused": Trouble.REFUSED,
    "ssh: connect to host node1 port 22: No route to host": Trouble.UNREACHABLE,
    "ssh: connect to host node1 port 22: Network is unreachable": Trouble.UNREACHABLE,
    "ssh: connect to host node1 port 22: Connection timed out": Trouble.TIMEOUT,
    "Connection timed out during banner exchange": Trouble.TIMEOUT,
    "root@node1: Permission denied (publickey).": Trouble.KEY_REFUSED,
    "ann@node1: Permission denied (publickey,password).": Trouble.PASSWORD,
    "ann@node1: Permission denied (publickey,gssapi-with-mic,keyboard-interactive).": (
        Trouble.PASSWORD
    ),
    "Host key verification failed.": Trouble.HOST_KEY_UNKNOWN,
    "No ED25519 host key is known for node1 and you have requested strict checking.\n"
    "Host key verification failed.": Trouble.HOST_KEY_UNKNOWN,
    "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
    "Host key for node1 has changed and you have requested strict checking.\n"
    "Host key verification failed.": Trouble.HOST_KEY_CHANGED,
    "kex_exchange_identification: Connection closed by remote host": Trouble.CLOSED,
    "kex_exchange_identification: read: Connection reset by peer": Trouble.CLOSED,
    "something new": Trouble.OTHER,
    "": Trouble.OTHER,
}


@pytest.mark.parametrize("said", _SAID)
def test_each_failure_of_ssh_is_told_apart(said: str) -> None:
    assert trouble(255, said.encode()) is _SAID[said]


@given(st.integers(0, 254), st.binary())
def test_what_the_command_says_is_no_failure_of_ssh(exit_code: int, said: bytes) -> None:
    assert trouble(exit_code, said) is None


def test_what_a_verbose_ssh_adds_is_left_out() -> None:
    told = (
        b"OpenSSH_9.2p1 Debian-2+deb12u7, OpenSSL 3.0.17 1 Jul 2025\n"
        b"debug1: Connecting to node1 [10.77.0.11] port 22.\n"
        b"debug1: connect to address 10.77.0.11 port 22: Connection refused\n"
        b"ssh: connect to host node1 port 22: No route to host\n"
    )
    assert without_steps(told) == b"ssh: connect to host node1 port 22: No route to host\n"


def test_what_ssh_would_use_for_a_host_is_read() -> None:
    text = "host node1\nhostname 10.0.0.1\nport 2222\nuserknownhostsfile /a /b\n"
    assert read_settings(text, "node1") == Settings("10.0.0.1", 2222, "/a")
    assert read_settings("", "node1") == Settings("node1", 22, "~/.ssh/known_hosts")


@given(st.text())
def test_whatever_ssh_says_of_its_settings_is_read(text: str) -> None:
    assert read_settings(text, "node1").known_hosts


@given(st.binary())
def test_every_failure_has_a_name(said: bytes) -> None:
    assert isinstance(trouble(255, said), Trouble)
    assert trouble(None, said) is Trouble.TIMEOUT


def test_the_command_asks_nobody_and_uses_the_given_settings() -> None:
    words = Ssh(("ssh", "-p", "2222"), Path("cfg")).argv("node1", "echo 'a b'")
    assert words[:5] == ["ssh", "-p", "2222", "-F", "cfg"]
    assert {"BatchMode=yes", "ConnectTimeout=10"} <= set(words)
    assert words[-3:] == ["--", "node1", "echo 'a b'"]


@pytest.fixture
def fake(tmp_path: Path) -> Ssh:
    """A command that takes ssh's options and runs the line here; $HOST tells where it was to run."""
    path = tmp_path / "ssh"
    path.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nHOST=$2 exec sh -c "$3"\n')
    path.chmod(0o755)
    return Ssh((str(path),))


def test_hosts_run_at_once_and_keep_their_order(fake: Ssh) -> None:
    hosts = [f"node{index}" for index in range(8)]
    seen: list[Reply] = []
    start_s = time.monotonic()
    replies = run_on(hosts, "sleep 0.5; cat; echo $HOST", fake, 20, b"in\n", seen.append)
    assert time.monotonic() - start_s < 3  # eight times 0.5 s, had they waited for each other
    assert list(replies) == hosts
    assert [reply.stdout.decode() for reply in replies.values()] == [f"in\n{h}\n" for h in hosts]
    assert sorted(reply.host for reply in seen) == hosts


def test_each_host_may_have_its_own_command_and_text(fake: Ssh) -> None:
    replies = run_on(["a", "b"], {"a": "cat; exit 3", "b": "echo b"}, fake, 20, {"a": b"for a"})
    assert [(each.exit_code, each.stdout) for each in replies.values()] == [
        (3, b"for a"), (0, b"b\n")
    ]  # fmt: skip


def test_what_hangs_is_killed_with_all_its_children(fake: Ssh, tmp_path: Path) -> None:
    line = f"sleep 60 & echo $! > {tmp_path}/pid; echo said; wait"
    reply = run_on(["a"], line, fake, 0.5)["a"]
    assert reply.exit_code is None
    assert reply.stdout == b"said\n"
    assert 0.5 <= reply.time_s < 5
    child = int((tmp_path / "pid").read_text())
    end_s = time.monotonic() + 5
    while _runs(child):
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_an_interrupt_ends_them_all(fake: Ssh) -> None:
    def interrupt(reply: Reply) -> None:
        raise KeyboardInterrupt

    start_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_on(["a", "b"], {"a": "true", "b": "sleep 60"}, fake, 60, observe=interrupt)
    assert time.monotonic() - start_s < 5


def test_no_ssh_here_is_told() -> None:
    with pytest.raises(LaunchError, match=r"no-such-ssh cannot be started.*\n.*--ssh-command"):
        run_on(["a"], "true", Ssh(("no-such-ssh",)), 1)


def test_no_hosts_no_replies(fake: Ssh) -> None:
    assert run_on([], "true", fake, 1) == {}


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Orphans of a container whose first process reaps nobody stay as zombies.
    return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
