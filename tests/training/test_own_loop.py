"""dt.save and dt.resume in a loop of one's own, in one process."""

import pytest
import torch
from torch import nn

import doubletime as dt
from doubletime.errors import CheckpointError
from doubletime.training.checkpoint import folder

INPUTS = torch.randn(26, 4, generator=torch.Generator().manual_seed(0))


class Loop:
    """Two groups of parameters, of which one has no momentum, and a schedule."""

    def __init__(self, width=5):
        torch.manual_seed(3)
        self.batches = dt.loader((INPUTS,), 4, seed=1)
        self.model = nn.Sequential(nn.Linear(4, width), nn.Dropout(0.2), nn.Linear(width, 1))
        self.optimizer = torch.optim.SGD(
            [
                {"params": self.model[0].parameters(), "lr": 0.1},
                {"params": self.model[2].parameters(), "momentum": 0.9},
            ],
            lr=0.05,
        )
        self.lr_schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)

    @property
    def parts(self):
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "lr_schedule": self.lr_schedule,
            "batches": self.batches,
        }

    def run(self, epochs, save_at=None, where=None):
        """Train up to so many epochs; leave after a checkpoint at `save_at` (epoch, step)."""
        for _ in range(self.batches.position[0], epochs):
            for (x,) in self.batches:
                self.optimizer.zero_grad()
                self.model(x).square().mean().backward()
                self.optimizer.step()
                self.lr_schedule.step()
                if self.batches.position == save_at:
                    return dt.save(where, **self.parts, state={"best": 7, "at": save_at}, keep=2)
        return None


@pytest.mark.parametrize("at", [(0, 3), (1, 1), (1, 7), (2, 6)])
def test_a_loop_goes_on_bit_by_bit(tmp_path, at):
    whole = Loop()
    whole.run(3)
    path = Loop().run(3, at, tmp_path)
    assert path == tmp_path / f"step-{at[0] * 7 + at[1]:08d}"
    again = Loop()
    assert dt.resume(tmp_path, **again.parts) == {"best": 7, "at": at}
    assert again.batches.position == at
    again.run(3)
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert again.lr_schedule.get_last_lr() == whole.lr_schedule.get_last_lr()
    assert dt.resume(path) == {"best": 7, "at": at}  # one checkpoint by its path, its state alone


def test_without_a_checkpoint_nothing_changes(tmp_path):
    loop = Loop()
    before = [each.clone() for each in loop.model.parameters()]
    assert dt.resume(tmp_path / "none", **loop.parts) is None
    assert all(map(torch.equal, before, loop.model.parameters()))
    assert loop.batches.position == (0, 0)


def test_the_last_are_kept_and_steps_are_counted_without_data(tmp_path):
    for number in range(1, 5):
        path = dt.save(tmp_path, state={"number": number}, keep=2)
        assert folder.step_of(path) == number
    assert [folder.step_of(path) for path in folder.whole(tmp_path)] == [4, 3]
    assert dt.resume(tmp_path) == {"number": 4}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]


def test_the_same_step_again_takes_the_place_of_the_first(tmp_path):
    loop = Loop()
    dt.save(tmp_path, batches=loop.batches, state={"number": 1})
    dt.save(tmp_path, batches=loop.batches, state={"number": 2})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000000"]
    assert dt.resume(tmp_path) == {"number": 2}


def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path):
    Loop().run(1, (0, 2), tmp_path)
    wide = Loop(width=6)
    before = [each.clone() for each in wide.model.parameters()]
    with pytest.raises(
        CheckpointError, match=r"of another shape: 0.weight \(float32 \[5, 4\] there"
    ):
        dt.resume(tmp_path, **wide.parts)
    assert all(map(torch.equal, before, wide.model.parameters()))
    other = Loop()
    other.optimizer = torch.optim.SGD(other.model.parameters(), lr=0.1)
    before = [each.clone() for each in other.model.parameters()]
    with pytest.raises(CheckpointError, match="made with an optimizer of other parameters"):
        dt.resume(tmp_path, optimizer=other.optimizer, model=other.model)
    assert all(map(torch.equal, before, other.model.parameters()))
