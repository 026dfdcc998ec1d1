"""The command itself: help, version, exit codes."""

import subprocess
import sys

import pytest

import doubletime
from ranks import run_command

DOUBLETIME = [sys.executable, "-m", "doubletime"]


def test_version():
    assert (
        run_command([*DOUBLETIME, "--version"]).check().stdout
        == f"doubletime {doubletime.__version__}\n"
    )


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["train", "--help"]])
def test_help_is_cheap(arguments):
    program = (
        f"import sys; from doubletime.cli.main import main; sys.argv[1:] = {arguments!r}\n"
        "try: main()\n"
        "finally: assert not {'torch', 'mpi4py', 'numpy'} & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["run"], ["run", "-n", "0", "x.py"], ["nonsense"], ["run", "--no"]]
)
def test_a_wrong_call_exits_2(arguments):
    assert run_command([*DOUBLETIME, *arguments]).exit_code == 2


def test_an_error_is_plain_text_and_exits_1():
    ended = run_command([*DOUBLETIME, "run", "no/such.py"])
    assert ended.exit_code == 1
    assert ended.stderr.startswith("there is no script no/such.py")
    assert "remedy:" in ended.stderr
    assert "Traceback" not in ended.stderr
