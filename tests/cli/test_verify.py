"""`doubletime verify`: its answer, its exit code, and what it refuses."""

import json
import sys
import tempfile
from pathlib import Path

import pytest

from ranks import run_command

VERIFY = [sys.executable, "-m", "doubletime", "verify"]

SUMMED = """
import torch
import doubletime as dt

class Summed(dt.Task):
    global_batch = 4
    def model(self):
        return torch.nn.Linear(3, 2)
    def train_data(self):
        inputs = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
        return inputs, torch.arange(16) % 2
    def loss(self, model, batch):
        inputs, targets = batch
        return torch.nn.functional.cross_entropy(model(inputs), targets, reduction="sum")
"""


@pytest.fixture(autouse=True)
def no_records_are_left():
    yield
    assert not list(Path(tempfile.gettempdir()).glob("doubletime-verify-*"))


def test_equal_ranks_are_told_so(tmp_path):
    command = [*VERIFY, "digits", "-n", "2", "--steps", "3"]
    shown = run_command(command, cwd=tmp_path, timeout=90).check().stdout
    assert "digits on 2 ranks and on 1 process: equal to " in shown
    assert " over 3 steps" in shown
    assert " in float64, float32 itself is " in shown
    assert "\x1b" not in shown
    assert not list(tmp_path.iterdir())


KEPT = """
import torch
import doubletime as dt

class Kept(dt.Task):
    # Each call of its model shifts the next: what a rank computes depends on what it computed before.
    global_batch = 16
    def model(self):
        return Shifting()
    def train_data(self):
        inputs = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
        return inputs, torch.arange(16) % 2

class Shifting(torch.nn.Linear):
    calls = 0
    def __init__(self):
        super().__init__(3, 2)
    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs + 0.01 * self.calls)
"""


def test_reproducible_ranks_have_the_same_bits_or_are_told_not_to(tmp_path):
    (tmp_path / "kept.py").write_text(KEPT)
    command = [*VERIFY, "-n", "2", "--steps", "2", "--reproducible"]
    shown = run_command([*command, "digits"], cwd=tmp_path, timeout=90).check().stdout
    assert "digits on 2 ranks and on 1 process: equal to 0 over 2 steps" in shown
    assert "note: compared bit by bit" in shown
    done = run_command([*command, "kept.py"], cwd=tmp_path, timeout=90)
    assert done.exit_code == 1
    assert "Kept on 2 ranks and on 1 process: not equal, first in step 1: gradients of " in (
        done.stdout
    )
    assert "likely cause: something depends on the number of ranks" in done.stdout


def test_a_fault_is_told_once_with_its_remedy(tmp_path):
    (tmp_path / "summed.py").write_text(SUMMED)
    command = [*VERIFY, "summed.py", "-n", "2", "--steps", "2", "--backend", "gloo"]
    done = run_command(command, cwd=tmp_path, timeout=90)
    assert done.exit_code == 1
    assert "Summed on 2 ranks and on 1 process: not equal, first in step 1: gradients of " in (
        done.stdout
    )
    assert "likely cause: the loss is a sum" in done.stdout
    assert 'remedy: return the mean over the samples: reduction="mean"' in done.stdout
    assert "failed" not in done.stderr
    assert "Traceback" not in done.stderr


def test_all_that_was_found_can_be_read_by_programs(tmp_path):
    (tmp_path / "summed.py").write_text(SUMMED)
    command = [*VERIFY, "summed.py", "-n", "2", "--steps", "2", "--json", "--tolerance", "1e-3"]
    done = run_command(command, cwd=tmp_path, timeout=90)
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["is_equal"] is False
    assert found["judged_in"] == "float32"
    assert found["tolerance"] == 1e-3
    assert found["first"]["kind"] == "gradients"
    assert found["first"]["distance"] == pytest.approx(0.5, rel=1e-3)
    assert [row["step"] for row in found["rows"]] == [1, 2]


@pytest.mark.parametrize(
    ("command", "code", "what"),
    [
        ([*VERIFY, "absent.py"], 1, "there is no task file absent.py"),
        ([*VERIFY, "digits", "-n", "1"], 2, "Invalid value for '-n'"),
        ([*VERIFY, "digits", "-n", "2", "--mesh", "tp=3"], 1, 'mesh "tp=3" needs 3 ranks'),
        ([*VERIFY, "digits", "--mesh", "fspd=2"], 1, "did you mean fsdp?"),
        ([*VERIFY, "digits", "-n", "2", "--tolerance", "-1"], 1, "is no distance"),
        (["mpiexec", "-n", "2", *VERIFY, "digits"], 1, "verify starts ranks itself"),
    ],
    ids=["task", "one rank", "ranks that form no mesh", "no axis", "tolerance", "launcher"],
)
def test_what_cannot_be_verified_is_refused(tmp_path, command, code, what):
    done = run_command(command, cwd=tmp_path)
    assert done.exit_code == code
    assert what in done.stderr
    assert "Traceback" not in done.stderr
