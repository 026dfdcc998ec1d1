"""Which words of a batch system's command line are its own, and which the program's: pure."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubletime.cli.batch import Line, divide, notes
from doubletime.errors import LaunchError

OURS = {"-N": True, "--nodes": True, "--time": True, "--submit": False}
OPTIONS = st.sampled_from([("-N", "4"), ("-N4",), ("--nodes=4",), ("--time", "-x"), ("--submit",)])
SOME = st.lists(OPTIONS, max_size=4).map(lambda found: tuple(sum(found, ())))
PROGRAM = st.sampled_from([("train.py",), ("-m", "package.module"), ("./train",)])
OWN = st.lists(st.sampled_from(["--epochs", "3", "-x", "--no-submit", "-N", "--time=5", "-", ""]))


@settings(deadline=None)
@given(SOME, PROGRAM, SOME, st.lists(st.text()))
def test_after_a_mark_all_is_the_program_s(before, program, behind, own):
    line = divide([*before, *program, *behind, "--", *own], OURS)
    assert line == Line(before, behind, (*program, *own), is_marked=True)
    assert notes(line, "slurm", OURS) == []
    line = divide([*before, "--", *program, *behind, *own], OURS)
    assert line == Line(before, (), (*program, *behind, *own), is_marked=True)


@settings(deadline=None)
@given(SOME, PROGRAM, SOME, OWN)
def test_ours_stand_before_the_program_or_directly_after_it(before, program, behind, own):
    own = ["--epochs", *own]
    line = divide([*before, *program, *behind, *own], OURS)
    assert line == Line(before, behind, (*program, *own), is_marked=False)
    told = notes(line, "slurm", OURS)
    assert len(told) == bool(before and behind) + bool({"-N", "--time=5"} & set(own))


@pytest.mark.parametrize("words", [["--submit"], ["-N", "4"], [], ["--unknown"]])
def test_where_there_is_no_program_there_is_none(words):
    assert divide(words, OURS).program == ()


def test_an_option_without_its_value_is_refused():
    with pytest.raises(LaunchError, match="--time names no value"):
        divide(["train.py", "-N", "4", "--time"], OURS)
