"""Meshes: which rank stands where, and what is refused."""

import pytest
from hypothesis import given
from hypothesis.strategies import integers

from doubletime.errors import MeshError
from doubletime.training.mesh import AXES, Mesh

sizes = integers(1, 5)


@given(sizes, sizes, sizes, sizes)
def test_each_rank_has_a_place_of_its_own(dp, fsdp, pp, tp):
    mesh = Mesh(dp, fsdp, pp, tp)
    assert mesh.size == dp * fsdp * pp * tp
    places = [tuple(mesh.coordinate(rank, axis) for axis in AXES) for rank in range(mesh.size)]
    assert places == sorted(set(places))  # outer to inner, as a DeviceMesh numbers them
    assert all(place < (pp, dp, fsdp, tp) or mesh.size == 1 for place in places)
    for rank, (_, replica, shard, _) in enumerate(places):
        assert mesh.data_rank(rank) == replica * fsdp + shard


@given(sizes, sizes, sizes, sizes)
def test_data_is_divided_among_ranks_that_differ_in_nothing_else(dp, fsdp, pp, tp):
    mesh = Mesh(dp, fsdp, pp, tp)
    groups = mesh.groups("dp", "fsdp")
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
    for group in groups:
        assert [mesh.data_rank(rank) for rank in group] == list(range(mesh.data_size))
    assert all(len(group) == tp for group in mesh.groups("tp"))
    assert mesh.groups(*AXES) == [list(range(mesh.size))]


@given(sizes, sizes, sizes, sizes)
def test_a_mesh_is_read_as_it_is_written(dp, fsdp, pp, tp):
    mesh = Mesh(dp, fsdp, pp, tp)
    assert Mesh.parse(str(mesh), mesh.size) == mesh


def test_a_text_names_axes_in_any_order():
    assert Mesh.parse(" tp=2, dp = 3") == Mesh(dp=3, tp=2)
    assert Mesh.of("tp=2,dp=3", 6) == Mesh.of(Mesh(dp=3, tp=2), 6) == Mesh(dp=3, tp=2)
    assert Mesh.of(None, 4) == Mesh(dp=4)
    assert str(Mesh()) == "dp=1"
    assert str(Mesh(dp=2, pp=3)) == "pp=3,dp=2"
    assert Mesh(dp=4).is_data_parallel
    assert not Mesh(dp=4, tp=2).is_data_parallel


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        ("", "mesh '' has no axis", "axes are"),
        ("dp", "mesh 'dp' gives dp no number of ranks", "such as dp=2"),
        ("dp=0", "mesh 'dp=0' gives dp no number of ranks", "such as"),
        ("dp=-1", "mesh 'dp=-1' gives dp no number of ranks", "such as"),
        ("dp=two", "mesh 'dp=two' gives dp no number of ranks", "such as"),
        ("dp=²", "mesh 'dp=²' gives dp no number of ranks", "such as"),
        ("dp=2,", "mesh 'dp=2,' has no axis", "axes are"),
        ("ddp=2", "mesh 'ddp=2' has an axis 'ddp'", "did you mean dp?"),
        ("dp=2,dp=2", "mesh 'dp=2,dp=2' gives dp twice", "give dp once"),
        ("dp=3,pp=2", 'mesh "pp=2,dp=3" needs 6 ranks, this job has 4', "--mesh pp=2,dp=2, or start 6"),
        ("tp=3", 'mesh "tp=3" needs 3 ranks, this job has 4', "start 3 ranks"),
        ("dp=1", 'mesh "dp=1" needs 1 rank, this job has 4', "--mesh dp=4, or start 1 rank"),
    ],
)  # fmt: skip
def test_a_mesh_that_is_none_is_refused(text, what, remedy):
    with pytest.raises(MeshError) as caught:
        Mesh.parse(text, 4)
    assert caught.value.what == what
    assert caught.value.remedy.startswith(remedy)


def test_axes_have_ranks():
    for size in (0, -2, 1.5, True, "2"):
        with pytest.raises(MeshError, match=r"^axis tp of the mesh is"):
            Mesh(tp=size)
