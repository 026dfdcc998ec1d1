"""Which layers ranks divide, what stays whole, and what is said of it; nothing is run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel
from torch.nn import functional

from doubletime.errors import MeshError
from doubletime.training.builtin import BUILTIN
from doubletime.training.tensor_parallel.derive import derive
from doubletime.training.tensor_parallel.plan import Plan, Role
from doubletime.training.tensor_parallel.written import written


def _roles(plan: Plan) -> dict[str, Role]:
    return {split.module: split.part.role for split in plan.splits}


def _reason(plan: Plan, module: str) -> str:
    return next(kept.reason for kept in plan.kept if kept.module == module)


class _Net(nn.Module):
    """A forward of two layers, with something between them, beside a pair that can be divided."""

    def __init__(self, between: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.between = between
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.norm, self.drop = nn.LayerNorm(16), nn.Dropout(0.1)
        apart = nn.LayerNorm(8)
        self.other = nn.Sequential(apart, nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.other(self.second(self.between(self, self.first(x))))
        return y


def test_pairs_are_divided_first_by_outputs_then_by_inputs() -> None:
    plan = derive(_Net(lambda _, x: functional.gelu(2 * x.tanh() + 1)), 4)
    assert _roles(plan) == {
        "first": Role.OUTPUTS,
        "second": Role.INPUTS,
        "other.1": Role.OUTPUTS,
        "other.3": Role.INPUTS,
    }
    assert [kept.module for kept in plan.kept] == ["norm", "other.0"]
    whole = (16 * 8 + 16 + 8 * 16) // 4 + 8
    assert plan.per_rank == whole + (32 * 8 + 32 + 4 * 32) // 4 + 4 + 32 + 16


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (lambda net, x: net.norm(x), "norm, a LayerNorm, needs all features at once"),
        (lambda _, x: x.softmax(dim=-1), "softmax() needs all its features at once"),
        (lambda _, x: functional.dropout(x, 0.1), "use nn.Dropout"),
        (lambda _, x: x - x.mean(dim=-1, keepdim=True), "mean() may be over its features"),
        (lambda _, x: x * torch.arange(16), "which is not divided"),
        (lambda _, x: x.flip(-1), "flip() need not treat each feature by itself"),
        (lambda _, x: x[:, :16], "need not treat each feature by itself"),
        (lambda _, x: x.view(-1, 16), "view() names the number of features"),
        (lambda _, x: x.relu() @ x.relu().mT @ x, "it is multiplied as a matrix"),
        (lambda _, x: x.transpose(0, 1), "dimension 0 may be that of its features"),
        (lambda _, x: x.flatten(1), "flatten() may mix its features"),
        (lambda _, x: x + x.shape[-1], "getattr() need not treat each feature by itself"),
        (
            lambda net, x: x.relu() + functional.linear(x, net.first.weight.T).sum(),
            "tensors are used",
        ),
    ],
)
def test_what_is_not_by_feature_is_not_divided(
    between: Callable[[nn.Module, Tensor], Tensor], reason: str
) -> None:
    plan = derive(_Net(between), 2)
    assert _roles(plan) == {"other.1": Role.OUTPUTS, "other.3": Role.INPUTS}
    assert reason in _reason(plan, "first")


def test_a_layer_that_is_used_elsewhere_too_is_not_divided() -> None:
    class Twice(_Net):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.drop(super().forward(self.drop(x)))
            return y

    plan = derive(Twice(lambda net, x: net.drop(x)), 2)
    assert set(_roles(plan)) == {"other.1", "other.3"}
    assert "drop is used elsewhere too" in _reason(plan, "first")


def test_a_layer_that_feeds_another_in_evaluation_is_not_divided() -> None:
    plan = derive(_Net(lambda net, x: x.relu() if net.training else x.softmax(-1)), 2)
    assert set(_roles(plan)) == {"other.1", "other.3"}


def test_a_subclass_of_a_layer_is_not_taken_for_it() -> None:
    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.flip(-1))

    model = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), Own(16, 8), nn.Linear(8, 16), nn.Linear(16, 2)
    )
    assert set(_roles(derive(model, 2))) == {"3", "4"}


def test_shared_and_hooked_layers_stay_whole() -> None:
    model = _Net(lambda _, x: x.relu())
    model.second.weight = nn.Parameter(torch.randn(8, 16))
    model.other[3].register_forward_hook(lambda *_: None)
    tied = nn.Linear(8, 16)
    tied.weight = model.first.weight
    model.tied = tied
    model.extra = nn.Linear(8, 4096)  # worth dividing alone
    plan = derive(model, 2)
    assert _roles(plan) == {"extra": Role.GATHERED}
    assert _reason(plan, "first") == "another layer shares its parameters"
    assert "hooks" in _reason(plan, "other.3")


def test_the_pairs_that_divide_most_are_taken() -> None:
    sizes = [(4, 6), (6, 400), (400, 6), (6, 4)]
    model = nn.Sequential(*(nn.Linear(*size) for size in sizes))
    assert set(_roles(derive(model, 2))) == {"0", "1", "2", "3"}
    assert set(_roles(derive(model[:3], 2))) == {"1", "2"}


@pytest.mark.parametrize("name", BUILTIN)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_built_in_tasks_can_be_divided(name: str, size: int) -> None:
    model = BUILTIN[name]().model()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    plan = derive(model, size)
    assert plan.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert plan.per_rank < plan.parameters
    assert model.training
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def test_the_plan_is_shown_as_a_table() -> None:
    lines = derive(BUILTIN["digits"]().model(), 2).describe().splitlines()
    assert lines[0].split() == ["module", "layer", "each", "rank", "has", "parameters"]
    assert lines[1].split() == ["0", "Conv2d(1,", "16)", "its", "outputs", "80"]
    assert lines[-1] == "2 ranks: each holds 11,322 of 22,602 parameters (50 %)"
    assert len({len(line) for line in lines[:-1]}) == 1


def test_one_rank_divides_nothing() -> None:
    plan = derive(nn.Linear(3, 5), 1)
    assert plan.splits == ()
    assert plan.describe().splitlines()[-1] == "1 rank: each holds 20 of 20 parameters (100 %)"


def test_what_cannot_be_divided_is_refused_with_reasons() -> None:
    with pytest.raises(MeshError, match="among 2 ranks: 0: its 5 outputs do not divide by 2; 1: "):
        derive(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)), 2)
    with pytest.raises(MeshError, match="the model: each step needs all hidden units"):
        derive(nn.LSTM(4, 8), 2)
    with pytest.raises(MeshError, match="its 3 heads do not divide by 2"):
        derive(nn.MultiheadAttention(6, 3), 2)


def test_a_plan_by_hand() -> None:
    model = _Net(lambda _, x: x.relu())
    plan = written(model, 2, {"*first": ColwiseParallel(), "second": RowwiseParallel()})
    assert set(_roles(plan)) == {"first", "second"}
    assert [split.per_rank for split in plan.splits] == [(16 * 8 + 16) // 2, 16 * 8 // 2 + 8]
    assert "as the task says" in plan.describe()
    assert {kept.module for kept in plan.kept} == {"norm", "other.0", "other.1", "other.3"}


@pytest.mark.parametrize(
    ("styles", "size", "said"),
    [
        ({"thrid": ColwiseParallel()}, 2, "names thrid, which the model does not have"),
        ({"first": "colwise"}, 2, "gives first a str"),
        (
            {"first": ColwiseParallel()},
            3,
            r"16 features of first, a Linear\(8, 16\), do not divide",
        ),
        ({"norm": RowwiseParallel()}, 2, "gives norm, a LayerNorm, a RowwiseParallel"),
    ],
)
def test_a_plan_by_hand_that_does_not_fit(styles: dict[str, object], size: int, said: str) -> None:
    with pytest.raises(MeshError, match=said):
        written(_Net(lambda _, x: x), size, styles)  # type: ignore[arg-type]


def test_other_styles_are_taken_as_they_are() -> None:
    plan = written(_Net(lambda _, x: x), 2, {"norm": SequenceParallel()})
    assert plan.splits[0].per_rank == plan.splits[0].parameters == 32
