"""A rank's share of its host's cores."""

import os

from hypothesis import given
from hypothesis import strategies as st

from doubletime.cluster import cores
from doubletime.environment import own_cores


@given(st.lists(st.integers(0, 999), unique=True, max_size=64), st.integers(1, 70))
def test_shares_are_alike_apart_and_as_large_as_can_be(own, ranks):
    shares = [cores.share(own, rank, ranks) for rank in range(ranks)]
    assert {len(share) for share in shares} == {len(own) // ranks}
    assert len(frozenset().union(*shares)) == sum(map(len, shares)) > len(own) - ranks
    assert frozenset().union(*shares) <= set(own)


def place(rank, size):
    return {
        "PMI_RANK": "0", "PMI_SIZE": "9", "MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": str(size)
    }  # fmt: skip


def test_threads_are_divided_among_the_ranks_of_this_host():
    assert cores.take_share(place(0, 1)) == {"OMP_NUM_THREADS": str(own_cores())}
    many = cores.take_share(place(3, own_cores() + 1))
    assert many == {"OMP_NUM_THREADS": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
    assert cores.take_share(place(0, 1) | {"OMP_NUM_THREADS": "3"}) == {}


def test_who_does_not_know_its_neighbours_takes_nothing():
    assert cores.take_share({}) == {}
    assert cores.take_share({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}) == {}


def test_binds_only_where_asked():
    before = os.sched_getaffinity(0)
    try:
        cores.take_share(place(0, 1))
        assert os.sched_getaffinity(0) == before
        ranks = len(before)
        taken = set()
        for rank in range(ranks):
            cores.take_share(place(rank, ranks) | {"DOUBLETIME_BIND": "1"})
            mine = os.sched_getaffinity(0)
            assert len(mine) == 1
            taken |= mine
            os.sched_setaffinity(0, before)
        assert taken == before
    finally:
        os.sched_setaffinity(0, before)
