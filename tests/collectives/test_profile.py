"""Profiles are read as they were written; what is broken is named."""

import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, lists, none, one_of, sampled_from, tuples

from doubletime.collectives.cluster import Cluster
from doubletime.collectives.knowledge import ASSUMED
from doubletime.collectives.model import Link
from doubletime.collectives.profile import Estimate, Level, Pair, Profile, parse
from doubletime.errors import DataError

times = floats(0, 1e3)
estimates = tuples(times, times, times).map(lambda three: Estimate(*three))
levels = tuples(estimates, estimates, times, times, estimates, estimates).map(
    lambda six: Level(*six)
)
CLUSTER = Cluster(("node1", "node2"), (2, 1), "MPICH 5.0.2", "mpi")


@given(
    inside=one_of(none(), levels),
    between=one_of(none(), levels),
    gamma=estimates,
    pairs=lists(tuples(estimates, estimates, times, floats(1, 100)), max_size=3),
)
def test_what_is_written_is_read(inside, between, gamma, pairs):
    found = tuple(Pair(("node1", "node2"), *each) for each in pairs)
    profile = Profile(CLUSTER, inside, between, gamma, found, "2026-01-31T12:00:00+00:00", "0.1.0")
    assert parse(profile.text(), "p.toml") == profile
    parameters = profile.parameters(ASSUMED)
    assert parameters.gamma_s_per_byte == gamma.value
    assert parameters.inside == (inside.link if inside else ASSUMED.inside)
    assert parameters.between == (between.link if between else ASSUMED.between)


BY_HAND = """
hosts = ["node1", "node2"]
ranks_per_host = [2, 1]
mpi = "MPICH 5.0.2"
backend = "mpi"
gamma_s_per_byte = 1e-10

[between]
alpha_s = 50e-6
beta_s_per_byte = 8e-9
"""


def test_a_profile_by_hand_needs_little():
    profile = parse(BY_HAND, "mine.toml")
    assert profile.cluster == CLUSTER
    assert profile.between is not None
    assert profile.between.link == Link(50e-6, 8e-9)
    assert profile.inside is None


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("gamma_s_per_byte = 1e-10", "", "does not say 'gamma_s_per_byte'"),
        ("beta_s_per_byte = 8e-9", "", "does not say 'beta_s_per_byte'"),
        ("beta_s_per_byte = 8e-9", 'beta_s_per_byte = "fast"', "'fast' is not a number"),
        ("alpha_s = 50e-6", "alpha_s = -1.0", "-1.0 is not a time"),
        ("alpha_s = 50e-6", "alpha_s = nan", "nan is not a time"),
        ("alpha_s = 50e-6", "alpha_s = true", "True is not a number"),
        ("[2, 1]", "[2]", "2 hosts, and ranks_per_host = [2]"),
        ("[2, 1]", "[2, 0]", "ranks_per_host = [2, 0]"),
        ("[between]", "[between", "mine.toml is not a cluster profile"),
        ("[between]", "between = 3\n[other]", "mine.toml is not a cluster profile"),
        ("\nhosts", '\nkind = "doubletime decision table"\nhosts', "calls itself"),
    ],
)
def test_what_is_broken_is_named(old, new, what):
    assert old in BY_HAND
    with pytest.raises(DataError, match=r"mine\.toml") as caught:
        parse(BY_HAND.replace(old, new, 1), "mine.toml")
    assert what in caught.value.what
    assert "bench links" in (caught.value.remedy or "")


hosts = lists(sampled_from("abcd"), min_size=1, max_size=8)


@given(ranks=hosts, taken=integers(1, 8))
def test_a_cluster_knows_jobs_on_some_of_its_hosts(ranks, taken):
    whole = Cluster.of(ranks, "MPICH 5.0.2", "mpi")
    assert sum(whole.ranks_per_host) == len(ranks)
    assert whole.difference(Cluster.of(ranks[:taken], "MPICH 5.1.0", "mpi")) is None


@pytest.mark.parametrize(
    ("here", "why"),
    [
        (Cluster(("node3", "node1"), (1, 1), "MPICH 5.0.2", "mpi"), "this job runs on node3"),
        (Cluster(("node1",), (2,), "Open MPI 5.0.11", "mpi"), "runs with Open MPI 5.0.11"),
        (Cluster(("node1",), (2,), "", "gloo"), "this group's backend is gloo"),
    ],
)
def test_another_cluster_is_told_by_hosts_mpi_and_backend(here, why):
    assert why in (CLUSTER.difference(here) or "")
