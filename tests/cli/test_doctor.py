"""`doubletime doctor` on this machine alone, and what it refuses before it looks at anything."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from doubletime.cluster.doctor import record
from doubletime.collectives.places import hosts_path
from ranks import run_command


def doctor(*options: str, **more):
    return run_command([sys.executable, "-m", "doubletime", "doctor", *options], **more)


def test_this_machine_is_looked_at_and_kept(tmp_path: Path) -> None:
    profile = tmp_path / "profile.toml"
    done = doctor(env={"DOUBLETIME_PROFILE": str(profile)})
    assert "this machine: " in done.stdout
    assert "\x1b" not in done.stdout
    kept = record.read(hosts_path(profile))
    assert [host.name for host in kept.hosts] == ["this machine"]
    assert kept.is_fit == (done.exit_code == 0)


def test_json_is_all_that_is_printed() -> None:
    done = doctor("--json", "--no-save")
    found = json.loads(done.stdout)
    assert found["is_fit"] == (done.exit_code == 0)
    assert list(found["hosts"]) == ["this machine"]
    assert {"findings", "connections", "rates", "time_s"} <= set(found)
    for finding in found["findings"]:
        assert set(finding) == {"kind", "what", "host", "why", "remedy", "severity"}


def test_it_looks_without_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    profile = tmp_path / "profile.toml"
    done = doctor(env={"PYTHONPATH": str(tmp_path), "DOUBLETIME_PROFILE": str(profile)})
    assert "this machine: " in done.stdout, done.stderr
    assert "Traceback" not in done.stderr
    assert hosts_path(profile).exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--hosts", "a", "--hostfile", "hosts"], "both name hosts"),
        (["--hosts", "a,,b"], "a name is missing"),
        (["--hostfile", "no-such-file"], "cannot be read"),
        (["--hosts", "a", "--ssh-config", "no-such-file"], "there is no such file"),
        (["--hosts", "a", "--ssh-command", "no-such-ssh"], "no-such-ssh cannot be started"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_a_remedy(options: list[str], said: str) -> None:
    done = doctor("--no-save", *options)
    assert done.exit_code == 1
    assert said in done.stderr
    assert "remedy: " in done.stderr


def test_a_script_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    done = doctor("--no-save", "--script", str(tmp_path / "none.py"))
    assert done.exit_code == 1
    assert "none.py cannot be read here: No such file" in done.stdout
