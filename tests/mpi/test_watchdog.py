"""What is said of ranks that keep the others waiting."""

from doubletime.mpi.calls import Call, History, describe
from doubletime.mpi.watchdog import Answer, explain

WAITED = Call(3, "all_reduce", "float32[4], SUM", "float32[4], SUM", ("train.py", 9, "step"))


def answer(**given):
    facts = {
        "rank": 1, "host": "b", "call": None, "last": None, "last_is_finished": True,
        "where": "data.py:5 in load", "has_left": False,
    }  # fmt: skip
    return Answer(**(facts | given))


def test_a_missing_rank_is_named_with_its_last_call_and_its_line():
    last = Call(2, "barrier", "", "", ("train.py", 7, "step"))
    (line,) = explain(WAITED, {1: answer(last=last)})
    assert "rank 1 on host b is missing" in line
    assert "finished barrier #2" in line
    assert "data.py:5 in load" in line


def test_a_rank_in_another_call_is_named_with_that_call():
    other = Call(3, "broadcast", "int8[2], root 0", "int8[2], root 0", ("train.py", 11, "step"))
    (line,) = explain(WAITED, {1: answer(call=other)})
    assert "is in another call: broadcast #3 (int8[2], root 0) called at train.py:11" in line


def test_silent_and_departed_ranks_are_named():
    lines = explain(WAITED, {1: None, 2: answer(rank=2, has_left=True)})
    assert "rank 1 gives no answer" in lines[0]
    assert "rank 2 on host b has come to the end" in lines[1]


def test_ranks_that_are_in_the_call_are_not_blamed():
    assert explain(WAITED, {1: answer(call=WAITED)}) == []


def test_history_finds_calls_by_number():
    history = History()
    for number in range(1, 400):
        history.enter(Call(number, "barrier", describe([]), "", ("a.py", number, "f")))
    assert history.entered == 399
    assert history.at(399).place[1] == 399
    assert history.at(1) is None
