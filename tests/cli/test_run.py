"""`doubletime run`, with real jobs."""

import json
import os
import shlex
import subprocess
import time

import pytest

from ranks import run_command, start_command, venv

WHERE = """
import json, os, sys
place = os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
print(json.dumps([int(place), sys.argv, sorted(os.sched_getaffinity(0)),
      os.environ["OMP_NUM_THREADS"], os.environ["DOUBLETIME_LAUNCHER"], sys.stdin.read()]))
"""


def command(*arguments, mpi=None):
    return [str(venv(mpi) / "bin" / "python"), "-m", "doubletime", "run", *map(str, arguments)]


def run(*arguments, mpi=None, **options):
    return run_command(command(*arguments, mpi=mpi), mpi=mpi, **options)


def write(folder, text, name="program.py"):
    path = folder / name
    path.write_text(text)
    return path


def rows(ended):
    return sorted(json.loads(line) for line in ended.check().stdout.splitlines())


def test_each_rank_runs_the_script_with_what_follows_it(mpi, tmp_path):
    script = write(tmp_path, WHERE)
    found = rows(run("-n", 2, script, "-n", 7, "--dry-run", "a b", mpi=mpi))
    assert [row[0] for row in found] == [0, 1]
    assert all(row[1] == [str(script), "-n", "7", "--dry-run", "a b"] for row in found)
    assert all(row[4:] == ["run", ""] for row in found)
    own = len(os.sched_getaffinity(0))
    if own >= 2 and own == os.cpu_count():
        assert not set(found[0][2]) & set(found[1][2])


def test_more_ranks_than_cores_run_unbound_with_a_note(mpi, tmp_path):
    ranks = len(os.sched_getaffinity(0)) + 1
    ended = run("-n", ranks, write(tmp_path, WHERE), mpi=mpi, env={"OMP_NUM_THREADS": None})
    found = rows(ended)
    assert len(found) == ranks
    assert {row[3] for row in found} == {"1"}
    assert f"{ranks} ranks share" in ended.stderr


def test_the_printed_command_does_the_same(mpi, tmp_path):
    script = write(tmp_path, WHERE)
    line = run("-n", 2, "--dry-run", script, "a b", mpi=mpi).check().stdout
    assert line.count("\n") == 1
    copied = run_command(["sh", "-c", line], mpi=mpi)
    assert rows(copied) == rows(run("-n", 2, script, "a b", mpi=mpi))


