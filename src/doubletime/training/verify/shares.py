"""What N ranks would find, found by one process: does the loss of a batch follow from its parts?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from doubletime.training.sync_batchnorm import SyncBatchNorm
from doubletime.training.verify.distance import distances, number_distance
from doubletime.training.verify.draws import Draws
from doubletime.training.verify.records import Shares
from doubletime.training.verify.samples import rows_of, sample_digests

Loss = Callable[[nn.Module, Any], Tensor]


def find_shares(
    loss: Loss,
    model: nn.Module,
    state: Mapping[str, Tensor],
    batch: Any,
    rows: int,
    ranks: int,
) -> Shares | None:
    """Compare the gradients of a whole batch with those of its shares.

    Args:
        loss: a task's.
        model: is left in another state.
        state: in which it is asked, each time anew.
        batch: of `rows` samples.
        rows: at least one for each rank.
        ranks: how many shares.

    Returns:
        What was found; None where there are too few samples, or the batch has no rows.
    """
    if rows < ranks or not sample_digests(batch, rows):
        return None
    parts = [slice(rank, rows, ranks) for rank in range(ranks)]
    weights = [len(range(rows)[part]) / rows for part in parts]
    normalizations = {
        name: module for name, module in model.named_modules() if uses_batch_moments(module)
    }

    def gradients(part: slice) -> tuple[float, dict[str, Tensor]]:
        model.load_state_dict(state)
        model.zero_grad(set_to_none=True)
        with Draws():
            value = loss(model, rows_of(batch, rows, part))
        value.backward()
        return float(value.detach()), {
            name: parameter.grad.detach().clone()
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }

    def compare() -> tuple[float, list[float], float, float]:
        loss_of_all, whole = gradients(slice(None))
        found = [gradients(part) for part in parts]
        each = [gradient for _, gradient in found]
        return (
            loss_of_all,
            [value for value, _ in found],
            _largest(_combine(each, weights), whole),
            _largest(_combine(each, [1.0] * ranks), whole),
        )

    model.train()
    for module in model.modules():
        if isinstance(module, SyncBatchNorm | nn.SyncBatchNorm):
            module.eval()  # alone it would see a share; in step it sees the batch
    loss_of_all, losses, training, summed = compare()
    for module in normalizations.values():
        module.eval()
    fixed = compare()[2] if normalizations else training
    model.eval()
    with torch.backends.cudnn.flags(
        enabled=False
    ):  # its recurrences differentiate in training only
        evaluation = compare()[2]
    mean = sum(weight * value for weight, value in zip(weights, losses, strict=True))
    names = tuple(f"{name} ({type(module).__name__})" for name, module in normalizations.items())
    return Shares(
        tuple(losses),
        number_distance(mean, loss_of_all),
        training,
        fixed,
        evaluation,
        summed,
        names,
    )


def uses_batch_moments(module: nn.Module) -> bool:
    """Whether it normalizes by the mean and variance of the batch that one rank has."""
    return isinstance(module, _BatchNorm) and not isinstance(
        module, SyncBatchNorm | nn.SyncBatchNorm
    )


def _combine(
    gradients: Sequence[Mapping[str, Tensor]], weights: Sequence[float]
) -> dict[str, Tensor]:
    result: dict[str, Tensor] = {}
    for gradient, weight in zip(gradients, weights, strict=True):
        for name, tensor in gradient.items():
            term = tensor * weight
            result[name] = result[name] + term if name in result else term
    return result


def _largest(found: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    return max(distances(found, reference).values(), default=0.0)
