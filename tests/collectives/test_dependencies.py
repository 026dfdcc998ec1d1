"""A rank may run ahead as far as `needs` allows: any such order gives the same values."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubletime.collectives.catalogue import ALGORITHMS
from doubletime.collectives.chunks import members, overlap
from doubletime.collectives.dependencies import NOTHING, needs, scratch_ahead
from doubletime.collectives.proof import prove
from doubletime.collectives.schedule import ROOTED, Combine
from doubletime.collectives.topology import Topology


class Machine:
    """Ranks that carry out whatever may come next, in an order that a test chooses."""

    def __init__(self, schedule):
        self.problem = schedule.problem
        self.rounds = schedule.rounds
        self.needs = [needs(rounds, self.problem.chunks) for rounds in schedule.rounds]
        self.held = [self._input(rank) for rank in range(self.problem.ranks)]
        self.wires = {}  # (source, target) -> values on their way, in order
        self.left = {
            (rank, index, kind, at)
            for rank, rounds in enumerate(self.rounds)
            for index, each in enumerate(rounds)
            for kind in ("sends", "receives")
            for at in range(len(getattr(each, kind)))
        }

    def _input(self, rank):
        if self.problem.collective == "broadcast" and rank != self.problem.root:
            return [None] * self.problem.chunks
        if self.problem.collective == "all_gather":
            own = set(members(self.problem.block(rank)))
            return [str(rank) if chunk in own else None for chunk in range(self.problem.chunks)]
        return [str(rank)] * self.problem.chunks

    def may(self, step):
        rank, index, kind, at = step
        message = getattr(self.rounds[rank][index], kind)[at]
        earlier = [
            other
            for other in self.left
            if other[0] == rank and other[2] == kind and (other[1], other[3]) < (index, at)
        ]
        if any(
            getattr(self.rounds[rank][other[1]], kind)[other[3]].peer == message.peer
            for other in earlier
        ):
            return False  # the order of a pair
        needed = getattr(self.needs[rank][index], kind)[at]
        if needed != NOTHING and any(other[:2] == (rank, needed) for other in self.left):
            return False
        if kind == "sends":
            return True
        if not self.wires.get((message.peer, rank)):
            return False
        # Reductions of a round in the listed order, and after the sends that read their place.
        same = [other for other in self.left if other[:2] == (rank, index)]
        return not any(
            (kind_there == "receives" and there < at)
            or (
                kind_there == "sends"
                and overlap(self.rounds[rank][index].sends[there].chunks, message.chunks)
                is not None
            )
            for _, _, kind_there, there in same
        )

    def do(self, step):
        rank, index, kind, at = step
        self.left.discard(step)
        message = getattr(self.rounds[rank][index], kind)[at]
        held = self.held[rank]
        if kind == "sends":
            values = [held[chunk] for chunk in members(message.chunks)]
            self.wires.setdefault((rank, message.peer), []).append(values)
            return
        values = self.wires[message.peer, rank].pop(0)
        for chunk, value in zip(members(message.chunks), values, strict=True):
            if message.combine is Combine.COPY:
                held[chunk] = value
            elif message.combine is Combine.RECEIVED_LEFT:
                held[chunk] = f"({value}+{held[chunk]})"
            else:
                held[chunk] = f"({held[chunk]}+{value})"


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_order_that_needs_allow_gives_the_proved_expressions(name, data):
    algorithm = ALGORITHMS[name]
    collective = data.draw(st.sampled_from(sorted(algorithm.collectives)))
    topology = Topology.of(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=5)))
    root = data.draw(st.integers(0, topology.ranks - 1)) if collective in ROOTED else 0
    problem = algorithm.problem(collective, topology, root=root, segments=2, overlap=2)
    schedule = algorithm.schedule(problem)
    expected = prove(schedule).expressions
    machine = Machine(schedule)
    draw = data.draw(st.randoms(use_true_random=False))
    while machine.left:
        ready = [step for step in sorted(machine.left) if machine.may(step)]
        assert ready, "everyone waits"
        machine.do(draw.choice(ready))
    for rank, held in enumerate(machine.held):
        if collective == "reduce" and rank != root:
            continue
        promised = range(problem.chunks)
        if collective == "reduce_scatter":
            promised = members(problem.block(rank))
        for chunk in promised:
            assert held[chunk] == expected[chunk]


def test_a_pipelined_ring_waits_for_its_own_segment_only():
    algorithm = ALGORITHMS["pipelined_ring"]
    problem = algorithm.problem("all_reduce", Topology.flat(4), segments=3)
    found = needs(algorithm.rounds(problem, 1), problem.chunks)
    # What is sent in round k came, as the same segment, in round k − 3; the first three are own.
    assert [each.sends for each in found] == [(max(NOTHING, at - 3),) for at in range(18)]


def test_scratch_of_open_rounds_adds_up():
    algorithm = ALGORITHMS["pipelined_ring"]
    problem = algorithm.problem("all_reduce", Topology.flat(4), segments=3)
    rounds, bounds = algorithm.rounds(problem, 0), problem.bounds(240)
    assert [scratch_ahead(rounds, bounds, ahead) for ahead in (1, 2, 9, 99)] == [20, 40, 180, 180]
    assert scratch_ahead((), bounds, 2) == 0
