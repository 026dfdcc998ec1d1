"""A launcher's processes above a rank."""

import contextlib
import subprocess
import sys
import time

import psutil
import pytest

from doubletime.cluster.proxies import Proxies

# A line of processes of these names, the last of which tells its pid.
LINE = """
import ctypes, os, sys, time
for name in sys.argv[1:]:
    if os.fork():
        time.sleep(60)
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)  # PR_SET_NAME
print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def line():
    """Starts a line of processes; returns them, the first one first."""
    with contextlib.ExitStack() as ends:

        def start(*names):
            first = subprocess.Popen(
                [sys.executable, "-c", LINE, *names], stdout=subprocess.PIPE, text=True
            )
            ends.callback(first.wait)
            ends.callback(first.stdout.close)
            started = [psutil.Process(first.pid)]
            ends.callback(lambda: [each.kill() for each in started if each.is_running()])
            last = psutil.Process(int(first.stdout.readline()))
            started += [*reversed(last.parents()[: len(names) - 1]), last]
            return started

        yield start


def test_they_are_ended_up_to_the_first_that_is_something_else(line):
    _, shell, prted, proxy, rank = line("shell", "prted", "hydra_bstrap_pr", "rank")
    Proxies(rank.pid).end()
    assert [_is_over(each) for each in (shell, prted, proxy, rank)] == [False, True, True, False]


def test_a_process_without_any_has_none(line):
    *_, shell, rank = line("shell", "rank")
    Proxies(rank.pid).end()
    assert [_is_over(each) for each in (shell, rank)] == [False, False]


def test_the_sshd_of_the_launcher_s_login_is_ended_where_it_is_asked_for(line):
    _, sshd, shell, proxy, rank = line("sshd", "bash", "hydra_pmi_proxy", "rank")
    proxies = Proxies(rank.pid)
    proxies.end_login()
    _wait_until_over(sshd)
    assert [_is_over(each) for each in (shell, proxy, rank)] == [False, False, False]


def test_a_login_in_which_no_launcher_s_process_runs_is_a_person_s(line):
    _, sshd, *_, rank = line("sshd", "bash", "mpiexec", "rank")
    Proxies(rank.pid).end_login()
    _, other, *_, rank = line("sshd", "bash", "rank")
    Proxies(rank.pid).end_login()
    assert not _is_over(sshd)
    assert not _is_over(other)


def _wait_until_over(process):
    end_s = time.monotonic() + 5
    while not _is_over(process):
        assert time.monotonic() < end_s
        time.sleep(0.01)


def _is_over(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
