"""How a job's end is told."""

from pathlib import Path

import pytest

from doubletime.cluster.implementations import Implementation
from doubletime.cluster.supervise import verdict
from doubletime.cluster.verdict import outcome
from doubletime.failure import Failure

MPICH = Implementation("MPICH", "5.0.2", Path("/mpi/bin/mpiexec"))
FIRST = Failure(1, "node1", 3, "exited with code 3\n", 10.0)
SECOND = Failure(0, "node1", 1, "peer left\n", 11.0)


def told(return_code, failures=(), said=b"", interrupted_by=None):
    return verdict(MPICH, return_code, failures, said, interrupted_by=interrupted_by)


def test_the_earliest_record_decides_and_the_launcher_is_silent():
    exit_code, words = told(255, [FIRST, SECOND], b"BAD TERMINATION")
    assert exit_code == 3
    assert words.decode() == FIRST.show()


def test_a_record_is_a_failure_even_where_the_launcher_saw_none():
    assert told(0, [FIRST])[0] == 3


def test_who_stopped_the_job_is_the_cause_of_all_that_follows():
    assert told(1, [FIRST], interrupted_by=2) == (130, b"doubletime: ended by SIGINT\n")


def test_without_a_record_the_launcher_is_heard():
    exit_code, words = told(9, said=b"EXIT STRING: Killed (signal 9)\n")
    assert exit_code == 137
    assert words.startswith(b"EXIT STRING: Killed (signal 9)\n")
    assert words.endswith(b"doubletime: the MPICH 5.0.2 job failed: a rank died by signal 9\n")


def test_a_killed_launcher_and_a_bare_exit_code():
    assert told(-9)[0] == 137
    assert told(7)[0] == 7


def first_cause(*failures):
    ended = outcome(MPICH, 14, failures, (), b"", interrupted_by=None)
    return ended.rank, ended.exit_code


def killed(time_s, by=9):
    return Failure(2, "node2", 128 + by, f"died by signal {by}\n", time_s, signal=by)


BARE = Failure(0, "node1", 14, "exited with code 14\n", 10.0, is_bare=True)


@pytest.mark.parametrize("by", [4, 7, 8, 9, 11])
def test_a_peer_that_saw_a_death_before_its_watch_is_not_the_cause(by):
    assert first_cause(BARE, killed(10.5, by)) == (2, 128 + by)
    assert first_cause(BARE, SECOND, killed(10.5, by)) == (2, 128 + by)


def test_what_came_too_late_to_be_the_cause_is_none():
    assert first_cause(BARE, killed(11.5)) == (0, 14)


def test_a_signal_that_a_peer_s_end_may_bring_is_no_cause():
    assert first_cause(BARE, killed(10.1, by=6)) == (0, 14)  # abort()


def test_a_story_of_its_own_is_the_cause():
    assert first_cause(FIRST, killed(10.1)) == (1, 3)


def test_success_says_nothing():
    assert told(0) == (0, b"")
