"""A loss is kept as it is: it is called where the inputs are, and where the output is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from doubletime.errors import PipelineError
from doubletime.training.pipeline.calling import Microbatches, record, replay

CPU = torch.device("cpu")


def _microbatches(function: Any, batches: list[Any]) -> Microbatches:
    return Microbatches(function, batches, record(function, batches[0]), 3, CPU)


def _mixing(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A loss that draws numbers before and after it calls the model."""
    inputs, targets = batch
    share = torch.rand(())
    outputs = model(share * inputs, scale=2)
    return share * (outputs - targets).square().mean() + torch.rand(())


def test_both_calls_draw_the_same_numbers_and_leave_the_generator_alone() -> None:
    batches = [(torch.ones(2, 3), torch.full((2, 3), float(number))) for number in range(2)]
    micro = _microbatches(_mixing, batches)
    state = torch.get_rng_state()
    for number, (inputs, targets) in enumerate(batches):
        (tensor,) = micro.inputs(number)
        share = float(tensor[0, 0])
        assert 0 < share < 1
        loss = micro.finish(number, 5 * inputs)
        assert 0 <= float(loss) - share * float((5 - targets).square().mean()) < 1
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(micro.inputs(0)[0], micro.inputs(1)[0])  # microbatches draw their own


def test_what_the_model_is_called_with_is_found_in_any_structure() -> None:
    call = record(
        lambda model, batch: model({"tokens": batch[0]}, [batch[1], None], flag=True)["logits"],
        (torch.zeros(2), torch.ones(3)),
    )
    assert [len(tensor) for tensor in call.tensors] == [2, 3]
    (tokens, rest), options = call.rebuild(["a", "b"])
    assert (tokens, rest, options) == ({"tokens": "a"}, ["b", None], {"flag": True})


def test_a_loss_that_does_not_call_the_model_is_refused() -> None:
    def idle(model: nn.Module, batch: Tensor) -> Tensor:
        return batch.mean()

    with pytest.raises(PipelineError, match=r"idle\(\) does not call the model"):
        record(idle, torch.ones(2))


def test_a_loss_that_calls_the_model_twice_is_refused() -> None:
    def twice(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch) - model(-batch)).mean()

    with pytest.raises(PipelineError, match=r"twice\(\) calls the model more than once"):
        replay(twice, torch.ones(2), torch.ones(2))


@pytest.mark.parametrize(
    "ask",
    [
        lambda model: model.head,
        lambda model: list(model.parameters()),
        lambda model: list(model.modules()),
        lambda model: model.state_dict(),
    ],
)
def test_a_loss_that_asks_for_more_than_the_output_is_told_so(ask: Any) -> None:
    def penal(model: nn.Module, batch: Tensor) -> Tensor:
        outputs = model(batch)
        ask(model)
        return outputs.mean()

    with pytest.raises(PipelineError, match="no rank has the whole model"):
        replay(penal, torch.ones(2), torch.ones(2))


def test_asking_whether_the_model_has_something_is_allowed() -> None:
    def careful(model: nn.Module, batch: Tensor) -> Tensor:
        return getattr(model, "module", model)(batch).mean()

    assert float(replay(careful, torch.ones(2), torch.ones(2))) == 1
    assert record(careful, torch.ones(2)).tensors[0].shape == (2,)


def test_a_call_unlike_the_first_is_refused() -> None:
    def changing(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch, deep=bool(batch[0] > 0)).mean()

    micro = _microbatches(changing, [torch.ones(2), -torch.ones(2)])
    micro.inputs(0)
    with pytest.raises(PipelineError, match="other arguments than in the first batch"):
        micro.inputs(1)
