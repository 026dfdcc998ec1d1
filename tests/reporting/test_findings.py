"""The doctor's table and findings, as a terminal and as a file get them."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from doubletime.cluster.doctor.diagnosis import Diagnosis
from doubletime.cluster.doctor.finding import Finding, Severity
from doubletime.cluster.doctor.question import STEPS, Visit
from doubletime.reporting.findings import VisitTable, show_diagnosis, summary
from host_facts import survey

_LONG = (
    "ssh node2 'sudo mount -t nfs4 storage:/export/shared /shared'   (and into its /etc/fstab) " * 3
)
_SLOW = Finding("clock-apart", "node2 is late", "node2", "logs", "set it", Severity.WARNING)
_BROKEN = Finding("folder-missing", "no folder", "node2", "it ends", _LONG)


def _diagnosis(*findings: Finding) -> Diagnosis:
    return Diagnosis(survey({}, {}), findings, 1.234, 0.5)


def _shown(*findings: Finding, is_terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=60, highlight=False)
    show_diagnosis(console, _diagnosis(*findings))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_every_remedy_is_whole_so_that_it_can_be_copied(is_terminal: bool) -> None:
    shown = _shown(_BROKEN, _SLOW, is_terminal=is_terminal)
    assert _LONG in shown
    assert ("\x1b" in shown) == is_terminal


def test_off_a_terminal_each_finding_names_its_host_in_plain_words() -> None:
    assert _shown(_SLOW, is_terminal=False).splitlines()[:3] == [
        "warning: node2: node2 is late", "  why: logs", "  remedy: set it"
    ]  # fmt: skip


def test_the_last_line_sums_up() -> None:
    assert summary(_diagnosis()) == (
        "2 hosts: fit to train on; nothing found (1.23 s and 500 ms for links)"
    )
    assert summary(_diagnosis(_BROKEN, _SLOW, _SLOW)).startswith(
        "2 hosts: not fit to train on; 1 error, 2 warnings ("
    )
    assert _diagnosis(_SLOW).is_fit
    assert not _diagnosis(_BROKEN).is_fit


def _table(hosts: int, visits: list[Visit], width: int = 100) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    with VisitTable(console, [f"node{index + 1}" for index in range(hosts)]) as table:
        for visit in visits:
            table.observe(visit)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_shows_how_far_each_host_is() -> None:
    shown = _table(
        2,
        [Visit("node1", "login"), Visit("node1", "login", True, "0.1 s"),
         Visit("node2", "login", False, "it does not answer")],
    )  # fmt: skip
    assert "✓ 0.1 s" in shown
    assert "✗ it does not answer" in shown
    assert all(step in shown for step in STEPS)


def test_of_very_many_hosts_those_that_are_not_well_are_shown() -> None:
    visits = [Visit(f"node{index + 1}", "login", index != 499, "so") for index in range(500)]
    shown = _table(500, visits)
    assert "node500" in shown
    assert "24 of 500 hosts" in shown


def test_off_a_terminal_there_is_no_table() -> None:
    console = Console(file=io.StringIO())
    with VisitTable(console, ["node1"]) as table:
        table.observe(Visit("node1", "login", True, "0.1 s"))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ""


@given(
    st.lists(
        st.builds(
            Visit,
            st.sampled_from(["node1", "node2", "other"]),
            st.sampled_from(STEPS),
            st.sampled_from([None, True, False]),
            st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=80),
        ),
        max_size=8,
    ),
    st.integers(40, 200),
)
def test_any_course_of_a_visit_is_shown(visits: list[Visit], width: int) -> None:
    assert "node1" in _table(2, visits, width)
