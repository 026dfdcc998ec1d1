"""Which MPI it is, and whether it is the launcher's."""

import pytest

from doubletime.environment import Place
from doubletime.errors import LauncherMismatchError
from doubletime.mpi.library import check_world, name_version


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("MPICH Version:      5.0.2\nMPICH Release date:", "MPICH 5.0.2"),
        ("Open MPI v5.0.11, package: Open MPI x@y Distribution", "Open MPI 5.0.11"),
        ("Intel(R) MPI Library 2021.19 for Linux* OS\n", "Intel MPI 2021.19"),
        ("MVAPICH2 Version      :\t2.3.7\nMVAPICH2 Release", "MVAPICH 2.3.7"),
        ("Some MPI 1.0\nmore", "Some MPI 1.0"),
    ],
)
def test_names_of_libraries(text, name):
    assert name_version(text) == name


def test_a_launcher_that_agrees_is_accepted():
    check_world(Place("Open MPI", True, 1, 4, None, None), 1, 4, "Open MPI 5")
    check_world(None, 0, 1, "MPICH 5")


def test_every_rank_believing_it_is_0_of_1_is_refused():
    place = Place("Open MPI", True, 2, 4, None, None)
    with pytest.raises(
        LauncherMismatchError, match=r"rank 2 of 4, but MPICH 5.*rank 0 of 1"
    ) as said:
        check_world(place, 0, 1, "MPICH 5")
    assert "doubletime run -n 4" in said.value.remedy
