"""The leak police catches what it is there for."""

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

CONFTEST = Path(__file__).with_name("conftest.py")

LEAKS = {
    "thread": """
        import threading, time
        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
    """,
    "process": """
        import subprocess
        subprocess.Popen(["sleep", "9"])
    """,
    "variable": """
        import os
        os.environ["LEFT"] = "1"
    """,
    "file": """
        from multiprocessing.shared_memory import SharedMemory
        globals().update(kept=SharedMemory(create=True, size=9))
    """,
}


def _command(tmp_path, body, *options):
    """A session of its own over one test with this body, under the project's conftest."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    test = tmp_path / "test_leak.py"
    body = textwrap.indent(textwrap.dedent(body), "    ")
    test.write_text(f"def test_leak():{body}\ndef test_next():\n    pass\n")
    ini = ["-p", "no:cacheprovider", "-o", f"pythonpath={CONFTEST.parent}"]
    return [sys.executable, "-m", "pytest", "-q", *ini, *options, "--rootdir", tmp_path, test]


def _run(tmp_path, body, *options):
    return subprocess.run(
        _command(tmp_path, body, *options),
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    ).stdout  # fmt: skip


@pytest.mark.parametrize("kind", LEAKS)
def test_a_leak_fails_its_test_and_only_that(tmp_path, kind):
    output = _run(tmp_path, LEAKS[kind])
    assert f"the test left behind: {kind} " in output
    assert "2 passed, 1 error" in output


def test_a_leak_is_found_in_a_parallel_run_too(tmp_path):
    output = _run(tmp_path, LEAKS["process"], "-n", "2")
    assert "the test left behind: process " in output
    assert "2 passed, 1 error" in output


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one by one", "parallel"])
def test_the_end_of_a_run_is_the_end_of_its_jobs(tmp_path, options):
    body = f"""
        from ranks import run_command
        run_command(["sh", "-c", "setsid sleep 600 & echo $! > {tmp_path}/pid; wait"])
    """
    pid = tmp_path / "pid"
    with subprocess.Popen(
        _command(tmp_path, body, *options), stdout=subprocess.DEVNULL, cwd=tmp_path
    ) as session:
        end_s = time.monotonic() + 40
        while not (pid.exists() and pid.read_text()):
            assert session.poll() is None
            assert time.monotonic() < end_s
            time.sleep(0.05)
        began_s = time.monotonic()
        session.send_signal(signal.SIGTERM)
        assert session.wait(30) == pytest.ExitCode.INTERRUPTED
    assert time.monotonic() - began_s < 20
    orphan = int(pid.read_text())
    assert not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE


def test_a_clean_test_passes(tmp_path):
    assert "2 passed in" in _run(tmp_path, "\npass\n")
