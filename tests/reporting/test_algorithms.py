"""The list of algorithms: its formulas are those of the schedules."""

import io
import re

import pytest
from rich.console import Console

from doubletime.collectives.catalogue import ALGORITHMS, FLAT
from doubletime.collectives.formula import lg_down, lg_up
from doubletime.collectives.schedule import sent
from doubletime.collectives.topology import Topology
from doubletime.reporting.algorithms import show_algorithms
from doubletime.reporting.schedule_view import Page


def value(text, ranks, segments):
    """A formula of the list as a number; `(+x)` counts where the ranks are no power of two."""
    is_odd = ranks & (ranks - 1) != 0
    text = re.sub(r" \(\+(\w+)\)", r" + \1" if is_odd else "", text.removeprefix("≤ "))
    text = text.replace("−", "-").replace("·", "*")
    text = re.sub(r"⌊lg (p|\(.*?\))⌋|⌊lg(\(.*?\))⌋", r"lg_down(\1\2)", text)
    text = re.sub(r"⌈lg p⌉", "lg_up(p)", text)
    text = re.sub(r"(\d)(?=[(nl])", r"\1*", text)
    names = {"p": ranks, "n": 1.0, "S": segments, "lg_down": lg_down, "lg_up": lg_up}
    return eval(text, {"__builtins__": {}}, names)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 7, 8, 16])
@pytest.mark.parametrize("name", FLAT)
def test_the_formulas_are_those_of_the_schedule(name, ranks):
    algorithm = FLAT[name]
    for segments in (1, 3) if algorithm.is_pipelined else (1,):
        asked = algorithm.problem("all_reduce", Topology.flat(ranks), segments=segments)
        schedule = algorithm.schedule(asked)
        rounds = value(algorithm.rounds_formula, ranks, segments)
        elements = 64 * 63 * 5 * 16
        bounds = asked.bounds(elements)
        most = max(sent(each, bounds) for each in schedule.rounds) / elements
        nbytes = value(algorithm.nbytes_formula, ranks, segments)
        if algorithm.rounds_formula.startswith("≤"):
            assert rounds / 2 <= schedule.length <= rounds
        else:
            assert schedule.length == rounds
        if algorithm.nbytes_formula.startswith("≤") or "(+" in algorithm.nbytes_formula:
            assert nbytes / 3 <= most <= nbytes + 1e-9
        else:
            assert most == pytest.approx(nbytes)


def test_all_are_listed_with_what_they_define_and_their_source():
    file = io.StringIO()
    show_algorithms(Page(Console(file=file, width=80)), ALGORITHMS.values())
    text = file.getvalue()
    for name, algorithm in ALGORITHMS.items():
        assert f"\n{name} " in text
        assert f"  {', '.join(algorithm.collectives)}\n" in text
        assert algorithm.source in text
