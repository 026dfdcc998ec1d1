"""A training that stops and goes on is the training that never stopped; what goes wrong is told."""

import contextlib
import gc
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from doubletime.errors import CheckpointError
from doubletime.training.checkpoint import folder, storage
from doubletime.training.events import CheckpointSaved, EpochDone, Notice, Resumed
from doubletime.training.keeping import Keeping
from doubletime.training.preemption import Preempted
from training.resumed_task import Noisy, numbers, train


def _of(events, kind):
    return [event for event in events if isinstance(event, kind)]


def _epochs(events):
    return [(e.epoch, e.loss, dict(e.metrics)) for e in _of(events, EpochDone)]


def _again(path, every=None, task=None):
    return train(Keeping(path, every, candidates=tuple(folder.whole(path))), task=task)


@pytest.fixture(scope="module")
def uninterrupted():
    task, events = train(None)
    return numbers(task), _epochs(events)


@pytest.mark.parametrize(("every", "stop_after"), [(None, 6), (3, 6), (3, 11), (4, 5), (1, 10)])
def test_resumed_is_bit_identical(tmp_path, uninterrupted, every, stop_after):
    before = _epochs(train(Keeping(tmp_path, every), stop_after)[1])
    task, after = _again(tmp_path, every)
    [came] = _of(after, Resumed)
    assert came.world_size == 1
    found = numbers(task)
    assert all(torch.equal(found[name], each) for name, each in uninterrupted[0].items())
    assert before[: came.epoch - 1] + _epochs(after) == uninterrupted[1]


def test_checkpoints_do_not_change_what_is_trained(tmp_path, uninterrupted):
    task, events = train(Keeping(tmp_path, 1, keep=2))
    found = numbers(task)
    assert all(torch.equal(found[name], each) for name, each in uninterrupted[0].items())
    assert [event.step for event in _of(events, CheckpointSaved)] == list(range(1, 13))
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] != []
    assert [folder.step_of(path) for path in folder.whole(tmp_path)] == [12, 11]


def test_a_run_that_is_complete_has_nothing_left_to_do(tmp_path, uninterrupted):
    train(Keeping(tmp_path))
    task, events = _again(tmp_path)
    assert not task.met
    assert _epochs(events) == []
    assert events[-1].loss == uninterrupted[1][-1][1]
    assert events[-1].metrics == uninterrupted[1][-1][2]


def test_what_a_dead_run_left_half_written_is_not_taken(tmp_path):
    train(Keeping(tmp_path), 6)
    [whole] = folder.whole(tmp_path)
    half = folder.partial(tmp_path, 8)
    half.mkdir()
    (half / "__0_0.distcp").write_bytes(b"half")
    assert folder.whole(tmp_path) == [whole]
    folder.prepare(tmp_path)
    assert not half.exists()
    assert folder.whole(tmp_path) == [whole]


