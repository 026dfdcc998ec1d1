"""Switches: what is out of range is refused; learning rates follow the published rules."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from doubletime.errors import MeshError, TrainingError
from doubletime.training.builtin import BUILTIN
from doubletime.training.learning_rate import Rate, scale, warm
from doubletime.training.loop import run
from doubletime.training.pipeline.schedules import SCHEDULES
from doubletime.training.recipe import Recipe
from doubletime.training.switches import Switches


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"scale_lr": "cubic"}, "scale_lr is 'cubic'"),
        ({"optimizer": "adam", "lr": 1.0}, "optimizer is 'adam'"),
        ({"optimizer": "lars"}, "lars needs a learning rate of its own"),
        ({"precision": "fp8"}, "precision is 'fp8'"),
        ({"accumulate": 0}, "accumulate is 0"),
        ({"accumulate": 1.5}, "accumulate is 1.5"),
        ({"clip_norm": 0}, "clip_norm is 0"),
        ({"clip_norm": math.nan}, "clip_norm is nan"),
        ({"lr": -0.1}, "lr is -0.1"),
        ({"check_every": -1}, "check_every is -1"),
        ({"warmup": "soon"}, "warmup is 'soon'"),
        ({"warmup": -1}, "warmup is -1"),
        ({"warmup": "1.5steps"}, "warmup is '1.5steps'"),
        ({"warmup": "inf"}, "warmup is 'inf'"),
        ({"schedule": "gpip"}, "schedule is 'gpip'"),
        ({"microbatches": -1}, "microbatches is -1"),
        ({"on_nan": "hope"}, "on_nan is 'hope'"),
        ({"on_nan": "skip:0"}, "on_nan is 'skip:0'"),
    ],
)
def test_what_is_out_of_range_is_refused(options, what):
    with pytest.raises(TrainingError) as caught:
        Switches(**options)
    assert caught.value.what.startswith(what)
    assert caught.value.remedy


def test_schedules_are_those_that_pipelines_have():
    assert all(Switches(schedule=name).turned() == {"schedule": name} for name in SCHEDULES)


def test_a_default_that_is_given_is_no_switch():
    assert Switches(warmup="0", schedule=None, accumulate=1).turned() == {}


@pytest.mark.parametrize("options", [{"schedule": "gpipe"}, {"microbatches": 2}])
def test_a_pipelines_switches_want_a_pipeline(options):
    task = BUILTIN["digits"]()
    recipe = Recipe.of(task, epochs=1, switches=Switches(**options))
    with pytest.raises(MeshError, match=f"--{next(iter(options))} is a pipeline's"):
        run(task, recipe, lambda _: None)


def test_numbers_are_read_in_their_units():
    assert Switches(warmup="0.5").warmup_steps(10) == 5
    assert Switches(warmup=2).warmup_steps(10) == 20
    assert Switches(warmup="7steps").warmup_steps(10) == 7
    assert [Switches(on_nan=text).skips for text in ("stop", "skip", "skip:3")] == [0, 10, 3]
    assert Switches(accumulate=2, lr=0.5).turned() == {"accumulate": 2, "lr": 0.5}
    assert Switches().turned() == {}


def test_rules_of_scaling():
    assert scale("linear", 8192, 256) == 32
    assert scale("sqrt", 4096, 256) == 4
    assert scale("none", 4096, 256) == 1


@given(steps=st.integers(1, 50), target=st.floats(0.01, 64))
def test_a_warm_up_rises_by_equal_amounts_to_its_target(steps, target):
    factors = [warm(step, steps, target) for step in range(steps + 2)]
    assert factors[0] == pytest.approx(1 if target > 1 else target / steps)
    assert factors[steps:] == [target, target]
    rises = [after - before for before, after in itertools.pairwise(factors[: steps + 1])]
    assert rises == pytest.approx([rises[0]] * steps, abs=1e-9)
    assert min(rises) >= -1e-12


def test_a_schedule_never_sees_the_factors():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    switches = Switches(scale_lr="linear", warmup="4steps", lr=0.2)
    rate = Rate(switches, optimizer, global_batch=8, own_batch=2, steps_per_epoch=10)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)  # recursive in the rate
    used = []
    for step in range(6):
        parameter.grad = torch.ones(1)
        before = float(parameter.detach())
        with rate.applied(step):
            optimizer.step()
        used.append(before - float(parameter.detach()))
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**step)
        schedule.step()
    # 0.2 in place of 0.1; times 1 to 4 over 4 steps; times a half each step.
    factors = [1, 1.75, 2.5, 3.25, 4, 4]
    wanted = [0.2 * factor * 0.5**step for step, factor in enumerate(factors)]
    assert used == pytest.approx(wanted, rel=1e-5)


def test_a_rate_of_0_cannot_be_scaled():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
    with pytest.raises(TrainingError, match="learning rate 0, which cannot be scaled to 1"):
        Rate(Switches(lr=1.0), optimizer, 1, 1, 1)
