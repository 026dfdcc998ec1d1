"""Schedules as people see them in a terminal, and in a file."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from doubletime.collectives.catalogue import ALGORITHMS
from doubletime.collectives.model import Link, Parameters
from doubletime.collectives.proof import prove
from doubletime.collectives.topology import Topology
from doubletime.reporting.rank_view import show_rank
from doubletime.reporting.schedule_cost import price, show_prices
from doubletime.reporting.schedule_view import (
    Page,
    place_name,
    show_evidence,
    show_schedule,
)

RING_OF_TWO = """\
A,B parts  01 whose contributions  + added  = copied

start                       A    B
  rank 0                    0·   0·
  rank 1                    ·1   ·1

round 1 of 2 add            A    B
  rank 0  B→1  +A←1        +01   0·
  rank 1  A→0  +B←0         ·1  +01

round 2 of 2 copy           A    B
  rank 0  A→1  =B←1         01  =01
  rank 1  B→0  =A←0        =01   01
"""


def schedule(name, ranks, collective="all_reduce", **options):
    topology = options.pop("topology", Topology.flat(ranks))
    algorithm = ALGORITHMS[name]
    return algorithm.schedule(algorithm.problem(collective, topology, **options))


def shown(show, *args, width=None, encoding="utf-8", **options):
    """The text that a function shows on a page, on a terminal if a width is given."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(
        file=file, highlight=False, force_terminal=width is not None, width=width or 80
    )
    show(Page(console), *args, **options)
    file.flush()
    return raw.getvalue().decode(encoding)


def test_off_a_terminal_it_is_plain_text():
    assert shown(show_schedule, schedule("ring", 2)) == RING_OF_TWO


def test_off_a_terminal_no_line_is_cut_or_wrapped():
    lines = shown(show_schedule, schedule("ring", 24)).splitlines()
    last = [line for line in lines if line.startswith("  rank 23 ")]
    assert len(last) == 1 + 8 + 4, "the start, the first rounds and the last"
    assert last[-1].split()[4:] == ["=0-23", *["0-23"] * 23]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_on_a_terminal_it_has_colours_and_no_line_is_longer(name, width):
    text = shown(show_schedule, schedule(name, 16), width=width)
    assert "\x1b[" in text
    assert max(map(len, Text.from_ansi(text).plain.splitlines())) <= width


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_where_stdout_is_not_unicode_it_is_ascii(name):
    algorithm, asked = ALGORITHMS[name], schedule(name, 4)
    text = shown(show_schedule, asked, encoding="ascii")
    text += shown(show_evidence, asked, prove(asked), encoding="ascii")
    text += shown(show_prices, prices(algorithm, asked), "assumed", encoding="ascii")
    assert "rank 3" in text
    assert text.isascii()


def test_of_many_rounds_and_ranks_the_first_and_the_last_are_shown_unless_all_are():
    long = schedule("ring", 20)
    text = shown(show_schedule, long)
    assert "… rounds 9 to 34: --all shows them" in text
    assert "… 4 ranks more" in text
    assert text.count("round ") == 12
    text = shown(show_schedule, long, shows_all=True)
    assert text.count("round ") == 38
    assert text.count("  rank 14 ") == 39


def test_on_a_narrow_terminal_contributions_are_counted_and_parts_left_out():
    asked = schedule("ring", 8)
    text = Text.from_ansi(shown(show_schedule, asked, width=80)).plain
    assert "8 how many" not in text
    assert "2 how many contributions" in text
    assert "… a wider terminal, or --all, shows whose contributions" in text
    assert "… and parts" not in text
    last = next(line for line in reversed(text.splitlines()) if "rank 7" in line)
    assert last.split() == ["rank", "7", "B→0", "=A←6", "=8", *["8"] * 7]
    text = Text.from_ansi(shown(show_schedule, schedule("ring", 16), width=80)).plain
    assert "… and parts" in text
    for plain in (
        shown(show_schedule, asked, width=120),
        shown(show_schedule, asked),
        shown(show_schedule, asked, width=80, shows_all=True),
    ):
        assert "whose contributions" in plain
        assert "wider terminal" not in plain


def test_hosts_are_named_and_apart():
    text = shown(show_schedule, schedule("two_level", 4, topology=Topology.even(2, 2)))
    assert "host 0 rank 1" in text
    assert "\n\n  host 1 rank 2" in text


def test_the_proof_s_expressions_are_shown_once_for_parts_that_share_one():
    asked = schedule("recursive_doubling", 4)
    assert "  A = (0+1)+(2+3)\n" in shown(show_evidence, asked, prove(asked))
    asked = schedule("ring", 8)
    text = shown(show_evidence, asked, prove(asked))
    assert text.count(" = ") == 4
    assert "… 4 orders of summation more" in text
    asked = schedule("linear", 4, "broadcast")
    assert " = " not in shown(show_evidence, asked, prove(asked))


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ((0,), "1 rank"),
        ((0, 0), "2 ranks on one host"),
        ((0, 1), "2 ranks, each on a host of its own"),
        ((0, 0, 1, 1), "4 ranks on 2 hosts, 2 on each"),
        ((0, 0, 0, 1), "4 ranks on 2 hosts: 3, 1"),
    ],
)
def test_places(hosts, words):
    assert place_name(Topology(hosts)) == words


def test_one_rank_s_view():
    algorithm = ALGORITHMS["ring"]
    problem = algorithm.problem("all_reduce", Topology.flat(1000))
    text = shown(show_rank, problem, 3, algorithm.rounds(problem, 3))
    assert "what rank 3 does in 1998 rounds" in text
    assert "  round 1     #2→4" in text
    assert "… 1986 rounds more: --all shows them" in text
    assert "+#1←2" in text


def prices(algorithm, asked, nbytes=1 << 20, in_flight=6):
    link = Link(1e-3, 1e-8)
    parameters = Parameters(link, link, 1e-10)
    return price(asked, algorithm.formula(asked.problem, nbytes), nbytes, parameters, in_flight)


def test_a_ring_is_priced_as_published():
    asked = schedule("ring", 4)
    found = prices(ALGORITHMS["ring"], asked)
    quarter_s = (1 << 18) * 1e-8
    expected_s = 6 * (1e-3 + quarter_s) + 3 * (1 << 18) * 1e-10
    assert found.cost.time_s == pytest.approx(expected_s)
    assert found.formula_s == pytest.approx(expected_s)
    assert found.bound_s == pytest.approx(6 * quarter_s)
    assert set(found.times) == set(range(6))
    text = shown(show_prices, found, "assumed")
    assert "256 KiB a message" in text
    assert "lower bound            15.7 ms" in text
    assert "assumed: between hosts α 1 ms, 1/β 100 MB/s; 1/γ 10 GB/s" in text
    bars = [line.partition("ms  ")[2] for line in text.splitlines() if "█" in line]
    assert len(bars) == 6
    assert [bar.index("█") for bar in bars] == sorted(bar.index("█") for bar in bars)


def test_the_price_of_each_round_stands_in_its_heading():
    asked = schedule("ring", 4)
    times = prices(ALGORITHMS["ring"], asked).times
    assert "round 1 of 6 add, 3.65 ms" in shown(show_schedule, asked, times=times)
