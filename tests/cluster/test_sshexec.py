"""Our own launcher on this host: torchrun's contract, output, exit codes, and the end of all ranks."""

import os
import signal
import socket
import sys
import time

import pytest

from doubletime.cluster.host_agent import reserve_port
from doubletime.cluster.login import handed_over
from ranks import run_command, start_command

_SSHEXEC = [sys.executable, "-m", "doubletime.cluster.sshexec"]
_SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(os.environ["LOCAL_RANK"])])
dist.all_reduce(total)
os.write(1, f"{dist.get_rank()} of {dist.get_world_size()}: {total.item()}\\n".encode())
dist.destroy_process_group()
"""


def _run(ranks, *command, env=None, cwd=None):
    words = [*_SSHEXEC, "--hosts", f"localhost:{ranks}", "--", *command]
    return run_command(words, env=env, timeout=60, cwd=cwd)


def test_ranks_meet_over_gloo():
    done = _run(2, sys.executable, "-c", _SUM).check()
    assert sorted(done.stdout.splitlines()) == ["0 of 2: 1.0", "1 of 2: 1.0"]


def test_folder_environment_and_arguments_are_handed_over(tmp_path):
    (tmp_path / "a b").mkdir()
    shown = 'echo "$PWD|$SAID|$LOCAL_WORLD_SIZE|$MASTER_ADDR|$1|$PMI_RANK"; cat'
    env = {"SAID": "it's $HOME\n", "PMI_RANK": "3"}
    done = _run(1, "sh", "-c", shown, "sh", "x  y", env=env, cwd=tmp_path / "a b").check()
    assert done.stdout == f"{tmp_path}/a b|it's $HOME\n|1|127.0.0.1|x  y|\n"


def test_the_first_failed_rank_decides_and_all_end():
    done = _run(3, "sh", "-c", 'trap "" TERM; [ $RANK = 1 ] && exit 7; sleep 100 & wait')
    assert done.exit_code == 7
    assert "rank 1 on host localhost ended with exit code 7" in done.stderr
    assert done.seconds < 10


@pytest.mark.parametrize(
    ("command", "exit_code", "said"),
    [
        (["sh", "-c", "kill -9 $$"], 137, "exit code 137"),
        (["/no/such/program"], 127, "/no/such/program cannot be started"),
    ],
)
def test_how_a_rank_ended_is_the_exit_code(command, exit_code, said):
    done = _run(2, *command)
    assert done.exit_code == exit_code
    assert said in done.stderr


def test_ranks_get_the_limit_of_descriptors_that_was_set():
    line = f"ulimit -S -n 99; {' '.join(_SSHEXEC)} --hosts localhost:2 -- sh -c 'ulimit -n'"
    assert run_command(["sh", "-c", line], timeout=20).check().stdout == "99\n99\n"


def test_lines_of_ranks_are_not_torn_and_none_is_lost():
    noisy = 'i=0; while [ $i -lt 200 ]; do printf "%s" "$RANK "; echo "$i"; i=$((i+1)); done; printf end'
    done = _run(3, "sh", "-c", noisy).check()
    lines = done.stdout.replace("end", "\n").split("\n")
    for rank in range(3):
        mine = [line for line in lines if line.startswith(f"{rank} ")]
        assert mine == [f"{rank} {number}" for number in range(200)]


def test_output_that_outlives_its_rank_is_no_trouble():
    left = (
        '(sleep 0.$((RANK * 2)); echo late) & echo "rank $RANK"; [ $RANK = 1 ] && sleep 0.5; exit 0'
    )
    done = _run(2, "sh", "-c", left).check()
    assert done.stderr == ""
    assert sorted(done.stdout.splitlines()) == ["late", "late", "rank 0", "rank 1"]


def test_an_unfinished_line_comes_without_delay():
    words = [*_SSHEXEC, "--hosts", "localhost:1", "--", "sh", "-c", "printf half; sleep 100"]
    with start_command(words) as job:
        _wait_for(lambda: job.output()[0] == "half", job)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_told_to_end_it_ends_all(number):
    words = [*_SSHEXEC, "--hosts", "localhost:2", "--", "sh", "-c", "echo up; sleep 100 & wait"]
    with start_command(words) as job:
        _wait_for(lambda: job.output()[0] == "up\nup\n", job)
        os.kill(job.process.pid, number)
        assert job.wait(10).exit_code == 128 + number


def test_killed_it_leaves_nothing():
    words = [*_SSHEXEC, "--hosts", "localhost:2", "--", "sh", "-c", "echo up; sleep 100 & wait"]
    with start_command(words) as job:
        _wait_for(lambda: job.output()[0] == "up\nup\n", job)
        job.process.kill()
        job.process.wait()
        _wait_for(lambda: not job.processes(), job)


def test_a_reader_that_has_seen_enough_ends_it():
    line = f"{sys.executable} -m doubletime.cluster.sshexec --hosts localhost:2 -- yes | head -n 1"
    assert run_command(["sh", "-c", line], timeout=20).check().stdout == "y\n"


def test_a_command_line_that_is_wrong_is_explained():
    done = run_command([*_SSHEXEC, "--hosts", "a:x", "--", "true"])
    assert done.exit_code == 2
    assert "'x' is no number of slots" in done.stderr
    done = run_command([*_SSHEXEC, "--hosts", "a:1"])
    assert done.exit_code == 2
    assert "no command to start" in done.stderr


def test_a_reserved_port_is_for_those_who_know_it():
    with reserve_port() as reserved:
        port = reserved.getsockname()[1]
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("0.0.0.0", port))
        with socket.socket() as store:
            store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            store.bind(("0.0.0.0", port))
            store.listen()
            with socket.create_connection(("127.0.0.1", port)):
                pass


def test_what_tells_of_this_host_stays_here():
    taken = handed_over(
        {
            "HOME": "/root", "SSH_AUTH_SOCK": "/x", "RANK": "1", "PMI_SIZE": "2",
            "WANDB_API_KEY": "secret", "PATH": "/bin", "PYTHONPATH": "/a::b",
        }
    )  # fmt: skip
    assert taken == {
        "WANDB_API_KEY": "secret",
        "PATH": "/bin",
        "PYTHONPATH": f"/a:{os.getcwd()}/b",  # noqa: PTH109
    }


def _wait_for(is_so, job, timeout_s=20):
    end_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end_s, (job.output(), job.processes())
        time.sleep(0.05)
