"""One rank's steps: what is not finite is named or skipped, and memory and time may be traded."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from doubletime.errors import CheckpointError, TrainingError
from doubletime.training import loop
from doubletime.training.activations import recompute_activations
from doubletime.training.alike import differences, fingerprint
from doubletime.training.assembly import compile_model
from doubletime.training.events import Notice
from doubletime.training.keeping import Keeping
from doubletime.training.precision import LossScale
from doubletime.training.recipe import Recipe
from doubletime.training.switches import Switches
from doubletime.training.task import Task

SPOILT = 5


class Small(Task):
    global_batch, epochs = 4, 2

    def model(self):
        self.made = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
        return self.made

    def train_data(self):
        inputs = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
        return inputs, torch.arange(16) % 2

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


class Spoilt(Small):
    def train_data(self):
        inputs, targets = super().train_data()
        inputs[SPOILT] = math.nan
        return inputs, targets


class Cornered(Small):
    """The root of 0 has no finite slope."""

    def loss(self, model, batch):
        return (model(batch[0]) * 0).sum().abs().sqrt()


class Steep(Small):
    """Gradients overflow fp16 at the first scales."""

    def loss(self, model, batch):
        return 8 * super().loss(model, batch)


def _run(task, keeping=None, **switches):
    events = []
    recipe = Recipe.of(task, switches=Switches(**switches))
    loop.run(task, recipe, events.append, keeping)
    return task.made.state_dict(), [each.text for each in events if isinstance(each, Notice)]


def test_a_loss_that_is_not_finite_names_its_samples():
    with pytest.raises(TrainingError) as caught:
        _run(Spoilt())
    assert "on rank 0, over samples " in caught.value.what
    assert caught.value.what.endswith(f"; {SPOILT} holds NaN or infinity")
    assert caught.value.remedy == "mend the data, or --on-nan skip"


def test_what_is_switched_on_is_told_and_recorded():
    events = []
    loop.run(Small(), Recipe.of(Small(), switches=Switches(accumulate=2)), events.append)
    assert events[0].session.endswith(", with accumulate 2")


def test_with_parts_the_samples_are_those_of_the_part():
    with pytest.raises(TrainingError, match=rf"over sample {SPOILT}; {SPOILT} holds NaN"):
        _run(Spoilt(), accumulate=4)


def test_a_gradient_that_is_not_finite_names_its_parameters():
    with pytest.raises(TrainingError) as caught:
        _run(Cornered(), clip_norm=1.0)
    assert caught.value.what == (
        "at step 1 of epoch 1 the gradient is not finite in 0.weight, 0.bias, 2.weight and 1 more"
    )
    _, told = _run(Cornered(), on_nan="skip")
    assert len(told) == 8  # every step, and nothing has changed
    with pytest.raises(TrainingError, match="8 steps were to be skipped, and 7 may be"):
        _run(Cornered(), on_nan="skip:7")


def test_a_run_goes_on_with_its_scale_and_its_skips(tmp_path):
    whole, told = _run(Steep(), Keeping(tmp_path / "a", every=1, keep=10), precision="fp16")
    assert 2 <= len(told) < 8
    assert "gradients overflow at scale 65536, the next is 32768" in told[0]
    rest, again = _run(
        Steep(),
        Keeping(tmp_path / "b", every=0, candidates=(tmp_path / "a" / "step-00000001",)),
        precision="fp16",
    )
    assert again == told[1:]
    assert all(torch.equal(value, rest[name]) for name, value in whole.items())
    _run(Spoilt(), Keeping(tmp_path / "c", every=4, keep=10), on_nan="skip:2")
    with pytest.raises(TrainingError, match="2 steps were to be skipped, and 1 may be"):
        _run(
            Spoilt(),
            Keeping(tmp_path / "d", every=0, candidates=(tmp_path / "c" / "step-00000004",)),
            on_nan="skip:1",
        )


def test_another_optimizer_does_not_go_on_with_the_first_ones_state(tmp_path):
    _run(Small(), Keeping(tmp_path / "a", every=8))
    keeping = Keeping(tmp_path / "b", every=0, candidates=(tmp_path / "a" / "step-00000008",))
    with pytest.raises(CheckpointError, match="made with the optimizer SGD, this run has Lars"):
        _run(Small(), keeping, optimizer="lars", lr=1.0)


def test_scales_follow_overflows():
    assert LossScale.of("bf16").is_fixed
    scale = LossScale.of("fp16")
    scale.shrink()
    assert (scale.scale, scale.is_least) == (2.0**15, False)
    for _ in range(2000):
        scale.grow()
    assert scale == LossScale(2.0**16, 0)
    while not scale.is_least:
        scale.shrink()
    assert scale.scale == 2.0**-14


class Blocks(nn.Module):
    """A model with blocks in a list, of more than one input."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Bilinear(4, 4, 4) for _ in range(3))

    def forward(self, inputs):
        outputs = inputs
        for block in self.blocks:
            outputs = torch.tanh(block(outputs, inputs))
        return outputs


def _deep():
    layers = [
        layer
        for _ in range(4)
        for layer in (nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Tanh())
    ]
    return nn.Sequential(*layers)


@pytest.mark.parametrize(("make", "blocks"), [(_deep, 3), (Blocks, 3)])
def test_activations_computed_twice_give_the_same_bits(make, blocks):
    states, saved = [], []
    for is_twice in (False, True):
        torch.manual_seed(0)
        model = make().double()
        if is_twice:
            assert recompute_activations(model) == blocks
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, kept=kept: (kept.append(tensor.numel()), tensor)[1], lambda each: each
        ):
            loss = model(torch.randn(64, 4, dtype=torch.float64)).square().mean()
        saved.append(sum(kept))
        loss.backward()
        gradients = {f"{name}.grad": each.grad for name, each in model.named_parameters()}
        states.append(dict(model.state_dict()) | gradients)
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert saved[1] < saved[0]


def test_a_model_without_blocks_cannot_compute_activations_twice():
    with pytest.raises(TrainingError, match="Linear holds no sequence of layers"):
        recompute_activations(nn.Linear(1, 1))


def test_without_a_compiler_nothing_is_compiled(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(TrainingError, match="--compile needs a C\\+\\+ compiler"):
        compile_model(nn.Linear(1, 1), torch.device("cpu"))


@given(st.data())
def test_a_change_of_any_bit_is_seen(data):
    dtype = data.draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.int8]))
    numbers = torch.arange(1, 12).to(dtype)
    other = numbers.clone()
    first = data.draw(st.integers(0, 9))
    if data.draw(st.booleans()):
        second = data.draw(st.integers(first + 1, 10))
        other[[first, second]] = other[[second, first]]  # a sum would not see it
    else:
        other.view(torch.uint8)[first] ^= 1 << data.draw(st.integers(0, 7))
    assert not torch.equal(fingerprint(numbers), fingerprint(other))
    assert torch.equal(fingerprint(numbers), fingerprint(numbers.clone()))


def test_what_differs_is_named_with_its_ranks():
    same = torch.ones(3, 2, dtype=torch.int64)
    other = same.clone()
    other[1, 1] = 2
    assert differences(["a", "b", "c"], [same, other, same, other]) == {"b": [1, 3]}
    assert differences(["a"], [same[:1], same[:1]]) == {}
