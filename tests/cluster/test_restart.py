"""When a job is started again, where, and what is told about it."""

import pytest

from doubletime.cluster import restart
from doubletime.cluster.restart import Ending, Health, Policy, Story

HOSTS = ("node1", "node2", "node3")
BUG = "doubletime: rank 1 on host node2 failed:\nValueError: step {} at 0x7f{}\n"


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(restart, "_PAUSE_S", 0)


class _Scene:
    """A job that ends as written, on hosts that fall sick as written."""

    def __init__(self, endings, sick=(), file=None):
        self.endings, self.sick = list(endings), list(sick)
        self.starts, self.told = [], []
        self.story = Story(self.told.append, file)

    def start(self, hosts, variables):
        self.starts.append((tuple(hosts), dict(variables)))
        return self.endings.pop(0)

    def examine(self, hosts):
        sick = self.sick.pop(0) if self.sick else {}
        return [Health(host, sick.get(host)) for host in hosts]

    def run(self, **policy):
        return restart.run(HOSTS, Policy(**policy), self.start, self.examine, self.story)


def test_a_job_that_succeeds_is_started_once_and_nothing_is_told():
    scene = _Scene([Ending(0)])
    assert scene.run(max_restarts=3) == 0
    assert scene.starts == [(HOSTS, {})]
    assert scene.told == []


def test_without_the_host_that_died_and_with_it_again_when_it_is_back():
    scene = _Scene(
        [Ending(1, "lost", ("node2",)), Ending(1, "lost", ("node3",)), Ending(0)],
        [{"node2": "it is unreachable"}, {"node3": "it is unreachable"}],
    )
    assert scene.run(max_restarts=3, min_hosts=2) == 0
    assert scene.starts == [
        (HOSTS, {}),
        (("node1", "node3"), {"DOUBLETIME_RESTART": "1"}),
        (("node1", "node2"), {"DOUBLETIME_RESTART": "2"}),
    ]
    assert scene.told == [
        "host node2 is left out: it is unreachable",
        "restart 1 of 3, on node1, node3 (DOUBLETIME_RESTART=1)",
        "host node2 is back",
        "host node3 is left out: it is unreachable",
        "restart 2 of 3, on node1, node2 (DOUBLETIME_RESTART=2)",
        "the job has ended well, after 2 restarts",
    ]


def test_restarts_are_counted():
    scene = _Scene([Ending(137, "died by signal 9 (SIGKILL)")] * 3)
    assert scene.run(max_restarts=2) == 137
    assert len(scene.starts) == 3
    assert scene.told[-1] == "the job failed, after 2 restarts: no restart is left"


def test_too_few_hosts_end_it():
    scene = _Scene([Ending(1, "x", ("node2",))], [{"node1": "gone", "node2": "gone"}])
    assert scene.run(max_restarts=3, min_hosts=2) == 1
    assert len(scene.starts) == 1
    told = "1 of 3 hosts are healthy, and --min-hosts is 2: the job is not started again"
    assert scene.told[-1] == told


def test_what_fails_twice_at_once_for_the_same_reason_is_not_tried_for_ever():
    scene = _Scene([Ending(1, BUG.format(1, 2)), Ending(1, BUG.format(3, 4))])
    assert scene.run(max_restarts=3) == 1
    assert len(scene.starts) == 2
    assert "for the same reason as before" in scene.told[-1]
    assert "though 2 restarts are left" in scene.told[-1]


def test_what_fails_for_another_reason_or_after_a_while_is_tried_again(monkeypatch):
    scene = _Scene([Ending(1, BUG.format(1, 2)), Ending(1, "OSError: no space"), Ending(0)])
    assert scene.run(max_restarts=3) == 0
    monkeypatch.setattr(restart, "_AT_ONCE_S", 0)
    scene = _Scene([Ending(1, BUG.format(1, 2))] * 2 + [Ending(0)])
    assert scene.run(max_restarts=3) == 0


def test_a_job_that_someone_has_ended_stays_ended():
    scene = _Scene([Ending(130, "ended by SIGINT", interrupted_by=2)])
    assert scene.run(max_restarts=3) == 130
    assert len(scene.starts) == 1


def test_the_story_is_kept(tmp_path):
    file = tmp_path / "restarts.log"
    scene = _Scene([Ending(1, BUG.format(1, 2)), Ending(0)], file=file)
    assert scene.run(max_restarts=1) == 0
    lines = [line.split(" ", 2)[2] for line in file.read_text().splitlines()]
    assert lines == [
        "the job failed after 0 s with exit code 1",
        "doubletime: rank 1 on host node2 failed:",
        "ValueError: step 1 at 0x7f2",
        "restart 1 of 1, on node1, node2, node3 (DOUBLETIME_RESTART=1)",
        "the job has ended well, after 1 restart",
    ]


def test_a_log_that_cannot_be_written_is_told_once_and_stops_nothing(tmp_path):
    scene = _Scene([Ending(1, "x"), Ending(0)], file=tmp_path / "no" / "such" / "log")
    assert scene.run(max_restarts=1) == 0
    assert sum("cannot be written" in line for line in scene.told) == 1
