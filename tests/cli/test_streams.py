"""Commands whose output cannot be written, whose streams are closed, whose folder is gone."""

import shlex
import sys

import pytest

from ranks import run_command

DOUBLETIME = shlex.join([sys.executable, "-m", "doubletime"])
FULL = "No space left on device"


def shell(line, folder, **environment):
    """What a shell makes of a line, in which `doubletime` is the command."""
    line = line.replace("doubletime", DOUBLETIME)
    return run_command(["bash", "-c", line], cwd=folder, env=environment)


@pytest.mark.parametrize("arguments", ["explain --list", "run --dry-run -n 1 sh", "--help"])
def test_a_full_disk_is_told_and_no_traceback(arguments, tmp_path):
    ended = shell(f"doubletime {arguments} >/dev/full", tmp_path)
    assert ended.exit_code == 1
    assert ended.stderr.startswith(f"what this command tells cannot be written: {FULL}\n  remedy: ")
    assert "Traceback" not in ended.stderr


def test_a_job_outlives_a_full_disk_and_its_end_tells_of_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("print('x' * 9999, flush=True)\nopen('done', 'w').close()\n")
    ended = shell("doubletime run -n 1 --max-restarts 2 program.py >/dev/full", tmp_path)
    assert ended.exit_code == 1
    assert ended.stderr.count(FULL) == 1
    assert "restart" not in ended.stderr  # the job itself went well
    assert (tmp_path / "done").exists()


def test_closed_streams_are_as_if_nobody_read(tmp_path):
    ended = shell(
        "doubletime run -n 1 -- sh -c 'echo there; echo said >&2' >&-; echo $?; "
        "doubletime run -n 1 -- echo heard <&- 2>&-; echo $?",
        tmp_path,
    )
    assert ended.check().stdout == "0\nheard\n0\n"
    assert ended.stderr == "said\n"


def test_a_reader_that_has_seen_enough_and_a_width_of_nothing(tmp_path):
    ended = shell(
        "doubletime explain ring -n 16 | head -c 4; exit ${PIPESTATUS[0]}", tmp_path, COLUMNS="0"
    )
    assert ended.exit_code in (1, 141)
    assert (ended.stdout, ended.stderr) == ("ring", "")


def test_a_folder_that_is_gone_is_told(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    ended = shell("rmdir ../folder; doubletime run -n 1 -- true", folder)
    assert ended.exit_code == 1
    assert (
        ended.stderr
        == "the folder in which you are is no longer there\n  remedy: cd to another one\n"
    )
