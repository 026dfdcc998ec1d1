"""What ranks hold after each round: against what the collective promises, and by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubletime.collectives.catalogue import ALGORITHMS
from doubletime.collectives.chunks import members
from doubletime.collectives.holdings import Change, State, columns, frames
from doubletime.collectives.schedule import ROOTED
from doubletime.collectives.topology import Topology


@st.composite
def schedules(draw):
    algorithm = ALGORITHMS[draw(st.sampled_from(sorted(ALGORITHMS)))]
    collective = draw(st.sampled_from(sorted(algorithm.collectives)))
    hosts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    topology = Topology(tuple(host for host, size in enumerate(hosts) for _ in range(size)))
    root = draw(st.integers(0, topology.ranks - 1)) if collective in ROOTED else 0
    segments = draw(st.integers(1, 3))
    return algorithm.schedule(algorithm.problem(collective, topology, root=root, segments=segments))


def promised(schedule, groups, rank, at):
    problem = schedule.problem
    if problem.collective == "reduce":
        return rank == problem.root
    if problem.collective == "reduce_scatter":
        ((first, end),) = problem.block(rank)
        return first <= groups[at][0][0] < end
    return True


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_what_is_promised_ends_complete_and_what_is_spent_is_never_read(schedule):
    groups = columns(schedule)
    before = None
    for frame in frames(schedule):
        if before is None:
            assert frame.number == -1
            assert not frame.messages
        for message in frame.messages:
            for at in members(message.columns):
                came, had = before[message.source][at], before[message.target][at]
                assert came.state not in (State.EMPTY, State.SPENT)
                if message.is_reduced:
                    assert had.state not in (State.EMPTY, State.SPENT)
        landed = {
            (message.target, at) for message in frame.messages for at in members(message.columns)
        }
        for rank, row in enumerate(frame.held):
            for at, cell in enumerate(row):
                assert (cell.change is not Change.NONE) == ((rank, at) in landed)
                assert (cell.state is State.EMPTY) == (cell.ranks == 0)
        before = frame.held
    for rank, row in enumerate(before):
        for at, cell in enumerate(row):
            if promised(schedule, groups, rank, at):
                assert cell.state is State.COMPLETE


@settings(max_examples=60, deadline=None)
@given(schedules())
def test_columns_are_all_chunks_and_no_message_splits_one(schedule):
    groups = columns(schedule)
    assert [chunk for group in groups for chunk in members(group)] == list(
        range(schedule.problem.chunks)
    )
    for rounds in schedule.rounds:
        for each in rounds:
            for send in each.sends:
                chunks = set(members(send.chunks))
                for group in groups:
                    assert len(chunks & set(members(group))) in (0, len(list(members(group))))


def test_a_ring_of_two_by_hand():
    ring = ALGORITHMS["ring"]
    start, added, copied = frames(ring.schedule(ring.problem("all_reduce", Topology.flat(2))))
    assert [[cell.ranks for cell in row] for row in start.held] == [[0b01, 0b01], [0b10, 0b10]]
    assert [[cell.ranks for cell in row] for row in added.held] == [[0b11, 0b01], [0b10, 0b11]]
    assert added.held[0][1].state is State.SPENT
    assert added.held[0][0].change is Change.REDUCED
    assert {(each.source, each.is_reduced) for each in added.messages} == {(0, True), (1, True)}
    assert all(cell.state is State.COMPLETE for row in copied.held for cell in row)
    assert [[cell.change for cell in row] for row in copied.held] == [
        [Change.NONE, Change.COPIED],
        [Change.COPIED, Change.NONE],
    ]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_one_rank_has_a_start_and_nothing_more(name):
    schedule = ALGORITHMS[name].schedule(ALGORITHMS[name].problem("all_reduce", Topology.flat(1)))
    (only,) = frames(schedule)
    assert all(cell.state is State.COMPLETE for cell in only.held[0])