def test_dry_run_names_exactly_what_is_started(tmp_path):
    script = write(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    words = shlex.split(run("-n", 1, "--dry-run", script).check().stdout)
    with start_command(command("-n", 1, script)) as job:
        deadline = time.monotonic() + 30
        while "up" not in job.output()[0] and time.monotonic() < deadline:
            time.sleep(0.05)
        lines = [process.cmdline() for process in job.processes()]
        launcher = next(line for line in lines if line and line[0].endswith("mpiexec"))
        assert words[-len(launcher) :] == launcher
        job.interrupt()
        assert job.wait(20).exit_code == 130


def test_a_module_and_an_executable(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    write(package, "import sys\nprint(__name__, sys.argv[1:])\n", "module.py")
    ended = run("-n", 2, "-m", "package.module", "-n", "x", cwd=tmp_path).check()
    assert ended.stdout == "__main__ ['-n', 'x']\n" * 2
    assert run("-n", 2, "echo", "-n", "hello").check().stdout == "hellohello"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.py"], "no script absent.py"),
        (["-m", "absent_module"], "no module named absent_module"),
        (["-m"], "-m names no module"),
        (["absent-program"], "neither a script"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_starts(arguments, message):
    ended = run("-n", 2, *arguments)
    assert ended.exit_code == 1
    assert message in ended.stderr
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message", "environment"),
    [
        (["-n", 99999, "true"], "99999 processes on the ", {}),
        (
            ["--log-folder", "/dev/null/x", "true"],
            "/dev/null/x cannot be made: Not a directory",
            {},
        ),
        (["true"], "DOUBLETIME_GRACE_S='²' is no time in seconds", {"DOUBLETIME_GRACE_S": "²"}),
    ],
)
def test_what_cannot_be_is_refused(arguments, message, environment):
    ended = run(*arguments, env=environment)
    assert ended.exit_code == 1
    assert message in ended.stderr
    assert "remedy: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_logs_that_nobody_asked_for_are_left_out_where_nothing_can_be_written(tmp_path):
    program = (
        "import os\nfrom doubletime.cli import run\n"
        "for base in ('/proc/logs', '', 'logs'):\n"
        "    os.environ['DOUBLETIME_LOGS'] = base\n"
        "    print(run._new_log_folder() is not None)"
    )
    ended = run_command([str(venv(None) / "bin" / "python"), "-c", program], cwd=tmp_path)
    assert ended.check().stdout == "False\nFalse\nTrue\n"
    assert "what each rank writes is not kept: /proc: " in ended.stderr


def test_large_output_is_not_lost(mpi, tmp_path):
    script = write(tmp_path, "import sys\nfor i in range(20000):\n    print('x' * 79)\n"
                   "    print('y' * 79, file=sys.stderr)\n")  # fmt: skip
    ended = run("-n", 2, script, mpi=mpi).check()
    # Counted by letter: a launcher may tear lines of two ranks apart, but loses none.
    assert ended.stdout.count("x") == 40000 * 79
    assert ended.stderr.count("y") == 40000 * 79


def test_standard_input_is_left_for_others(tmp_path):
    script = write(tmp_path, "import sys\nsys.stdin.read()\n")
    line = f"{shlex.join(command('-n', 2, script))}; cat"
    done = subprocess.run(
        ["sh", "-c", line], input="mine\n", capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "mine\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_is_one_write(tmp_path, unbuffered, monkeypatch):
    """However Python is told to buffer: other ranks' lines may come before and after, not within."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    script = write(
        tmp_path,
        "import os, sys\n"
        "reading, writing = os.pipe()\n"
        "os.dup2(writing, 1)\n"
        "print('a', 1, 'b')\n"
        "sys.stderr.write(repr(os.read(reading, 99)))\n",
    )
    done = subprocess.run(command("-n", 1, script), capture_output=True, text=True, timeout=60)
    assert "b'a 1 b\\n'" in done.stderr


def test_a_reader_that_has_seen_enough_ends_the_job(tmp_path):
    script = write(tmp_path, "while True: print('y' * 1000)\n")
    line = f"{shlex.join(command('-n', 2, script))} | head -1"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.stdout == "y" * 1000 + "\n"
    assert "Traceback" not in done.stderr


def test_the_script_is_the_main_module(tmp_path):
    script = write(
        tmp_path,
        "import multiprocessing, pickle, sys, atexit\n"
        "import beside\n"
        "class Thing: pass\n"
        "def double(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    assert pickle.loads(pickle.dumps(Thing())).__class__ is Thing\n"
        "    assert sys.modules['__main__'].Thing is Thing\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(double, [beside.value]))\n"
        "    atexit.register(lambda: print(Thing.__name__))\n",
    )
    write(tmp_path, "value = 21\n", "beside.py")
    assert run("-n", 1, script).check().stdout == "[42]\nThing\n"


@pytest.mark.parametrize(
    ("arguments", "message", "remedy"),
    [
        (["--hosts", "a:2,b", "-n", "2", "--hostfile", "x"], "both name hosts", "leave one"),
        (["--hosts", "a:2,b,a"], "host a is listed twice", "list it once, as a:3"),
        (["--hosts", "a:two"], "'two' is no number of slots", "--hosts node1:2"),
        (["--hosts", "a:2,b:2", "-n", "5"], "5 ranks are more than the 4 slots", "-n 4"),
        (
            ["--hosts", "a:2,b:2", "-n", "3", "--per-host", "2"],
            "does not divide -n 3",
            "-n 2 or -n 4",
        ),
        (["--hosts", "a:1", "--per-host", "2"], "host a has 1 slot", "a:2"),
        (["--hostfile", "absent"], "hostfile absent cannot be read", "--hostfile FILE"),
        (["--hostfile", "hosts"], "hosts, line 2: 'b slot=2'", "`node1 slots=2`"),
        (["--env", "A"], "--env 'A' is no NAME=VALUE", "--env NCCL_DEBUG=INFO"),
        (["--env", "1A=2"], "no NAME=VALUE", "--env"),
        (["--ssh-config", "absent"], "there is no such file", "--ssh-config FILE"),
        (["--ssh-command", "ssh 'x"], "No closing quotation", "--ssh-command"),
        (["--ssh-command", ""], "names no command", "--ssh-command"),
        (["--backend", "glue"], "--backend 'glue' is none of", "--backend mpi"),
        (["--launcher", "rsh"], "--launcher 'rsh' is none of", "--launcher mpi"),
    ],
)
def test_what_cannot_be_started_as_asked_is_told_before_anything_starts(
    arguments, message, remedy, tmp_path
):
    (tmp_path / "hosts").write_text("a:2\nb slot=2\n")
    ended = run(*arguments, "true", cwd=tmp_path)
    assert ended.exit_code == 1
    assert message in ended.stderr
    assert remedy in ended.stderr.partition("remedy:")[2]
    assert ended.stdout == ""


def test_options_end_where_the_program_begins(tmp_path):
    """Whatever has a value is not the program, and what follows the program is its own."""
    script = write(tmp_path, "")
    options = ["--hosts", "n[1-2]:2", "-n", "2", "--per-host=1", "--env", "A=b", "--backend", "mpi"]
    for program in ([str(script)], ["-m", "this"]):
        own = ["--hosts", "x", "--unknown", "-m", "-n"]
        line = run(*options, "--dry-run", *program, *own).check().stdout
        assert shlex.split(line)[-len(program + own) :] == [*program, *own]
        assert "-hosts n1:1,n2:1" in line


def test_a_variable_of_the_command_line_wins(mpi, tmp_path):
    script = write(tmp_path, "import os; os.write(1, os.environ['SAID'].encode() + b'\\n')\n")
    ended = run("-n", 2, "--env", "SAID=a b", script, mpi=mpi, env={"SAID": "else"})
    assert ended.check().stdout == "a b\n" * 2


def test_a_single_host_that_is_this_one_needs_no_ssh(tmp_path):
    ended = run("--hosts", f"{os.uname().nodename}:2", "--ssh-command", "false", "echo", "here")
    assert ended.check().stdout == "here\n" * 2
