"""A model cut into stages, one on each rank."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

WIDTH, BATCH, MICRO_BATCHES = 10, 24, 6


def _layers(world_size: int) -> list[nn.Module]:
    torch.manual_seed(3)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(world_size)]


def _compare(schedule_type: type, rank: int, world_size: int) -> None:
    generator = torch.Generator().manual_seed(4)
    inputs, targets = (
        torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    mine = _layers(world_size)[rank]
    stage = PipelineStage(mine, rank, world_size, torch.device("cpu"))
    schedule = schedule_type(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    alone = nn.Sequential(*_layers(world_size))
    for _ in range(3):
        mine.zero_grad()
        alone.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == 0:
            output = schedule.step(inputs)
        elif rank == world_size - 1:
            output = schedule.step(target=targets, losses=losses)
        else:
            output = schedule.step()
        result = alone(inputs)
        loss = nn.functional.mse_loss(result, targets)
        loss.backward()
        if rank == world_size - 1:
            torch.testing.assert_close(output, result)
            torch.testing.assert_close(torch.stack(losses).mean(), loss)
        for ours, theirs in zip(mine.parameters(), alone[rank].parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)


def one_forward_one_backward(rank: int, world_size: int) -> None:
    _compare(Schedule1F1B, rank, world_size)


def all_forward_then_all_backward(rank: int, world_size: int) -> None:
    _compare(ScheduleGPipe, rank, world_size)


CHECKS = (one_forward_one_backward, all_forward_then_all_backward)
