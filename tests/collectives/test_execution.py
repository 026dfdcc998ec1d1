"""The executor, all ranks in one process: messages that travel in any order MPI allows give right results.

A message is copied from the sender's own memory at some moment between its start and its end, so that one
changed too early, or received too early, is seen.
"""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from doubletime.collectives.catalogue import ALGORITHMS, find
from doubletime.collectives.choice import Choice, course, problem
from doubletime.collectives.execution import Execution
from doubletime.collectives.schedule import BLOCKED, ROOTED
from doubletime.collectives.topology import Topology


class Network:
    """Channels between pairs of ranks, each in order; `step` moves one message, or ends one."""

    def __init__(self, chance):
        self.chance = chance
        self.sends, self.receives = defaultdict(list), defaultdict(list)
        self.copied = []

    def step(self):
        ready = [pair for pair, sent in self.sends.items() if sent and self.receives[pair]]
        if ready and (not self.copied or self.chance.random() < 0.6):
            pair = self.chance.choice(sorted(ready))
            (out, sender), (into, receiver) = self.sends[pair].pop(0), self.receives[pair].pop(0)
            assert out.shape == into.shape, f"{pair}: sent {out.shape}, expected {into.shape}"
            into.copy_(out)
            receiver.append(True)
            self.copied.append(sender)
        elif self.copied:
            self.copied.pop(self.chance.randrange(len(self.copied))).append(True)

    @property
    def is_empty(self):
        return not (any(self.sends.values()) or any(self.receives.values()) or self.copied)


class Wire:
    def __init__(self, network, rank):
        self.network, self.rank = network, rank

    def send(self, part, peer):
        over = []
        self.network.sends[self.rank, peer].append((part, over))
        return lambda: bool(over)

    def receive(self, part, peer):
        over = []
        part.fill_(float("nan"))  # what lies there until the message comes is nobody's
        self.network.receives[peer, self.rank].append((part, over))
        return lambda: bool(over)

    def flush(self):
        pass


def run_all(choice, collective, topology, root, tensors, ahead, seed):
    """Every rank's execution, advanced by chance until all are over."""
    chance = random.Random(seed)
    network = Network(chance)
    waiting = {}
    for rank, tensor in enumerate(tensors):
        steps = course(
            choice, collective, topology, root, rank, tensor.numel(), tensor.element_size()
        )
        execution = Execution(
            steps, tensor, Wire(network, rank), lambda held, got, _how: held.add_(got), ahead
        )
        waiting[rank] = (execution.run(), None)
    for _ in range(200_000):
        if not waiting:
            assert network.is_empty, "messages were left over"
            return
        network.step()
        rank = chance.choice(list(waiting))
        operation, condition = waiting[rank]
        try:
            if condition is None or condition():
                waiting[rank] = (operation, next(operation))
        except StopIteration:
            del waiting[rank]
    raise AssertionError(f"{choice} {collective}: ranks {sorted(waiting)} never ended")


@st.composite
def _cases(draw):
    name = draw(st.sampled_from([*ALGORITHMS, "two_level:linear+ring", "two_level:ring+linear"]))
    collective = draw(st.sampled_from(sorted(find(name).collectives)))
    hosts = draw(st.lists(st.integers(0, 3), min_size=1, max_size=9))
    choice = Choice(name, draw(st.integers(8, 64)), draw(st.integers(0, 3)))
    root = draw(st.integers(0, len(hosts) - 1)) if collective in ROOTED else 0
    return (
        choice, collective, Topology.of(hosts), root, draw(st.integers(0, 40)),
        draw(st.integers(1, 6)), draw(st.integers(0, 1 << 30)),
    )  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(_cases())
def test_any_order_of_messages_gives_the_right_result(case):
    choice, collective, topology, root, elements, ahead, seed = case
    ranks = topology.ranks
    if collective in BLOCKED:
        elements *= ranks
    given_ = [torch.arange(elements, dtype=torch.float64) + 100 * rank for rank in range(ranks)]
    tensors = [tensor.clone() for tensor in given_]
    blocks = [slice(r * elements // ranks, (r + 1) * elements // ranks) for r in range(ranks)]
    if collective == "all_gather":
        for rank, tensor in enumerate(tensors):
            for other, block in enumerate(blocks):
                if other != rank:
                    tensor[block] = float("nan")
    run_all(choice, collective, topology, root, tensors, ahead, seed)
    total = torch.stack(given_).sum(0)
    for rank, tensor in enumerate(tensors):
        if collective == "all_reduce" or (collective == "reduce" and rank == root):
            assert torch.equal(tensor, total), rank
        elif collective == "broadcast":
            assert torch.equal(tensor, given_[root]), rank
        elif collective == "reduce_scatter":
            assert torch.equal(tensor[blocks[rank]], total[blocks[rank]]), rank
        elif collective == "all_gather":
            for other, block in enumerate(blocks):
                assert torch.equal(tensor[block], given_[other][block]), (rank, other)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_ranks_hold_the_same_bits(name):
    """Sums of floats depend on their order; it must be the same on every rank, and in every run."""
    generator = torch.Generator().manual_seed(1)
    given_ = [torch.randn(37, generator=generator) for _ in range(7)]
    runs = []
    for seed in (1, 2):
        tensors = [tensor.clone() for tensor in given_]
        topology = Topology.of("aabbbcc")
        run_all(Choice(name, 16), "all_reduce", topology, 0, tensors, 4, seed)
        runs += tensors
    for one, other in pairwise(runs):
        assert torch.equal(one, other)


def test_pipelined_messages_are_no_larger_than_a_segment():
    topology = Topology.flat(4)
    asked = problem(Choice("pipelined_ring", 1000), "all_reduce", topology, 0, 40_000)
    bounds = asked.bounds(10_000)
    assert max(stop - start for start, stop in pairwise(bounds)) * 4 <= 1000


def test_two_level_is_cut_into_parts_that_fit_its_size():
    topology = Topology.even(2, 2)
    small, large = (
        problem(Choice("two_level"), "all_reduce", topology, 0, nbytes)
        for nbytes in (1000, 64 << 20)
    )
    assert (small.overlap, large.overlap) == (1, 4)