def _truncate(path):
    [file] = path.glob("*.distcp")
    os.truncate(file, file.stat().st_size // 2)


def _garble(path):
    [file] = path.glob("*.distcp")
    content = bytearray(file.read_bytes())
    for start in range(0, len(content), 64):
        content[start] ^= 0xFF
    file.write_bytes(content)


DAMAGES = {
    "truncated": (_truncate, "__0_0.distcp has "),
    "garbled": (_garble, "is damaged: "),
    "a file is missing": (lambda path: next(path.glob("*.distcp")).unlink(), "distcp is missing"),
    "no description": (lambda path: (path / ".metadata").unlink(), ".metadata cannot be read"),
    "half a description": (lambda path: os.truncate(path / ".metadata", 100), ".metadata cannot"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_told_and_the_one_before_taken(tmp_path, uninterrupted, damage):
    spoil, words = DAMAGES[damage]
    train(Keeping(tmp_path, 2), 9)
    newest, before = folder.whole(tmp_path)[:2]
    spoil(newest)
    task, events = _again(tmp_path, 2)
    [note] = _of(events, Notice)
    assert words in note.text
    assert note.text.endswith("; the one before is taken")
    assert _of(events, Resumed)[0].path == str(before)
    assert newest.with_name(newest.name + ".damaged").is_dir()
    found = numbers(task)
    assert all(torch.equal(found[name], each) for name, each in uninterrupted[0].items())


def test_where_all_are_damaged_nothing_is_trained(tmp_path):
    train(Keeping(tmp_path), 6)
    for path in folder.whole(tmp_path):
        _truncate(path)
    with pytest.raises(CheckpointError, match="no checkpoint is whole: ") as caught:
        _again(tmp_path)
    assert "--resume never" in caught.value.remedy


class Wider(Noisy):
    def model(self):
        super().model()
        self.made = nn.Sequential(
            nn.Linear(5, 9), *self.made[1:5], nn.Linear(7, 3), nn.Linear(3, 3)
        )
        return self.made


class Longer(Noisy):
    epochs = 4


class Other(Noisy):
    global_batch = 7


@pytest.mark.parametrize(
    ("task", "what"),
    [
        (
            Wider,
            " is of another model: it lacks 6.weight, 6.bias; of another shape: "
            "0.weight (float32 [7, 5] there, float32 [9, 5] here), "
            "0.bias (float32 [7] there, float32 [9] here)",
        ),
        (Longer, " was made with epochs 3, this run has 4"),
        (Other, " was made with global batch 12, this run has 7"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_by_name(tmp_path, task, what):
    train(Keeping(tmp_path), 6)
    with pytest.raises(CheckpointError) as caught:
        _again(tmp_path, task=task())
    assert caught.value.what == f"{folder.whole(tmp_path)[0]}{what}"


def test_a_full_disk_stops_no_training(tmp_path, uninterrupted):
    if os.geteuid() != 0:
        pytest.skip("a small disk is mounted by root only")
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(tmp_path)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    filler = tmp_path / "filler"
    try:
        train(Keeping(tmp_path), 5)
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        task, events = _again(tmp_path)
        assert [note.text for note in _of(events, Notice)] == [
            f"no checkpoint after step {step}: rank 0: No space left on device; "
            "training goes on, the checkpoints before are whole"
            for step in (8, 12)
        ]
        found = numbers(task)
        assert all(torch.equal(found[name], each) for name, each in uninterrupted[0].items())
        filler.unlink()
        task, events = _again(tmp_path)
        assert folder.step_of(Path(_of(events, Resumed)[0].path)) == 4
        assert not list(tmp_path.glob("*.partial"))
        found = numbers(task)
        assert all(torch.equal(found[name], each) for name, each in uninterrupted[0].items())
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


class Clamping(Noisy):
    """Changes its parameters in the midst of a step."""

    def loss(self, model, batch):
        with torch.no_grad():
            for parameter in self.made.parameters():
                parameter.clamp_(-1, 1)
        return super().loss(model, batch)


def test_a_checkpoint_is_of_one_moment_or_none(tmp_path, monkeypatch):
    complete = storage.Copied.complete

    def slow(copied):
        time.sleep(0.05)
        complete(copied)

    monkeypatch.setattr(storage.Copied, "complete", slow)
    _, events = train(Keeping(tmp_path, 6), task=Clamping())
    [note] = _of(events, Notice)
    assert note.text.startswith(
        "no checkpoint after step 6: rank 0: parameters were changed outside of optimizer.step(); "
    )
    assert [event.step for event in _of(events, CheckpointSaved)] == [12]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(CheckpointError, match="runs/a cannot be written: Not a directory"):
        folder.prepare(tmp_path / "runs" / "a")


def test_sigterm_saves_and_ends_the_training(tmp_path, uninterrupted):
    before = signal.getsignal(signal.SIGTERM)

    def tell(step):
        if step == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Preempted) as caught:
        train(Keeping(tmp_path), at_step=tell)
    assert signal.getsignal(signal.SIGTERM) == before
    assert (caught.value.step, caught.value.is_saved) == (6, True)
    assert folder.step_of(folder.whole(tmp_path)[0]) == 6
    task, _ = _again(tmp_path)
    found = numbers(task)
    assert all(torch.equal(found[name], each) for name, each in uninterrupted[0].items())


class Rows(torch.utils.data.Dataset):
    """The data, loaded by a process."""

    def __init__(self, tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, index):
        return tuple(tensor[index] for tensor in self.tensors)


class Loaded(Noisy):
    num_workers = 1

    def train_data(self):
        return Rows(super().train_data())


def test_sigterm_to_a_loaders_worker_too_lets_the_rank_save(tmp_path):
    def tell(step):
        if step == 6:
            for child in psutil.Process().children():
                child.send_signal(signal.SIGTERM)
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Preempted) as caught:
        train(Keeping(tmp_path), at_step=tell, task=Loaded())
    assert caught.value.is_saved
    assert folder.step_of(folder.whole(tmp_path)[0]) == 6
    del caught  # its frames hold the loader
    gc.collect()
