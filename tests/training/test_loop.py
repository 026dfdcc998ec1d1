"""Training on many ranks computes what a loop written out in plain torch computes."""

import json
import math

import pytest
import torch

from doubletime.errors import TaskError, TrainingError
from doubletime.training import loop
from doubletime.training.loop import EpochDone, Recipe, RunDone, RunStarted, StepDone
from doubletime.training.task import Task
from ranks import run_ranks
from training import by_hand

# 25 samples in batches of 8: the last batch is one sample, which leaves all ranks but one without.
SAMPLES, TEST_SAMPLES, GLOBAL_BATCH, EPOCHS, SEED = 25, 11, 8, 3, 5

SMALL = f"""
import torch
from torch import nn
from doubletime.training.task import Task

def data(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 5, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (samples,), generator=generator)

class Small(Task):
    global_batch, epochs, seed = {GLOBAL_BATCH}, {EPOCHS}, {SEED}
    def model(self):
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    def train_data(self):
        return data({SAMPLES}, 1)
    def test_data(self):
        return data({TEST_SAMPLES}, 2)
    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.3, momentum=0.9)
    def lr_schedule(self, optimizer, steps):
        return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
"""

TRAINS = (
    SMALL
    + """
import json, sys
from doubletime.training import loop, session
session.init(sys.argv[1])
events, models = [], []

class Kept(Small):
    def model(self):
        models.append(super().model())
        if session.current().rank:  # rank 0's parameters must win
            with torch.no_grad():
                for parameter in models[0].parameters():
                    parameter.zero_()
        return models[0]

task = Kept()
result = loop.run(task, loop.Recipe.of(task), events.append)
numbers = torch.cat([p.detach().flatten() for p in models[0].parameters()])
if session.current().rank == 0:
    losses = [e.loss for e in events if isinstance(e, loop.EpochDone)]
    shares = [e.waiting_share for e in events if isinstance(e, loop.EpochDone)]
    print(json.dumps([numbers.tolist(), losses, dict(result.metrics), shares]))
alike = [torch.empty_like(numbers) for _ in range(session.current().world_size)]
torch.distributed.all_gather(alike, numbers)
assert all(torch.equal(numbers, other) for other in alike)
session.leave()
"""
)


def _small():
    scope = {}
    exec(compile(SMALL, "small", "exec"), scope)
    return scope["Small"], scope["data"]


def _reference():
    """By hand: parameters, epoch losses, test metrics."""
    small, _ = _small()
    model, losses, metrics = by_hand.train(small())
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), losses, metrics


def test_one_process_trains_as_written_out_by_hand():
    small, _ = _small()
    events, kept = [], []

    class Kept(small):
        def model(self):
            kept.append(super().model())
            return kept[0]

    result = loop.run(Kept(), Recipe.of(Kept()), events.append)
    numbers, losses, metrics = _reference()
    found = torch.cat([p.detach().flatten() for p in kept[0].parameters()])
    assert found.tolist() == pytest.approx(numbers, rel=1e-10, abs=1e-12)
    assert [e.loss for e in events if isinstance(e, EpochDone)] == pytest.approx(losses)
    assert result.metrics == pytest.approx(metrics)
    assert isinstance(events[0], RunStarted)
    assert events[-1] is result
    assert sum(e.samples for e in events if isinstance(e, StepDone)) == EPOCHS * SAMPLES


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("backend", ["mpi", "gloo"])
def test_many_ranks_train_as_one(n, backend):
    done = run_ranks(TRAINS, n, args=[backend]).check()
    found, found_losses, found_metrics, shares = json.loads(done.stdout.splitlines()[-1])
    numbers, losses, metrics = _reference()
    assert found == pytest.approx(numbers, rel=1e-9, abs=1e-12)
    assert found_losses == pytest.approx(losses, rel=1e-9)
    assert found_metrics == pytest.approx(metrics, rel=1e-6)
    assert all(0 < share < 1 for share in shares)


