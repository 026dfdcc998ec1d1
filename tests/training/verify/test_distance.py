"""Distances: nothing for equal tensors, the same in any unit, and never less for a larger fault."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from doubletime.training.verify import distance
from doubletime.training.verify.comparison import compare
from doubletime.training.verify.distance import distances, number_distance
from doubletime.training.verify.records import Step

numbers = st.lists(st.integers(-1000, 1000).map(float), min_size=1, max_size=8)
tensors = st.dictionaries(st.sampled_from("abc"), numbers.map(torch.tensor), min_size=1)


@given(tensors)
def test_equal_tensors_have_no_distance(state):
    assert set(distances(state, state).values()) == {0.0}


@given(tensors, st.sampled_from([1e-6, 3.0, -2.0, 1e8]))
def test_the_unit_does_not_matter(state, unit):
    moved = {name: tensor + 0.5 for name, tensor in state.items()}
    found = distances(moved, state)
    scaled = distances(
        {name: tensor.double() * unit for name, tensor in moved.items()},
        {name: tensor.double() * unit for name, tensor in state.items()},
    )
    for name, value in found.items():
        assert scaled[name] == pytest.approx(value, rel=1e-6)


@given(tensors, st.floats(0.01, 10), st.floats(1, 100))
def test_a_larger_difference_is_a_larger_distance(state, difference, times):
    near = distances({name: t.double() + difference for name, t in state.items()}, state)
    far = distances({name: t.double() + difference * times for name, t in state.items()}, state)
    assert all(far[name] >= near[name] * (1 - 1e-9) for name in near)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"a": torch.ones(3)},
        {"a": torch.tensor([1.0, math.nan])},
        {"a": torch.ones(2) * math.inf},
    ],
    ids=["missing", "shape", "nan", "infinity"],
)
def test_what_cannot_be_compared_is_infinitely_far(found):
    assert distances(found, {"a": torch.ones(2)}) == {"a": math.inf}
    assert distances({"b": torch.ones(2)}, {})["b"] == math.inf


def test_what_is_nothing_but_rounding_is_measured_by_its_neighbours():
    """A gradient of 1e-9 beside one of 1: its own digits mean nothing."""
    reference = {"weight": torch.ones(100), "bias": torch.full((4,), 1e-9)}
    found = {"weight": torch.ones(100), "bias": torch.full((4,), -1e-9)}
    assert distances(found, reference)["bias"] < 1e-5
    assert distances({**found, "bias": torch.full((4,), 1e-2)}, reference)["bias"] > 1


def test_whole_numbers_are_compared_too():
    reference = {"steps": torch.tensor(4)}
    assert distances({"steps": torch.tensor(4)}, reference) == {"steps": 0.0}
    assert distances({"steps": torch.tensor(5)}, reference) == {"steps": 0.25}


def test_a_loss_is_a_number():
    assert number_distance(1.5, 1.5) == 0
    assert number_distance(1.5, 1.0) == 0.5
    assert number_distance(math.nan, 1.0) == math.inf


def test_a_step_is_compared_by_kind_and_name(tmp_path):
    one = Step(2.0, {"w": torch.ones(2)}, {"w": torch.ones(2)}, {"m": torch.zeros(1)})
    one.save(tmp_path / "step")
    other = Step(2.0, {"w": torch.ones(2)}, {"w": torch.ones(2) * 2}, {"m": torch.zeros(1)})
    found = compare(3, other, Step.load(tmp_path / "step"))
    assert [(each.step, each.kind, each.name, each.distance) for each in found] == [
        (3, "gradients", "w", 0.0),
        (3, "parameters", "w", 1.0),
        (3, "buffers", "m", 0.0),
        (3, "loss", "", 0.0),
    ]


@pytest.mark.parametrize("ranks", [1, 2, 7, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bound_of_a_mean_holds_and_is_near(ranks, dtype):
    """Against float64: divide, then add one by one, as transports do."""
    generator = torch.Generator().manual_seed(ranks)
    gradients = [torch.randn(500, generator=generator).to(dtype) for _ in range(ranks)]
    mean = torch.zeros(500, dtype=dtype)
    for gradient in gradients:
        mean += gradient / ranks
    exact = sum(gradient.double() for gradient in gradients) / ranks
    size = sum(float(gradient.double().norm()) for gradient in gradients) / ranks
    assert float((mean.double() - exact).norm()) / size <= distance.averaging_bound(ranks, dtype)


def test_half_of_the_digits_are_the_tolerance():
    assert distance.tolerance(torch.float64) == pytest.approx(1.49e-8, rel=1e-2)
    assert distance.tolerance(torch.float32) == pytest.approx(3.45e-4, rel=1e-2)
