"""The leak police catches what it is there for."""

import subprocess
import sys
import textwrap
from pathlib import Path

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


def _run(tmp_path, body):
    """A session of its own over one test with this body, under the project's conftest."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    test = tmp_path / "test_leak.py"
    body = textwrap.indent(textwrap.dedent(body), "    ")
    test.write_text(f"def test_leak():{body}\ndef test_next():\n    pass\n")
    options = ["-p", "no:cacheprovider", "-o", f"pythonpath={CONFTEST.parent}"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, "--rootdir", tmp_path, test],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    ).stdout  # fmt: skip


@pytest.mark.parametrize("kind", LEAKS)
def test_a_leak_fails_its_test_and_only_that(tmp_path, kind):
    output = _run(tmp_path, LEAKS[kind])
    assert f"the test left behind: {kind} " in output
    assert "2 passed, 1 error" in output


def test_a_clean_test_passes(tmp_path):
    assert "2 passed in" in _run(tmp_path, "\npass\n")
