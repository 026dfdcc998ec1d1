"""Train on meshes, one after the other: `mesh_job.py BACKEND MESH…`; a line of JSON for each."""

import json
import sys

import torch

from doubletime.training import loop, session
from doubletime.training.checkpoint.exchange import of_all
from training.mesh_task import Deep


def whole(parameter):
    """The numbers of a parameter of which each rank may hold a part; collective."""
    data = parameter.detach()
    return (data.full_tensor() if hasattr(data, "full_tensor") else data).flatten().tolist()


class Kept(Deep):
    """Rank 0's parameters must win."""

    def model(self):
        model = super().model()
        if session.current().rank:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
        return model


joined = session.init(sys.argv[1])
for mesh in sys.argv[2:]:
    task, events = Kept(), []
    result = loop.run(task, loop.Recipe.of(task, mesh=mesh), events.append)
    mine = {name: whole(parameter) for name, parameter in task.made.named_parameters()}
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
        print(json.dumps([mesh, numbers, losses, dict(result.metrics), shares]), flush=True)
session.leave()
