"""Our pipelines: any model in stages, by every schedule, computes what one process computes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from doubletime.errors import PipelineError
from doubletime.training.pipeline.pipeline import Pipeline
from multiprocess import models_to_cut as models

# Even microbatches twice, an uneven batch, and one of fewer samples than microbatches.
SIZES, MICRO_BATCHES, WEIGHT = (12, 12, 9, 2), 6, 0.5
Data = Callable[[int], tuple[Tensor, Tensor]]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    outputs = model(inputs)
    if isinstance(outputs, dict):
        outputs = outputs["logits"]
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    return {"loss": loss(model, batch)}


def _close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def _train(make: Callable[[], nn.Module], data: Data, schedule: str) -> None:
    alone = make()
    whole = copy.deepcopy(alone)
    everything = data(sum(SIZES))
    batches = list(zip(*(tensor.split(list(SIZES)) for tensor in everything), strict=True))
    pipeline = Pipeline(
        whole, loss, batches[0], schedule=schedule, micro_batches=MICRO_BATCHES, seed=5
    )
    theirs = dict(alone.named_parameters())
    ours = dict(pipeline.module.named_parameters())
    _every_parameter_is_on_one_rank(list(ours), list(theirs))
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for model in (alone, pipeline.module)
    ]
    for batch in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = loss(alone, batch)
        (WEIGHT * expected).backward()
        assert abs(pipeline.step(batch, WEIGHT) - expected.item()) < 1e-12
        for name, parameter in ours.items():
            _close(parameter.grad, theirs[name].grad)
        for optimizer in optimizers:
            optimizer.step()
    for name, parameter in ours.items():
        _close(parameter, theirs[name])
    for model in (alone, pipeline.module):
        model.eval()
    with torch.no_grad():
        expected = loss(alone, everything)
    assert abs(pipeline.forward(everything, metrics)["loss"] - expected.item()) < 1e-12
    bubble = pipeline.bubble()
    assert 0 < bubble.share < 1
    assert 0 <= bubble.expected < 1


def _every_parameter_is_on_one_rank(mine: list[str], all_names: list[str]) -> None:
    gathered: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, mine)
    assert all(gathered)
    assert sorted(name for names in gathered for name in names) == sorted(all_names)


def gpipe(rank: int, world_size: int) -> None:
    del rank, world_size
    _train(models.mlp, models.vectors, "gpipe")


def one_forward_one_backward(rank: int, world_size: int) -> None:
    del rank, world_size
    _train(models.mlp, models.vectors, "1f1b")


def of_a_transformer(rank: int, world_size: int) -> None:
    del rank, world_size
    _train(models.Transformer, models.texts, "1f1b")


def of_a_convolutional_network(rank: int, world_size: int) -> None:
    del rank, world_size
    _train(models.cnn, models.images, "1f1b")


def interleaved(rank: int, world_size: int) -> None:
    del rank, world_size
    _train(models.mlp, models.vectors, "interleaved")


def zero_bubble(rank: int, world_size: int) -> None:
    del rank, world_size
    _train(models.Transformer, models.texts, "zero_bubble")


def zero_bubble_there_and_back(rank: int, world_size: int) -> None:
    del rank, world_size
    _train(models.mlp, models.vectors, "zbv")


def in_a_group_of_their_own(rank: int, world_size: int) -> None:
    """Two pipelines side by side, as on a mesh dp=2,pp=2."""
    if world_size != 4:
        return
    groups = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    alone = models.Residual()
    batch = models.vectors(6 + rank % 2)
    pipeline = Pipeline(copy.deepcopy(alone), loss, batch, group=groups[rank % 2], micro_batches=3)
    expected = loss(alone, batch)
    expected.backward()
    assert abs(pipeline.step(batch) - expected.item()) < 1e-12
    theirs = dict(alone.named_parameters())
    for name, parameter in pipeline.module.named_parameters():
        _close(parameter.grad, theirs[name].grad)


def in_mixed_precision(rank: int, world_size: int) -> None:
    """What layers make in bfloat16 is sent as float32, which loses nothing."""
    del rank, world_size
    alone = models.mlp().float()
    inputs, targets = models.vectors(6)
    batch = (inputs.float(), targets)
    pipeline = Pipeline(copy.deepcopy(alone), loss, batch, micro_batches=3)
    theirs = dict(alone.named_parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = loss(alone, batch)
        assert abs(pipeline.step(batch) - expected.item()) < 1e-2
        assert abs(pipeline.forward(batch, metrics)["loss"] - expected.item()) < 1e-2
    expected.backward()
    for name, parameter in pipeline.module.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=0.1, atol=1e-2)


def frozen_layers_and_batch_norm(rank: int, world_size: int) -> None:
    """The first layers need no gradient; BatchNorm sees the whole batch where that is one microbatch."""
    torch.manual_seed(1)
    layers = [
        nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()) for _ in range(world_size)
    ]
    alone = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), *layers).double()
    alone[0].requires_grad_(False)
    batch = models.vectors(6)
    pipeline = Pipeline(copy.deepcopy(alone), loss, batch, micro_batches=1)
    assert not pipeline.notices
    (notice,) = Pipeline(copy.deepcopy(alone), loss, batch, micro_batches=2).notices
    assert "BatchNorm takes mean and variance over a microbatch" in notice
    expected = loss(alone, batch)
    expected.backward()
    assert abs(pipeline.step(batch) - expected.item()) < 1e-12
    theirs = dict(alone.named_parameters())
    for name, parameter in pipeline.module.named_parameters():
        if parameter.requires_grad:
            _close(parameter.grad, theirs[name].grad)
        else:
            assert parameter.grad is None
    buffers = dict(alone.named_buffers())
    for name, buffer in pipeline.module.named_buffers():
        _close(buffer, buffers[name])


def refusals(rank: int, world_size: int) -> None:
    """All ranks refuse alike, before any has sent anything."""
    del rank
    cases: tuple[tuple[Callable[[], nn.Module], dict[str, Any], str], ...] = (
        (
            lambda: models.mlp(0),
            {},
            f"has 1 layer with parameters that can be cut apart, {world_size}",
        ),
        (models.mlp, {"schedule": "1f1bb"}, "no pipeline schedule '1f1bb'"),
        (models.mlp, {"micro_batches": 0}, "0 microbatches"),
    )
    for make, options, said in cases:
        error = _refused(make(), options)
        assert error is not None, f"not refused: {said}"
        assert said in error.what, error.what
        assert error.remedy


def _refused(model: nn.Module, options: dict[str, Any]) -> PipelineError | None:
    try:
        Pipeline(model, loss, models.vectors(6), **options)
    except PipelineError as error:
        return error
    return None


CHECKS = (
    gpipe,
    one_forward_one_backward,
    of_a_transformer,
    of_a_convolutional_network,
    interleaved,
    zero_bubble,
    zero_bubble_there_and_back,
    in_a_group_of_their_own,
    in_mixed_precision,
    frozen_layers_and_batch_norm,
    refusals,
)