BUFFERS = """
import torch
from torch import nn
from doubletime.training import loop, session
from doubletime.training.parallelize import average
from doubletime.training.task import Task

joined = session.init("gloo")

class Normalized(Task):
    global_batch, epochs = 6, 2
    def model(self):
        self.made = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
        return self.made
    def train_data(self):
        return torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 2
    test_data = train_data

task = Normalized()
result = loop.run(task, loop.Recipe.of(task), lambda event: None)
mine = task.made[0].running_mean
everyone = [torch.empty_like(mine) for _ in range(joined.world_size)]
torch.distributed.all_gather(everyone, mine)
assert all(torch.equal(mine, other) for other in everyone), everyone
images, labels = task.test_data()
task.made.eval()
accuracy = (task.made(images).argmax(1) == labels).float().mean().item()
assert abs(accuracy - result.metrics["accuracy"]) < 1e-6, (accuracy, result)

# Means of 1, 2 and 3 samples; a rank without samples does not count, whatever it holds.
assert average([4.0, 7.0, 2.0][joined.rank], joined.rank + 1) == (4 + 14 + 6) / 6
assert average([float("nan"), 7.0, 2.0][joined.rank], joined.rank) == (7 + 4) / 3
session.leave()
"""


def test_ranks_evaluate_one_model_and_average_by_count():
    run_ranks(BUFFERS, 3).check()


REFUSALS = """
import torch
from doubletime.errors import DoubletimeError
from doubletime.training import session
from doubletime.training.data import loader

rank = session.init("gloo").rank
for length, batch, seed in ((9, 4, 0), (8 + rank, 4, 0), (8, 4 + rank, 0), (8, 4, rank), (1, 4, 0)):
    try:
        loader((torch.ones(length),), batch, seed=seed)
        said = "accepted"
    except DoubletimeError as error:
        said = error.what
    torch.distributed.barrier()
    if rank == 1:
        print(said, flush=True)
session.leave()
"""


def test_ranks_that_disagree_are_told_instead_of_waiting():
    assert run_ranks(REFUSALS, 2).check().stdout.splitlines() == [
        "accepted",
        "the ranks disagree on the samples: 8 on rank 0, 9 on rank 1",
        "the ranks disagree on the global batch: 4 on rank 0, 5 on rank 1",
        "the ranks disagree on the seed: 0 on rank 0, 1 on rank 1",
        "the dataset has 1 samples, the job 2 ranks",
    ]


class Exploding(Task):
    global_batch = 2

    def model(self):
        return torch.nn.Linear(1, 2)

    def train_data(self):
        inputs = torch.ones(8, 1)
        inputs[:] = math.inf
        return inputs, torch.zeros(8, dtype=torch.int64)


def test_a_loss_that_is_not_finite_stops_the_run_and_names_step_and_rank():
    with pytest.raises(TrainingError, match="the loss is nan at step 1 of epoch 1, on rank 0"):
        loop.run(Exploding(), Recipe.of(Exploding()), lambda event: None)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"global_batch": -1}, "global_batch is -1"),
        ({"seed": -3}, "seed is -3"),
        ({"limit": 0}, "limit is 0"),
    ],
)
def test_numbers_out_of_range_are_refused(given, what):
    with pytest.raises(TrainingError) as caught:
        Recipe.of(Exploding(), **given)
    assert caught.value.what == what


def test_a_recipe_takes_the_place_of_the_tasks_numbers():
    recipe = Recipe.of(Exploding(), epochs=4, seed=2, limit=3)
    assert recipe == Recipe(epochs=4, global_batch=2, seed=2, limit=3)
    small, _ = _small()
    result = loop.run(small(), Recipe.of(small(), epochs=1, limit=9), lambda event: None)
    assert isinstance(result, RunDone)
    assert result.epochs == 1


def test_batches_move_to_the_device_whatever_holds_them():
    tensor = torch.ones(2)
    batch = {"a": [tensor, "text"], "b": (tensor, {"c": tensor})}
    moved = loop.to_device(batch, torch.device("meta"))
    assert moved["a"][0].is_meta
    assert moved["a"][1] == "text"
    assert moved["b"][0].is_meta
    assert moved["b"][1]["c"].is_meta


class _Gives(Task):
    def __init__(self, model=None, **settings):
        self.given = model
        self.__dict__.update(settings)

    def model(self):
        return self.given

    def train_data(self):
        return torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("task", "what"),
    [
        (_Gives(), r"model\(\) of _Gives returned a NoneType, no torch.nn.Module"),
        (_Gives(torch.nn.Softmax(dim=1)), "the model of _Gives has no parameters to train"),
        (_Gives(torch.nn.Linear(2, 2), epochs="3"), "epochs is '3', no whole number"),
    ],
    ids=["no model", "no parameters", "text for a number"],
)
def test_a_task_that_cannot_be_trained_is_named(task, what):
    with pytest.raises((TaskError, TrainingError), match=what):
        loop.run(task, Recipe.of(task), lambda event: None)
