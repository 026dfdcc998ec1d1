"""What the doctor keeps of hosts, and what a job that starts is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubletime.cluster.doctor import record
from doubletime.cluster.doctor.diagnosis import Diagnosis, judge
from doubletime.cluster.doctor.recall import recall, remarks
from doubletime.cluster.doctor.record import KIND, ClusterHosts, KnownHost, Problem, parse
from doubletime.errors import DataError
from host_facts import survey

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]))
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
HOSTS = st.builds(
    KnownHost,
    *[TEXT] * 4,
    st.integers(0, 999),
    st.integers(0, 999),
    *[TEXT] * 3,
    TEXTS,
    TEXTS,
    TEXT,
)
PROBLEMS = st.lists(st.builds(Problem, TEXTS, TEXT), max_size=2).map(tuple)


def known(*hosts: KnownHost, problems: tuple[Problem, ...] = ()) -> ClusterHosts:
    return ClusterHosts(hosts, not problems, "2026-12-02T10:20:30+00:00", "0.1.0", problems)


def host(name: str, index: int = 1, cores: int = 4) -> KnownHost:
    return KnownHost(
        name, cores=cores, addresses=(f"10.0.0.{index}",), date="2026-12-02T10:20:30+00:00"
    )


@given(HOSTS, PROBLEMS)
def test_what_is_kept_of_hosts_is_read_again(one: KnownHost, problems: tuple[Problem, ...]) -> None:
    kept = known(one, one, problems=problems)
    assert parse(kept.text(), "file") == kept


def test_a_file_of_an_older_doctor_is_read() -> None:
    text = (
        f'kind = "{KIND}"\nis_fit = true\ndate = ""\ndoubletime = "0.0.1"\n'
        '[[host]]\nname = "node1"\ncores = 2\nwhat_is_known_no_more = 1\n'
    )
    assert parse(text, "file").hosts == (KnownHost("node1", cores=2),)


@given(st.text())
def test_a_file_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="hosts"):
        parse(text, "profile.hosts.toml")
    for wrong in ("host = [1]", '[[host]]\nname = "a"\ncores = "many"', "[[host]]\n"):
        with pytest.raises(DataError):
            parse(f'kind = "{KIND}"\nis_fit = true\ndate = ""\ndoubletime = ""\n{wrong}\n', "f")


def test_what_stands_in_the_way_is_kept_with_its_hosts() -> None:
    found = survey({}, {"shm": {"total_nbytes": 1 << 20, "free_nbytes": 1 << 20, "free_files": 9}})
    kept = record.of(Diagnosis(found, judge(found), 1.0, 0.0))
    assert [each.name for each in kept.hosts] == ["node1", "node2"]
    assert [each.addresses for each in kept.hosts] == [("10.0.0.1",), ("10.0.0.2",)]
    errors = [finding for finding in judge(found) if finding.severity == 0]
    assert [each.hosts for each in kept.problems] == [("node2",)] * len(errors)
    assert kept.is_fit == (not errors)


def test_another_look_leaves_other_hosts_as_they_were() -> None:
    before = known(
        host("node1"),
        host("node2", 2),
        problems=(Problem(("node1",), "old"), Problem(("node1", "node2"), "between")),
    )
    now = known(host("node1", cores=8)).with_before(before)
    assert [(each.name, each.cores) for each in now.hosts] == [("node1", 8), ("node2", 4)]
    assert now.problems == ()
    elsewhere = known(host("node9", 9)).with_before(before)
    assert [each.name for each in elsewhere.hosts] == ["node9", "node1", "node2"]
    assert elsewhere.problems == before.problems


def leads_to(name: str) -> frozenset[str]:
    return frozenset({f"10.0.0.{name[-1]}"} if name.startswith("node") else ())


def test_of_healthy_or_unknown_hosts_nothing_is_told() -> None:
    found = known(host("node1"), problems=(Problem(("node1", "node3"), "no way"),))
    assert remarks(found, [("node1", 4), ("node2", 9)], leads_to) == ()


def test_problems_of_this_job_s_hosts_are_told_with_what_looks_again() -> None:
    problems = (
        Problem(("node1",), "its disk is full"),
        Problem(("node1", "node2"), "no way"),
        Problem(("node3",), "its clock stands"),
    )
    found = known(host("node1"), host("node2", 2), host("node3", 3), problems=problems)
    assert remarks(found, [("node2", 1), ("node1", 1)], leads_to) == (
        "the doctor found on node1 (2026-12-02 10:20 UTC): its disk is full",
        "the doctor found on node1 - node2 (2026-12-02 10:20 UTC): no way",
        "doubletime doctor --hosts node2,node1 looks again",
    )
    many = known(host("node1"), problems=(problems[0],) * 5)
    told = remarks(many, [("node1", 1)], leads_to)
    assert len(told) == 4
    assert told[-1] == "and 2 more; doubletime doctor --hosts node1 looks again"


def test_ranks_that_share_cores_are_told_by_hosts_that_are_alike() -> None:
    found = known(*(host(f"node{index}", index, 1 + index % 2) for index in range(1, 7)))
    told = remarks(found, [(each.name, 4) for each in found.hosts], leads_to)
    assert told == (
        "4 ranks share 2 cores on node1, node3, node5",
        "4 ranks share 1 core on node2, node4, node6",
    )


def test_another_host_of_the_same_name_is_none_that_is_known() -> None:
    found = known(host("node1", 77, 1), problems=(Problem(("node1",), "bad"),))
    assert remarks(found, [("node1", 4)], leads_to) == ()
    assert len(remarks(found, [("node1", 4)], lambda _: frozenset())) == 3


def test_a_broken_record_is_named_and_none_is_nothing_to_tell(tmp_path: Path) -> None:
    file = tmp_path / "profile.hosts.toml"
    assert recall(file, [("node1", 1)]) == ()
    file.write_text("x")
    [line] = recall(file, [("node1", 1)])
    assert str(file) in line
