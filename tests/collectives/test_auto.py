"""`auto`: by the table, by the model, native where nothing is known; never two choices on two ranks."""

import os

import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers, sampled_from

from checks.report import free_port
from doubletime.collectives.auto import SEGMENTS_NBYTES, by_model, candidates
from doubletime.collectives.catalogue import ALGORITHMS
from doubletime.collectives.choice import Choice
from doubletime.collectives.cluster import Cluster
from doubletime.collectives.knowledge import ASSUMED
from doubletime.collectives.table import Decision, Measured, Table
from doubletime.collectives.topology import Topology
from doubletime.mpi import library
from ranks import run_ranks

KIB, MIB = 1 << 10, 1 << 20
topologies = sampled_from(
    [
        Topology.flat(2),
        Topology.flat(5),
        Topology.even(2, 2),
        Topology((0, 0, 1)),
        Topology.flat(40),
    ]
)


@settings(max_examples=40, deadline=None)
@given(topology=topologies, power=integers(0, 24), which=sampled_from(["all_reduce", "broadcast"]))
def test_the_model_chooses_among_what_can_do_it(topology, power, which):
    choice = by_model(which, topology, 1 << power, ASSUMED)
    if 1 << power < 64 * KIB:
        assert choice.algorithm == "native"
    else:
        assert which in ALGORITHMS[choice.algorithm].collectives


def test_on_one_host_native_is_taken_unmeasured():
    assert by_model("all_reduce", Topology.one_host(4), 16 * MIB, ASSUMED) == Choice("native")


def test_between_hosts_large_messages_go_by_what_sends_least():
    best = by_model("all_reduce", Topology.flat(4), 16 * MIB, ASSUMED)
    assert best.algorithm == "pipelined_ring"
    assert by_model("all_reduce", Topology.even(4, 2), 16 * MIB, ASSUMED).algorithm == "two_level"


def test_segments_larger_than_a_part_are_tried_once():
    def segments(nbytes):
        found = candidates("all_reduce", Topology.flat(4), nbytes)
        return [each.segment_nbytes for each in found if each.algorithm == "pipelined_ring"]

    assert segments(MIB) == [256 * KIB]
    assert segments(MIB + 4) == [256 * KIB, 512 * KIB]
    assert segments(64 * MIB) == list(SEGMENTS_NBYTES)
    names = [each.algorithm for each in candidates("all_reduce", Topology.flat(4), MIB)]
    assert "two_level" not in names


PROGRAM = """
    import os, sys, warnings
    import torch, torch.distributed as dist
    import doubletime as dt
    from doubletime.collectives.auto import choose
    from doubletime.collectives.party import party_of

    backend = sys.argv[1]
    if backend == "gloo":
        os.environ.update(
            RANK=os.environ["PMI_RANK"], WORLD_SIZE=os.environ["PMI_SIZE"],
            MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2],
        )
    dist.init_process_group(backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank != 0:
        os.environ["DOUBLETIME_PROFILE"] = "/nowhere/profile.toml"  # theirs is never looked at
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for nbytes in (64, 4096, 1 << 20, 4 << 20):
            tensor = torch.full((nbytes // 4,), float(rank + 1))
            dt.all_reduce(tensor)
            assert (tensor == ranks * (ranks + 1) / 2).all()
    party = party_of(None)
    names = [choose(party, "all_reduce", nbytes).algorithm for nbytes in (64, 4096, 1 << 20, 4 << 20)]
    told = [str(each.message) for each in caught if "is not used" in str(each.message)]
    lines: list = [None] * ranks
    dist.all_gather_object(lines, (names, told))
    if rank == 0:
        print(*lines[0][0])
        for line in lines[0][1]:
            print(line)
        assert all(names == lines[0][0] for names, _ in lines), lines
        assert not any(told for _, told in lines[1:]), lines
    dist.destroy_process_group()
"""


@pytest.fixture
def host():
    return os.uname().nodename


def run_auto(tmp_path, table=None, profile=None, backend="mpi", port=""):
    file = tmp_path / "profile.toml"
    if profile is not None:
        file.write_text(profile)
    if table is not None:
        text = table if isinstance(table, str) else table.text()
        (tmp_path / "profile.table.toml").write_text(text)
    env = {"DOUBLETIME_PROFILE": str(file)}
    done = run_ranks(PROGRAM, 2, env=env, args=[backend, port]).check()
    names, *told = done.stdout.splitlines()
    return names.split(), told


def measured(cluster):
    names = {KIB: "recursive_doubling", 64 * KIB: "linear", MIB: "ring"}
    decisions = [Decision(nbytes, Choice(name), 1.0, 1.0) for nbytes, name in names.items()]
    return Table((Measured(cluster, "all_reduce", tuple(decisions), "", ""),))


def test_the_table_decides_and_rank_0_alone_reads_it(tmp_path, host):
    cluster = Cluster((host,), (2,), library.describe(), "mpi")
    names, told = run_auto(tmp_path, measured(cluster))
    assert names == ["recursive_doubling", "linear", "ring", "ring"]
    assert told == []


def test_gloo_has_choices_of_its_own(tmp_path, host):
    both = measured(Cluster((host,), (2,), "", "gloo")).measured
    cluster = Cluster((host,), (2,), library.describe(), "mpi")
    other = Measured(cluster, "all_reduce", both[0].decisions[:1], "", "")
    names, told = run_auto(tmp_path, Table((other, *both)), backend="gloo", port=str(free_port()))
    assert names == ["recursive_doubling", "linear", "ring", "ring"]
    assert told == []


def test_another_clusters_table_and_a_broken_profile_are_named_once_and_left(tmp_path):
    foreign = measured(Cluster(("node1",), (2,), library.describe(), "mpi"))
    names, told = run_auto(tmp_path, foreign, profile="[between]\nalpha_s = 1")
    assert names == ["native"] * 4
    assert len(told) == 2
    assert f"{tmp_path}/profile.toml is not used: the profile" in told[0]
    assert "does not say 'hosts'" in told[0]
    assert "profile.table.toml is not used: it was measured on node1" in told[1]
    assert "auto goes by the cost model" in told[1]


def test_unmeasured_the_named_file_is_missed_and_native_is_taken(tmp_path):
    names, told = run_auto(tmp_path)
    assert names == ["native"] * 4
    assert len(told) == 1
    assert "is not there" in told[0]
