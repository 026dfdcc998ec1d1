"""The proof finds what is wrong, and says where."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from doubletime.collectives.catalogue import ALGORITHMS, FLAT
from doubletime.collectives.proof import prove
from doubletime.collectives.schedule import (
    Combine,
    Problem,
    Receive,
    Round,
    Schedule,
    Send,
)
from doubletime.collectives.topology import Topology
from doubletime.errors import ScheduleError

ONE = ((0, 1),)
LEFT, RIGHT, COPY = Combine.RECEIVED_LEFT, Combine.RECEIVED_RIGHT, Combine.COPY


def right(name, ranks=5, collective="all_reduce"):
    algorithm = ALGORITHMS[name]
    return algorithm.schedule(algorithm.problem(collective, Topology.flat(ranks), segments=2))


def right_in_ten(name):
    """In more chunks than some algorithms need, so that messages may be of too few."""
    problem = Problem("all_reduce", Topology.flat(5), 10, segments=2)
    return ALGORITHMS[name].schedule(problem)


def changed(schedule, rank, index, **fields):
    """The schedule with one round of one rank changed; left out if it is then empty."""
    rounds = list(schedule.rounds[rank])
    rounds[index] = replace(rounds[index], **fields)
    kept = tuple(each for each in rounds if each.sends or each.receives)
    return with_rounds(schedule, {rank: kept})


def with_rounds(schedule, by_rank):
    return replace(
        schedule,
        rounds=tuple(by_rank.get(rank, rounds) for rank, rounds in enumerate(schedule.rounds)),
    )


def places(schedule, kind):
    """Where messages of a kind are: (rank, index of the round, index of the message)."""
    return [
        (rank, index, at)
        for rank, rounds in enumerate(schedule.rounds)
        for index, each in enumerate(rounds)
        for at in range(len(getattr(each, kind)))
    ]


def without(messages, at):
    return messages[:at] + messages[at + 1 :]


def pick(data, schedule, kind):
    rank, index, at = data.draw(st.sampled_from(places(schedule, kind)))
    return rank, index, at, schedule.rounds[rank][index]


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("kind", ["sends", "receives"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_lost_half_of_a_message_is_found(name, kind, data):
    schedule = right(name)
    rank, index, at, each = pick(data, schedule, kind)
    broken = changed(schedule, rank, index, **{kind: without(getattr(each, kind), at)})
    with pytest.raises(ScheduleError, match=f"{name} all_reduce over 5 ranks .* in round"):
        prove(broken)


@pytest.mark.parametrize("name", FLAT)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_lost_message_is_found(name, data):
    schedule = right(name)
    rank, index, at, each = pick(data, schedule, "receives")
    peer, number = each.receives[at].peer, each.number
    broken = changed(schedule, rank, index, receives=without(each.receives, at))
    for other, theirs in enumerate(schedule.rounds[peer]):
        if theirs.number == number:
            (sent,) = (i for i, send in enumerate(theirs.sends) if send.peer == rank)
            broken = changed(broken, peer, other, sends=without(theirs.sends, sent))
    with pytest.raises(
        ScheduleError, match=r"without the contributions|does not have yet|ends with"
    ):
        prove(broken)


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("kind", ["sends", "receives"])
@settings(max_examples=15, deadline=None)
@given(data=st.data(), step=st.integers(1, 4))
def test_a_wrong_partner_is_found(name, kind, data, step):
    schedule = right(name)
    rank, index, at, each = pick(data, schedule, kind)
    message = getattr(each, kind)[at]
    moved = replace(message, peer=(message.peer + step) % 5)
    messages = (*getattr(each, kind)[:at], moved, *getattr(each, kind)[at + 1 :])
    with pytest.raises(ScheduleError):
        prove(changed(schedule, rank, index, **{kind: messages}))


@pytest.mark.parametrize("name", FLAT)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_contribution_that_comes_twice_is_found(name, data):
    schedule = right(name)
    rank, _, at, each = pick(data, schedule, "receives")
    receive = each.receives[at]
    assume(receive.combine is not COPY)
    # The same message once more, in a round between this one and the next.
    peer, half = receive.peer, 2 * each.number + 1
    doubled = {
        who: tuple(replace(mine, number=2 * mine.number) for mine in rounds)
        for who, rounds in enumerate(schedule.rounds)
    }
    extra = {
        rank: Round(half, (), (receive,)),
        peer: Round(half, (Send(rank, receive.chunks),), ()),
    }
    for who, more in extra.items():
        doubled[who] = tuple(sorted((*doubled[who], more), key=lambda mine: mine.number))
    with pytest.raises(ScheduleError, match="twice"):
        prove(with_rounds(schedule, doubled))


@pytest.mark.parametrize("name", FLAT)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_rounds_in_another_order_are_found(name, data):
    schedule = right(name)
    rank = data.draw(st.integers(0, 4))
    rounds = list(schedule.rounds[rank])
    assume(len(rounds) > 1)
    index = data.draw(st.integers(0, len(rounds) - 2))
    early, late = rounds[index : index + 2]
    swapped = replace(late, number=early.number), replace(early, number=late.number)
    rounds[index : index + 2] = swapped
    with pytest.raises(ScheduleError):
        prove(with_rounds(schedule, {rank: tuple(rounds)}))
    rounds[index : index + 2] = late, early
    with pytest.raises(ScheduleError, match="comes after round"):
        prove(with_rounds(schedule, {rank: tuple(rounds)}))


@pytest.mark.parametrize("name", FLAT)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_copy_for_a_sum_or_a_sum_for_a_copy_is_found(name, data):
    schedule = right(name)
    rank, index, at, each = pick(data, schedule, "receives")
    receive = each.receives[at]
    other = replace(receive, combine=RIGHT if receive.combine is COPY else COPY)
    receives = (*each.receives[:at], other, *each.receives[at + 1 :])
    with pytest.raises(ScheduleError):
        prove(changed(schedule, rank, index, receives=receives))


@pytest.mark.parametrize("name", FLAT)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_message_of_other_chunks_is_found(name, data):
    schedule = right_in_ten(name)
    rank, index, at, each = pick(data, schedule, "sends")
    send = each.sends[at]
    first = data.draw(st.integers(0, schedule.problem.chunks - 1))
    end = data.draw(st.integers(first + 1, schedule.problem.chunks))
    assume(send.chunks != ((first, end),))
    sends = (*each.sends[:at], replace(send, chunks=((first, end),)), *each.sends[at + 1 :])
    with pytest.raises(ScheduleError):
        prove(changed(schedule, rank, index, sends=sends))


def test_partners_that_add_the_other_way_round_are_found():
    schedule = right("recursive_doubling", ranks=4)
    (receive,) = schedule.rounds[2][0].receives
    assert receive.combine is RIGHT
    broken = changed(schedule, 2, 0, receives=(replace(receive, combine=LEFT),))
    # Ranks 2 and 3 hold (3+2) and (2+3): as numbers the same, but not as promised.
    with pytest.raises(ScheduleError, match=r"ends with .*\(2\+3\).*\(3\+2\)|\(3\+2\).*\(2\+3\)"):
        prove(broken)


def test_another_order_of_adding_on_one_rank_is_found():
    # Both are sums of all three; a sum of floats is not associative, so their bits may differ.
    problem = Problem("all_reduce", Topology.flat(3), 1)
    everyone = tuple(
        (
            Round(
                0,
                tuple(Send(peer, ONE) for peer in range(3) if peer != rank),
                tuple(Receive(peer, ONE, RIGHT) for peer in range(3) if peer != rank),
            ),
        )
        for rank in range(3)
    )
    with pytest.raises(ScheduleError, match=r"rank 1 at the end ends with .*, rank 0 with"):
        prove(Schedule("exchange", problem, everyone))


def schedule_of(collective, ranks, chunks, *rounds):
    return Schedule("mine", Problem(collective, Topology.flat(ranks), chunks), rounds)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            schedule_of("broadcast", 3, 1, (), (Round(0, (Send(2, ONE),), ()),),
                        (Round(0, (), (Receive(1, ONE, COPY),)),)),
            r"rank 1 in round 0 sends what it does not have yet \(chunk 0 of 1\)",
        ),
        (
            schedule_of("broadcast", 2, 1, (Round(0, (Send(1, ONE),), ()),),
                        (Round(0, (), (Receive(0, ONE, LEFT),)),)),
            "rank 1 in round 0 reduces into what it does not have yet",
        ),
        (
            schedule_of("all_reduce", 2, 1,
                        (Round(0, (Send(1, ONE),), (Receive(1, ONE, COPY),)),),
                        (Round(0, (Send(0, ONE),), (Receive(0, ONE, LEFT),)),)),
            "rank 0 in round 0 receives in place what it sends as well",
        ),
        (
            schedule_of("all_reduce", 3, 1,
                        (Round(0, (), (Receive(1, ONE, LEFT), Receive(2, ONE, COPY))),),
                        (Round(0, (Send(0, ONE),), ()),), (Round(0, (Send(0, ONE),), ()),)),
            "rank 0 in round 0 receives in place what it receives otherwise",
        ),
        (schedule_of("all_reduce", 2, 1, (Round(0, (Send(0, ONE),), ()),), ()), "as its partner"),
        (schedule_of("all_reduce", 2, 1, (Round(0, (Send(2, ONE),), ()),), ()), "as its partner"),
        (schedule_of("all_reduce", 2, 1, (Round(0, (Send(1, ()),), ()),), ()), "has the chunks"),
        (
            schedule_of("all_reduce", 2, 1, (Round(0, (Send(1, ((0, 2),)),), ()),), ()),
            r"has the chunks \(\(0, 2\),\)",
        ),
        (
            schedule_of("all_reduce", 2, 3, (Round(0, (Send(1, ((1, 2), (0, 1))),), ()),), ()),
            "has the chunks",
        ),
        (schedule_of("all_reduce", 2, 1, (Round(0, (), ()),), ()), "is empty"),
        (
            schedule_of("all_reduce", 3, 2, (), (), ()),
            r"rank 0 at the end ends without the contributions of ranks \[1, 2\] \(chunk 0 of 2\)",
        ),
        (
            schedule_of("all_gather", 2, 2,
                        (Round(0, (Send(1, ONE),), ()), Round(1, (), (Receive(1, ((1, 2),), COPY),))),
                        (Round(0, (), (Receive(0, ONE, COPY),)), Round(1, (Send(0, ((1, 2),)),), ()))),
            None,
        ),
    ],
)  # fmt: skip
def test_a_schedule_written_by_hand(schedule, message):
    if message is None:
        assert prove(schedule).messages == 2
        return
    with pytest.raises(ScheduleError, match=message) as caught:
        prove(schedule)
    assert str(caught.value).startswith("mine ")


def test_the_evidence_shows_the_sum_of_each_chunk():
    found = prove(right("linear", ranks=4))
    assert (found.rounds, found.messages) == (6, 6)
    assert found.expressions == ("(((0+1)+2)+3)",)
    assert prove(right("recursive_doubling", ranks=4)).expressions == ("((0+1)+(2+3))",)
    ring = prove(right("ring", ranks=4))
    assert ring.expressions == ("(((1+2)+3)+0)", "(((2+3)+0)+1)", "(((3+0)+1)+2)", "(((0+1)+2)+3)")
    assert prove(right("ring", ranks=3, collective="all_gather")).expressions == ("0", "1", "2")
