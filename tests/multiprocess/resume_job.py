"""Ranks that train, end, and go on: `resume_job.py BACKEND FOLDER WHAT[:FOLDER OF WHAT]…`."""

import contextlib
import functools
import itertools
import json
import os
import resource
import signal
import sys
from pathlib import Path

import pytest
import torch

import doubletime as dt
from doubletime.errors import CheckpointError
from doubletime.training import session
from doubletime.training.checkpoint import folder, storage
from doubletime.training.checkpoint.exchange import of_all, on_rank_0
from doubletime.training.events import CheckpointSaved, Notice, Resumed
from doubletime.training.keeping import Keeping
from doubletime.training.preemption import Preempted
from training.resumed_task import numbers, train

EVERY = 3


def candidates(path):
    return tuple(on_rank_0(lambda: folder.whole(path)))


def resumed(path):
    """Its task, and what was told."""
    return train(Keeping(path, EVERY, candidates=candidates(path)))


def assert_alike(one, other):
    different = [name for name, each in one.items() if not torch.equal(each, other[name])]
    # Each rank's own samples move a batch norm's means; rank 0's count.
    if joined.rank:
        different = [name for name in different if "running" not in name]
    assert not different, different


def resumes(path):
    """Die on all ranks, go on: bit by bit as if never stopped."""
    whole, _ = train(None)
    train(Keeping(path, EVERY), 8)
    for partial in path.glob("*.partial"):
        assert partial.name == "step-00000006.partial", partial
    again, events = resumed(path)
    [came] = [event for event in events if isinstance(event, Resumed)]
    assert came.world_size == joined.world_size
    assert_alike(numbers(whole), numbers(again))


def stops(path):
    """Begin, and stop after step 6 for others to go on; who met what goes with it."""

    def tell(step):
        if step == 6 and joined.rank == joined.world_size - 1:
            os.kill(os.getpid(), signal.SIGTERM)  # one rank is told, all save

    try:
        train(Keeping(path, EVERY), at_step=tell)
    except Preempted as ended:
        step = ended.step
    assert len(set(of_all(step))) == 1
    if joined.rank == 0:
        assert folder.step_of(folder.whole(path)[0]) == step


def goes_on(path):
    """On another number of ranks: what all ranks meet, a list a step."""
    task, events = resumed(path)
    [came] = [event for event in events if isinstance(event, Resumed)]
    met = of_all(task.met)
    if joined.rank == 0:
        steps = [sorted(itertools.chain(*each)) for each in zip(*met, strict=True)]
        print(json.dumps([came.epoch, came.step, came.world_size, steps]), flush=True)


@contextlib.contextmanager
def writing(instead):
    """Within, a share is written by `instead(write, copied, partial, rank)`."""
    write = storage.write
    storage.write = functools.partial(instead, write)
    yield
    storage.write = write


def one_cannot_write(path):
    """The checkpoint after step 12 is too large for rank 1: told with its reason, training goes on."""
    whole, _ = train(None)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limited(write, copied, partial, rank):
        if rank == 1 and partial.name.startswith("step-00000012"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        write(copied, partial, rank)

    with writing(limited):
        task, events = train(Keeping(path, 6))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert_alike(numbers(whole), numbers(task))
    if joined.rank == 0:
        notes = [event.text for event in events if isinstance(event, Notice)]
        saved = [event.step for event in events if isinstance(event, CheckpointSaved)]
        print(json.dumps([saved, notes, [each.name for each in path.iterdir()]]), flush=True)


def one_dies_saving(path):
    """Rank 1 is killed while it writes the second checkpoint."""

    def dies(write, copied, partial, rank):
        if rank == 1 and partial.name.startswith("step-00000009"):
            partial.mkdir(exist_ok=True)
            (partial / "__1_0.distcp").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        write(copied, partial, rank)

    with writing(dies):
        train(Keeping(path, EVERY))


def is_not_shared(path):
    """What has the same name on rank 1 is another folder: told on all ranks."""
    path = path.relative_to(Path.cwd())
    if joined.rank == 1:
        (place / "elsewhere" / path).mkdir(parents=True)
        os.chdir(place / "elsewhere")
    for use in (folder.share, lambda path: dt.save(path, state={})):
        with pytest.raises(CheckpointError, match=r"^host \S+ does not share /\S+ with rank 0"):
            use(path)


joined = session.init(sys.argv[1])
place = Path(sys.argv[2])
os.chdir(place)
for argument in sys.argv[3:]:
    what, _, of = argument.partition(":")
    path = place / (of or what)
    if joined.rank == 0:
        folder.prepare(path)
    globals()[what](path)
session.leave()
