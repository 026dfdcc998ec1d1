"""A model cut into stages computes what it computed, whatever its forward looks like."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from doubletime.errors import PipelineError
from doubletime.training.pipeline.measuring import measure
from doubletime.training.pipeline.pipeline import split
from doubletime.training.pipeline.tracing import Call, trace
from multiprocess import models_to_cut as models


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(models.TOKENS, models.WIDTH)
        self.lstm = nn.LSTM(models.WIDTH, models.WIDTH, batch_first=True)
        self.head = nn.Linear(models.WIDTH, 5)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, (state, _) = self.lstm(self.embedding(tokens))
        return self.head(outputs[:, -1] + state[-1])


class Choosing(nn.Module):
    """A layer that looks at its data: it cannot be followed, and stays whole."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(models.WIDTH, models.WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.sum() > 0 else x


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(models.WIDTH, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Embedding(models.TOKENS, models.WIDTH),
        nn.TransformerEncoder(layer, 3),
        nn.Linear(models.WIDTH, 5),
    ).double()


def _choosing() -> nn.Module:
    return nn.Sequential(nn.Linear(models.WIDTH, models.WIDTH), Choosing(), Choosing()).double()


MODELS = {
    "mlp": (models.mlp, models.vectors),
    "cnn": (models.cnn, models.images),
    "transformer": (models.Transformer, models.texts),
    "residual": (models.Residual, models.vectors),
    "recurrent": (Recurrent, models.texts),
    "torch's own encoder": (_encoder, models.texts),
    "a layer that chooses": (_choosing, models.vectors),
}


def _through(stages: list[nn.Module], inputs: Tensor) -> Any:
    made: Any = (inputs,)
    for stage in stages:
        made = stage(*made)
    return made


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_stages_one_after_the_other_are_the_model(name: str, stages: int) -> None:
    make, data = MODELS[name]
    model = make()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    parts = split(model, (data(4)[0],), stages)
    assert len(parts) == stages
    inputs = data(7)[0]  # another number of samples than in the example
    torch.testing.assert_close(_through(parts, inputs), model(inputs))
    named = [key for part in parts for key, _ in part.named_parameters()]
    assert sorted(named) == sorted(key for key, _ in model.named_parameters())
    assert all(any(p.requires_grad for p in part.parameters()) for part in parts)
    torch.testing.assert_close(model.state_dict(), before)  # measuring has left no trace


def test_stages_evaluate_as_the_model_does() -> None:
    model = nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5)
    ).double()
    parts = split(model, (models.vectors(4)[0],), 2)
    for part in (model, *parts):
        part.eval()
    inputs = models.vectors(7)[0]
    assert torch.equal(_through(parts, inputs), model(inputs))
    for part in parts:
        part.train()
    assert not torch.equal(_through(parts, inputs), _through(parts, inputs))


def test_a_block_that_reads_its_mode_stays_whole() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(self.linear(x), 0.5, self.training)

    model = nn.Sequential(Dropping(), Dropping()).double()
    parts = split(model, (models.vectors(4)[0],), 2)
    inputs = models.vectors(7)[0]
    for part in (model, *parts):
        part.eval()
    assert torch.equal(_through(parts, inputs), model(inputs))

    class Bare(Dropping):
        pass

    with pytest.raises(PipelineError, match=r"Bare .*self\.training.*\n.*nn\.Dropout"):
        split(Bare().double(), (models.vectors(4)[0],), 1)


def test_more_stages_than_layers_are_refused_with_both_numbers() -> None:
    with pytest.raises(PipelineError, match=r"has 4 layers .* 5 stages are asked for") as caught:
        split(models.cnn(), (models.images(4)[0],), 5)
    assert "4 stages at most" in str(caught.value.remedy)


def test_a_tied_parameter_is_refused_by_its_name() -> None:
    model = models.Transformer()
    model.head.weight = model.embedding.weight
    with pytest.raises(PipelineError, match=r"has 1 layer .*embedding\.weight is used in several"):
        split(model, (models.texts(4)[0],), 2)


def test_a_parameter_tied_between_neighbours_keeps_them_in_one_stage() -> None:
    model = models.mlp(3)
    assert isinstance(model, nn.Sequential)
    first, second, *_ = model
    second[0].weight = first[0].weight
    parts = split(model, (models.vectors(4)[0],), 2)
    holders = [part for part in parts if any(p is first[0].weight for p in part.parameters())]
    assert len(holders) == 1
    inputs = models.vectors(7)[0]
    torch.testing.assert_close(_through(parts, inputs), model(inputs))


def test_parameters_that_are_not_used_are_refused_by_name() -> None:
    model = models.Transformer()
    model.spare = nn.Linear(3, 3)
    with pytest.raises(PipelineError, match=r"spare\.weight, spare\.bias"):
        split(model, (models.texts(4)[0],), 2)


def test_a_model_that_cannot_be_followed_is_refused_with_what_was_met() -> None:
    with pytest.raises(PipelineError, match=r"forward of Choosing cannot be followed: TraceError"):
        split(Choosing().double(), (models.vectors(4)[0],), 1)


def test_a_decision_that_depends_on_the_number_of_samples_is_not_made_once_for_all() -> None:
    class Counting(Choosing):
        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) if len(x.shape) == 2 and x.size(0) > 4 else x

    with pytest.raises(PipelineError, match="forward of Counting cannot be followed"):
        split(Counting().double(), (models.vectors(4)[0],), 1)
    model = nn.Sequential(nn.Linear(models.WIDTH, models.WIDTH), Counting(), Counting()).double()
    parts = split(model, (models.vectors(4)[0],), 2)
    for samples in (4, 5):
        inputs = models.vectors(samples)[0]
        torch.testing.assert_close(_through(parts, inputs), model(inputs))


def test_stages_are_cut_where_time_is_halved() -> None:
    wide = [nn.Linear(400, 400) for _ in range(4)]
    model = nn.Sequential(nn.Linear(8, 400), *wide, nn.Linear(400, 8))
    parts = split(model, (torch.randn(300, 8),), 2)
    heavy = [sum(module in wide for module in part.modules()) for part in parts]
    assert heavy in ([2, 2], [1, 3], [3, 1])  # a busy machine measures badly, but not so badly


def test_measuring_leaves_modes_draws_and_buffers_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).double().eval()
    inputs = models.vectors(6)[0]
    before, drawn = copy_of(model), torch.get_rng_state()
    graph = trace(model, Call((inputs,), {}))
    costs = measure(graph, (inputs,))
    assert torch.equal(torch.get_rng_state(), drawn)
    torch.testing.assert_close(copy_of(model), before)
    assert not any(module.training for module in model.modules())
    assert all(cost.time_s > 0 for name, cost in costs.items() if name != "input_0")
    assert costs["model_0"].parameter_nbytes == 8 * (64 + 8)
    assert costs["model_0"].output_nbytes == 8 * 6 * 8


def copy_of(model: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in model.state_dict().items()}
