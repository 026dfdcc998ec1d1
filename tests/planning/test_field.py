"""What is dropped from size to size, and what stays."""

from doubletime.collectives.choice import NATIVE, Choice
from doubletime.planning.field import Field

MIB = 1 << 20
native, ring, linear = Choice(NATIVE), Choice("ring"), Choice("linear")
pipelined, tree = Choice("pipelined_ring"), Choice("binomial_tree")
everyone = [native, ring, linear, pipelined, tree]


def test_native_and_the_near_ones_go_on_the_fastest_first():
    field = Field()
    times = {native: 5.0, ring: 1.2, linear: 2.0, pipelined: 1.0, tree: 1.31}
    assert field.finalists(MIB, times) == [native, pipelined, ring]


def test_at_most_four_are_timed():
    field = Field()
    times = {choice: 1.0 + 0.01 * number for number, choice in enumerate(everyone)}
    assert len(field.finalists(MIB, times)) == 4


def test_who_falls_behind_for_good_is_dropped_and_who_catches_up_is_not():
    field = Field()
    field.finalists(MIB, {native: 1.0, ring: 4.0, linear: 3.0, pipelined: 1.1, tree: 2.5})
    field.finalists(2 * MIB, {native: 2.0, ring: 5.0, linear: 6.5, pipelined: 1.9, tree: 3.5})
    assert field.entered(everyone) == [native, ring, pipelined, tree]


def test_while_latency_decides_nobody_is_dropped():
    field = Field()
    field.finalists(MIB, {native: 1.0, ring: 4.0, linear: 3.0})
    field.finalists(2 * MIB, {native: 1.1, ring: 5.0, linear: 4.5})
    assert field.entered(everyone) == everyone


def test_native_is_never_dropped_nor_anyone_for_small_messages():
    field = Field()
    for size, time_s in ((64 << 10, 1.0), (128 << 10, 2.0), (256 << 10, 4.0)):
        field.finalists(size, {native: 3 * time_s, ring: time_s, linear: 4 * time_s})
    assert field.entered(everyone) == everyone
    for size, time_s in ((MIB, 8.0), (2 * MIB, 16.0)):
        field.finalists(size, {native: 3 * time_s, ring: time_s, linear: 4 * time_s})
    assert field.entered(everyone) == [native, ring, pipelined, tree]
