"""Every error says what was wrong and what mends it, and crosses processes whole."""

import copy
import pickle

import pytest

from doubletime import errors

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type)]


def test_all_errors_are_of_one_tree():
    assert len(ALL) > 5
    assert all(issubclass(kind, errors.DoubletimeError) for kind in ALL)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("remedy", [None, "pip install mpich"])
def test_an_error_keeps_its_parts_through_pickle_and_copy(kind, remedy):
    error = kind("4 ranks, but 1 was found", remedy)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert (twin.what, twin.remedy, str(twin)) == (error.what, error.remedy, str(error))


def test_the_remedy_stands_on_a_line_of_its_own():
    assert str(errors.DoubletimeError("no MPI", "pip install mpich")).splitlines() == [
        "no MPI",
        "  remedy: pip install mpich",
    ]
    assert str(errors.DoubletimeError("no MPI")) == "no MPI"


def test_the_docstring_lists_every_error():
    assert errors.__doc__ is not None
    missing = [kind.__name__ for kind in ALL if kind.__name__ not in errors.__doc__]
    assert not missing


def test_errors_are_caught_by_the_builtin_names_people_expect():
    assert issubclass(errors.UnitError, ValueError)
    assert issubclass(errors.UnsupportedError, TypeError)
    assert issubclass(errors.DoubletimeError, RuntimeError)
