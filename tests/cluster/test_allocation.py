"""The hosts that Slurm has allotted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubletime.cluster import allocation
from doubletime.cluster.hosts import Host
from doubletime.errors import LaunchError


def slurm(nodes, tasks=None):
    told = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": nodes}
    return told if tasks is None else told | {"SLURM_TASKS_PER_NODE": tasks}


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 4)), min_size=1, max_size=9))
def test_tasks_are_counted_as_slurm_writes_them(groups):
    counts = [count for count, times in groups for _ in range(times)]
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in groups)
    found = allocation.from_slurm(slurm(f"n[1-{len(counts)}]", text))
    assert [host.slots for host in found] == counts
    assert [host.name for host in found] == [f"n{index + 1}" for index in range(len(counts))]


def test_hosts_without_tasks_say_no_slots():
    assert allocation.from_slurm(slurm("a,b")) == (Host("a"), Host("b"))


def test_outside_slurm_there_are_none():
    assert allocation.from_slurm({}) is None
    assert allocation.from_slurm({"SLURM_CONF": "/etc/slurm.conf"}) is None


@pytest.mark.parametrize(
    ("nodes", "tasks", "why"),
    [
        ("a,b", "2(x3)", "3 counts for 2 hosts"),
        ("a,b", "2(y2)", r"'2\(y2\)' is no count"),
        ("n[1-", "1", "brackets"),
    ],
)
def test_what_cannot_be_read_is_told_with_the_way_out(nodes, tasks, why):
    with pytest.raises(LaunchError, match=rf"{why}.*\n.*--hosts"):
        allocation.from_slurm(slurm(nodes, tasks))
