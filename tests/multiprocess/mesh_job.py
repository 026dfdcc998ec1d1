"""Train on meshes, one after the other: `mesh_job.py BACKEND FOLDER MESH…`; a line of JSON for each.

`MESH>OTHER` begins on one, and goes on on the other, from a checkpoint.
"""

import contextlib
import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from doubletime.errors import MeshError
from doubletime.training import loop, session
from doubletime.training.checkpoint import folder
from doubletime.training.checkpoint.exchange import of_all, on_rank_0
from doubletime.training.keeping import Keeping
from doubletime.training.switches import Switches
from training.mesh_task import Deep


def whole(parameter):
    """The numbers of a parameter of which each rank may hold a part; collective."""
    data = parameter.detach()
    return (data.full_tensor() if hasattr(data, "full_tensor") else data).flatten().tolist()


def trained(task):
    """The parameters that this rank's optimizer updates, by the model's names."""
    task.made.state_dict()  # parameters that are gathered are shards again
    updated = {id(each) for group in task.descends.param_groups for each in group["params"]}
    return [(name, each) for name, each in task.made.named_parameters() if id(each) in updated]


class Kept(Deep):
    """Rank 0's parameters must win."""

    def model(self):
        model = super().model()
        if session.current().rank:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
        return model

    def optimizer(self, parameters):
        self.descends = super().optimizer(parameters)
        return self.descends


class Paired(Deep):
    def model(self):
        return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4)).double()


class Stopped(Exception):
    pass


def stop(event):
    if isinstance(event, loop.StepDone) and (event.epoch, event.step) == (2, 3):
        raise Stopped


def begun(mesh, path):
    """Die in the second epoch; the checkpoints that are whole by then."""
    on_rank_0(lambda: folder.prepare(path))
    task = Kept()
    with contextlib.suppress(Stopped):
        loop.run(task, loop.Recipe.of(task, mesh=mesh), stop, Keeping(path, every=3))
    return Keeping(path, every=0, candidates=tuple(on_rank_0(lambda: folder.whole(path))))


joined = session.init(sys.argv[1])
place = Path(sys.argv[2])
for meshes in sys.argv[3:]:
    before, _, asked = meshes.rpartition(">")
    mesh, _, schedule = asked.partition(":")
    switches = Switches(schedule=schedule, microbatches=3) if schedule else Switches()
    keeping = begun(before, place / meshes) if before else None
    task, events = Kept(), []
    recipe = loop.Recipe.of(task, mesh=mesh, switches=switches)
    result = loop.run(task, recipe, events.append, keeping)
    notes = [event.text for event in events if isinstance(event, loop.Notice)]
    told = any(note.startswith("stages waited for each other ") for note in notes)
    assert told == ("pp" in mesh), notes
    divided = [note for note in notes if note.startswith("tp=2 divides layers")]
    assert len(divided) == (2 if "pp" in mesh else 1) * ("tp" in mesh), notes
    if "pp" not in mesh or "tp" not in mesh:
        assert all("stage" not in note.partition("\n")[0] for note in divided)
    assert not schedule or any(f"{schedule}, 3 microbatches" in note for note in notes), notes
    if keeping:
        [came] = [event for event in events if isinstance(event, loop.Resumed)]
        assert (came.epoch, came.step) in ((1, 3), (2, 2)), came
    mine = {name: whole(parameter) for name, parameter in trained(task)}
    losses = [event.loss for event in events if isinstance(event, loop.EpochDone)]
    shares = [event.waiting_share for event in events if isinstance(event, loop.EpochDone)]
    everyone = of_all((mine, losses, dict(result.metrics)))
    assert all(losses == other for _, other, _ in everyone), everyone
    assert all(result.metrics == other for _, _, other in everyone), everyone
    numbers = {}
    for held, _, _ in everyone:
        for name, each in held.items():
            assert numbers.setdefault(name, each) == each, name
    if joined.rank == 0:
        print(json.dumps([meshes, numbers, losses, dict(result.metrics), shares]), flush=True)
if joined.world_size == 4:  # each stage has one layer of a pair: ranks along tp would do the same
    task = Paired()
    with pytest.raises(MeshError, match="no stage of the 2 has a layer that can be divided"):
        loop.run(task, loop.Recipe.of(task, mesh="pp=2,tp=2"), events.append)
session.leave()
