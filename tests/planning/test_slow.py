"""Slow links are told from those that noise makes look different."""

from itertools import combinations

from doubletime.collectives.profile import Estimate, Pair
from doubletime.planning.slow import blamed, judged


def pair(one, other, *, alpha=50e-6, beta=8e-9, width=0.05):
    alphas, betas = (Estimate(v, v * (1 - width), v * (1 + width)) for v in (alpha, beta))
    return Pair((one, other), alphas, betas, 0.02)


def cluster(hosts, **changed):
    """All pairs; `changed` gives a host's or a pair's ("a_b") properties."""
    found = []
    for one, other in combinations(hosts, 2):
        kind = {
            **changed.get(one, {}),
            **changed.get(other, {}),
            **changed.get(f"{one}_{other}", {}),
        }
        found.append(pair(one, other, **kind))
    return judged(found)


def test_like_links_are_not_blamed():
    assert blamed(cluster("abcd")) == []
    assert blamed(cluster("abcd", a={"beta": 10e-9}, c_d={"beta": 7e-9})) == []


def test_one_slow_link_is_named_by_its_two_ends():
    (slow,) = blamed(cluster("abcd", b_d={"beta": 80e-9}))
    assert slow.hosts == ("b", "d")
    assert 9.9 < slow.slowdown < 10.1


def test_a_slow_host_is_named_once_and_not_its_neighbours():
    for hosts in ("abc", "abcd", "abcdefgh"):
        (slow,) = blamed(cluster(hosts, c={"beta": 80e-9}))
        assert slow.hosts == ("c",)
        assert slow.slowdown > 9.9


def test_what_noise_leaves_open_is_not_blamed():
    assert blamed(cluster("abcd", b_d={"beta": 16e-9, "width": 0.5})) == []


def test_a_distant_link_is_named_by_its_latency():
    (slow,) = blamed(cluster("abcd", a_b={"alpha": 10e-3}))
    assert slow.hosts == ("a", "b")
    assert slow.slowdown > 100
    # Tenths of a millisecond tell of busy hosts, not of links.
    assert blamed(cluster("abcd", a_b={"alpha": 500e-6})) == []


def test_one_link_has_nothing_to_be_compared_with():
    assert blamed(cluster("ab", a={"beta": 1.0})) == []
