"""`doubletime train`: alone, on several ranks, compared, and refused."""

import json
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from ranks import run_command, start_command

TRAIN = [sys.executable, "-m", "doubletime", "train"]
QUICK = ["digits", "--epochs", "1", "--limit", "240"]

FAILING = """
import torch
import doubletime as dt

class Failing(dt.Task):
    global_batch = 4
    def model(self):
        return torch.nn.Linear(1, 2)
    def train_data(self):
        inputs = torch.ones(16, 1)
        inputs[:] = float("inf")
        return inputs, torch.zeros(16, dtype=torch.int64)
"""


def _result(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return json.loads(lines[-1])


def test_one_rank_and_two_give_the_same_model(tmp_path):
    for name, more in (
        ("one", []),
        ("two", ["-n", "2"]),
        ("gloo", ["-n", "2", "--backend", "gloo"]),
    ):
        command = [*TRAIN, *QUICK, "--name", name, *more]
        shown = run_command(command, cwd=tmp_path, timeout=90).check().stdout
        assert "epoch 1/1" in shown
        assert "\x1b" not in shown
    one, two, gloo = (_result(tmp_path / "runs" / name) for name in ("one", "two", "gloo"))
    assert (one["world_size"], two["world_size"], gloo["world_size"]) == (1, 2, 2)
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert gloo["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert two["metrics"]["accuracy"] == pytest.approx(one["metrics"]["accuracy"], abs=0.01)


def test_compare_ends_in_a_table_of_both(tmp_path):
    command = [*TRAIN, *QUICK, "-n", "2", "--compare", "--name", "both", "--runs", "kept"]
    shown = run_command(command, cwd=tmp_path, timeout=90).check().stdout
    table = shown[shown.rindex("digits ") :]
    assert "1 rank" in table
    assert "2 ranks" in table
    assert "speed-up" in table
    assert "waiting for communication" in table
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["both-n1", "both-n2"]


def test_a_loss_that_is_not_finite_ends_the_job_and_is_told_once(tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    done = run_command([*TRAIN, "failing.py", "-n", "2"], cwd=tmp_path)
    assert done.exit_code == 1
    assert done.stderr.count("the loss is nan at step 1 of epoch 1, on rank") == 1
    assert "remedy: mend the data, or --on-nan skip" in done.stderr
    assert done.stderr.startswith("doubletime: rank ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["absent.py"], "there is no task file absent.py\n  remedy: you are in "),
        (["absent.py", "-n", "2"], "there is no task file absent.py\n  remedy: you are in "),
        (
            ["digits", "--compare"],
            "--compare needs more than 1 rank to compare with\n  remedy: add -n 2",
        ),
        (["digits", "--epochs", "0"], "epochs is 0\n  remedy: give epochs 1 or more"),
        (
            ["digits", "-n", "2", "--outer", "diloco"],
            "outer is given, but ranks average gradients at each step\n  remedy: add --local-steps",
        ),
        (
            ["digits", "-n", "2", "--precision", "fp8"],
            "precision is 'fp8'\n  remedy: one of fp32, bf16, fp16",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_in_two_lines(tmp_path, arguments, what):
    done = run_command([*TRAIN, *arguments], cwd=tmp_path)
    assert done.exit_code == 1
    assert done.stderr.startswith(what)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["-n", "3"], "-n 3 was asked for, but MPICH or Intel MPI started 1 ranks"),
        (
            ["--compare"],
            "--compare starts ranks itself, but MPICH or Intel MPI started this process",
        ),
    ],
)
def test_a_rank_starts_no_ranks(tmp_path, arguments, what):
    done = run_command(["mpiexec", "-n", "1", *TRAIN, *QUICK, *arguments], cwd=tmp_path)
    assert done.exit_code != 0
    assert what in done.stderr


def test_without_the_images_digits_are_trained_and_it_says_so(tmp_path):
    env = {
        "DOUBLETIME_DATA": None,
        "XDG_CACHE_HOME": str(tmp_path),
        "PATH": str(Path(sys.executable).parent),  # no apt-get
        "https_proxy": "http://127.0.0.1:9",
    }
    if Path("/usr/share/datasets/fashion-mnist").exists():
        pytest.skip("Debian's package is installed here")
    command = [*TRAIN, "fashion-mnist", "-n", "2", "--epochs", "1", "--limit", "240"]
    shown = run_command(command, cwd=tmp_path, env=env, timeout=90).check().stdout
    assert "note: Fashion-MNIST could not be had:" in shown
    assert "instead of fashion-mnist, this trains digits" in shown
    assert "digits: 240 images to train" in shown
    [folder] = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("digits-")


STOPS = [*TRAIN, "digits", "--limit", "240", "--epochs", "100000", "--name", "long"]


def _wait_for(job, words):
    end = time.monotonic() + 60
    while words not in "".join(job.output()):
        assert job.process.poll() is None, job.output()
        assert time.monotonic() < end, job.output()
        time.sleep(0.05)


def _stopped(command, tmp_path, words):
    """Start it, tell it to end once it has written `words`: what its run's folder holds then."""
    with start_command(command, cwd=tmp_path) as job:
        _wait_for(job, words)
        time.sleep(0.2)
        job.process.send_signal(signal.SIGTERM)
        done = job.wait(100)  # since its start
    assert done.exit_code == 143
    assert ", which is saved: --resume auto goes on from there" in done.stdout
    assert "Traceback" not in done.stderr
    folder = tmp_path / "runs" / "long"
    saved = sorted(str(path.relative_to(tmp_path)) for path in folder.glob("checkpoints/*"))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return saved, [json.loads(line) for line in lines]


def test_sigterm_saves_and_resume_goes_on(tmp_path):
    command = [*STOPS, "--checkpoint-every", "1000000"]
    [first], _ = _stopped([*command, "-n", "2"], tmp_path, "epoch 1/100000  loss")
    saved, events = _stopped([*command, "--resume", "auto"], tmp_path, "(saved by 2 ranks)")
    assert (len(saved), saved[0]) == (2, first)
    [came] = [event for event in events if event["event"] == "Resumed"]
    assert (came["path"], came["world_size"]) == (first, 2)


def test_resume_finds_the_last_run_and_says_where_there_is_none(tmp_path):
    run_command([*TRAIN, *QUICK], cwd=tmp_path, timeout=90).check()
    command = [*TRAIN, "digits", "--limit", "240", "--epochs", "2", "--resume", "auto"]
    shown = run_command(command, cwd=tmp_path, timeout=90).check().stdout
    assert "goes on in epoch 2 after 0 steps, from runs/digits-" in shown
    assert "epoch 1/2" not in shown
    [folder] = (tmp_path / "runs").iterdir()
    (tmp_path / "empty").mkdir()
    done = run_command([*TRAIN, "digits", "--resume", "empty"], cwd=tmp_path)
    assert done.exit_code == 1
    assert done.stderr.startswith("there is no checkpoint in empty\n  remedy: --resume PATH takes ")
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").write_text("")
    done = run_command([*command, "-n", "2"], cwd=tmp_path)
    assert done.exit_code == 1
    assert "checkpoints cannot be written: " in done.stderr


def test_a_time_of_grace_that_is_none_is_refused(tmp_path):
    env = {"DOUBLETIME_GRACE_S": "soon"}
    done = run_command([*TRAIN, *QUICK, "-n", "2"], cwd=tmp_path, env=env)
    assert done.exit_code == 1
    assert done.stderr == (
        "DOUBLETIME_GRACE_S='soon' is no time in seconds\n"
        "  remedy: DOUBLETIME_GRACE_S=30, or unset it\n"
    )
