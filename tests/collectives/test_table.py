"""Decision tables: read as written, looked up by size and shape, broken ones named."""

import pytest
from hypothesis import given
from hypothesis.strategies import integers

from doubletime.collectives.choice import Choice
from doubletime.collectives.cluster import Cluster
from doubletime.collectives.table import Decision, Measured, Table, parse
from doubletime.errors import DataError

KIB, MIB = 1 << 10, 1 << 20
NAMES = {KIB: "native", 64 * KIB: "recursive_doubling", MIB: "ring", 4 * MIB: "pipelined_ring"}
CLUSTER = Cluster(("node1", "node2"), (2, 1), "MPICH 5.0.2", "mpi")
MEASURED = Measured(
    CLUSTER,
    "all_reduce",
    tuple(
        Decision(nbytes, Choice(name, 256 * KIB, 2), 1e-3, 2e-3) for nbytes, name in NAMES.items()
    ),
    "2026-01-31T12:00:00+00:00",
    "0.1.0",
)


def test_what_is_written_is_read():
    table = Table((MEASURED,))
    assert parse(table.text(), "t.toml") == table
    assert parse(Table().text(), "t.toml") == Table()


@pytest.mark.parametrize(
    ("nbytes", "name"),
    [
        (0, "native"),
        (4, "native"),
        (KIB, "native"),
        (KIB + 1, "recursive_doubling"),
        (64 * KIB, "recursive_doubling"),
        (MIB, "ring"),
        (MIB + 4, "pipelined_ring"),
        (16 * MIB, "pipelined_ring"),
        (16 * MIB + 1, None),
    ],
)
def test_a_size_takes_the_choice_of_the_next_larger_measured_one(nbytes, name):
    choice = MEASURED.choice(nbytes)
    assert (choice and choice.algorithm) == name


def test_far_below_all_that_was_measured_nothing_is_said():
    only_large = Measured(CLUSTER, "all_reduce", MEASURED.decisions[2:], "", "")
    assert only_large.choice(MIB // 4) == only_large.decisions[0].choice
    assert only_large.choice(MIB // 4 - 1) is None
    assert only_large.choice(4) is None


@given(nbytes=integers(64 * MIB, 1 << 40))
def test_very_large_messages_are_all_alike(nbytes):
    decision = Decision(64 * MIB, Choice("ring"), 1.0, 2.0)
    whole = Measured(CLUSTER, "all_reduce", (decision,), "", "")
    assert whole.choice(nbytes) == decision.choice


def test_a_topology_is_found_by_its_shape_whichever_host_has_more():
    table = Table((MEASURED,))
    turned = Cluster(("node2", "node1"), (1, 2), "MPICH 5.0.3", "mpi")
    assert table.find(turned, "all_reduce") is MEASURED
    assert table.find(turned, "broadcast") is None
    fewer = Cluster(("node1", "node2"), (1, 1), "MPICH 5.0.2", "mpi")
    assert table.find(fewer, "all_reduce") is None
    assert table.difference(fewer) is None  # this cluster's table, though not for so few ranks
    assert "node7" in (table.difference(Cluster(("node7",), (3,), "MPICH 5", "mpi")) or "")


def test_new_measurements_replace_those_of_the_same_and_leave_others():
    other = Measured(
        Cluster(("node1",), (2,), "MPICH 5.0.2", "mpi"), "all_reduce", MEASURED.decisions, "", ""
    )
    newer = Measured(CLUSTER, "all_reduce", MEASURED.decisions[:1], "2027", "0.2.0")
    assert Table((MEASURED, other)).with_new(newer).measured == (other, newer)


TEXT = Table((MEASURED,)).text()


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('"ring"', '"rings"', "no reduction algorithm is called 'rings'"),
        ('"all_reduce"', '"reduce"', "recursive_doubling does not define reduce"),
        ("segment_nbytes = 262144", "segment_nbytes = 0", "segments of 0 bytes"),
        ("nbytes = 1024\n", "", "does not say 'nbytes'"),
        ('kind = "doubletime decision table"', "", "its kind is None"),
        ("[[table]]", "[[table", "is not a decision table"),
        ("nbytes = 1024\n", 'nbytes = "much"\n', "is not a decision table"),
    ],
)
def test_what_is_broken_is_named(old, new, what):
    assert old in TEXT
    with pytest.raises(DataError, match=r"t\.toml") as caught:
        parse(TEXT.replace(old, new, 1), "t.toml")
    assert what in caught.value.what
