"""Checkpoints of several ranks: bit by bit on as many, each sample once on others, and their faults."""

import json
from pathlib import Path

from doubletime.training.checkpoint import folder
from doubletime.training.data import ShardedSampler
from ranks import ROOT, run_ranks
from training.resumed_task import SAMPLES, Noisy

JOB = Path(__file__).with_name("resume_job.py")
ENV = {"PYTHONPATH": str(ROOT / "tests")}


def _run(n, backend, path, *what):
    return run_ranks(JOB, n, env=ENV, args=[backend, str(path), *what], timeout=90)


def _batches():
    """Each step's global batch."""
    sampler = ShardedSampler(SAMPLES, Noisy.global_batch, rank=0, world_size=1, seed=Noisy.seed)
    steps = []
    for sampler.epoch in range(Noisy.epochs):
        steps += [sorted(batch) for batch in sampler]
    return steps


def _met_after(done, world_size):
    """What a job met that went on; whether it was all that was to come is for the caller."""
    epoch, step, saved_by, met = json.loads(done.stdout.splitlines()[-1])
    assert saved_by == world_size
    return (epoch - 1) * 4 + step, met


def test_ranks_over_mpi_go_on(tmp_path):
    done = _run(2, "mpi", tmp_path, "resumes", "stops", "one_cannot_write", "is_not_shared").check()
    saved, notes, names = json.loads(done.stdout.splitlines()[-1])
    assert saved == [6]
    [note] = notes
    assert note.startswith("no checkpoint after step 12: rank 1: File too large")
    assert names == ["step-00000006"]
    step, met = _met_after(_run(3, "mpi", tmp_path, "goes_on:stops").check(), 2)
    assert step in (6, 7, 8)  # told at one step, known to all at the next
    assert met == _batches()[step:]


def test_ranks_over_gloo_go_on_when_one_has_died_while_saving(tmp_path):
    done = _run(3, "gloo", tmp_path, "resumes", "one_dies_saving")
    assert done.exit_code != 0
    assert "Error" not in done.stderr.partition("resume_job")[0]
    path = tmp_path / "one_dies_saving"
    assert folder.step_of(folder.whole(path)[0]) == 6
    assert (path / "step-00000009.partial").exists()
    step, met = _met_after(_run(1, "gloo", tmp_path, "goes_on:one_dies_saving").check(), 3)
    assert (step, met) == (6, _batches()[6:])
    assert not list(path.glob("*.partial"))
