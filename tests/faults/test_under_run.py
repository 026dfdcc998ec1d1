"""What goes wrong under `doubletime run`, with ranks that know only bare mpi4py."""

import os
import signal
import time
from pathlib import Path

import pytest

from ranks import run_command, start_command, venv

RANK_1 = """
from mpi4py import MPI
import os, signal, subprocess, sys, time
comm = MPI.COMM_WORLD
worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
print("up", flush=True)
comm.Barrier()
if comm.rank == 1:
    {fault}
comm.recv(source=(comm.rank + 1) % comm.size)
"""
BEFORE_INIT = """
import os, signal, sys, time
rank = os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
if rank == "1":
    {fault}
time.sleep(600)
"""


def command(script, mpi=None, ranks=2):
    return [
        str(venv(mpi) / "bin" / "python"),
        "-m",
        "doubletime",
        "run",
        "-n",
        str(ranks),
        str(script),
    ]


def written(folder, program, fault="pass"):
    script = folder / "program.py"
    script.write_text(program.format(fault=fault))
    return script


FAULTS = [
    ("sys.exit(3)", 3, "exited with code 3 at {script}, line"),
    ("os._exit(4)", 4, "exited with code 4"),
    ("sys.exit('no data')", 1, "no data"),
    ("raise ValueError('boom')", 1, "ValueError: boom"),
    ("os.kill(os.getpid(), 9)", 137, "died by signal 9 (SIGKILL)"),
    ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "died by signal 11 (SIGSEGV)"),
]


@pytest.mark.parametrize("program", [RANK_1, BEFORE_INIT], ids=["in a receive", "before MPI_Init"])
@pytest.mark.parametrize(("fault", "exit_code", "text"), FAULTS, ids=[f[0] for f in FAULTS])
def test_one_rank_ends_the_job_and_is_named_last(mpi, tmp_path, program, fault, exit_code, text):
    script = written(tmp_path, program, fault)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    ended = run_command(command(script, mpi), mpi=mpi, env={"TMPDIR": str(temporary)})
    assert ended.exit_code == exit_code, ended.show()
    head, _, tail = ended.stderr.rpartition("doubletime: rank 1 on host ")
    assert f"{os.uname().nodename} failed:\n" in tail
    assert text.format(script=script) in tail
    assert "TERMINATION" not in ended.stdout + ended.stderr
    assert "prterun" not in ended.stderr
    assert "doubletime/cluster" not in tail
    assert "failed:" not in head
    assert not list(temporary.iterdir())


@pytest.mark.alone
def test_the_job_ends_within_five_seconds(mpi, tmp_path):
    script = written(tmp_path, RANK_1, "print(time.time(), flush=True); sys.exit(3)")
    with start_command(command(script, mpi), mpi=mpi) as job:
        ended = job.wait(60)
        stamp = next(float(line) for line in ended.stdout.splitlines() if line != "up")
        assert ended.exit_code == 3
        assert time.time() - stamp < 5


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything_within_two_seconds(mpi, tmp_path, number):
    script = written(tmp_path, RANK_1)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with start_command(command(script, mpi), mpi=mpi, env={"TMPDIR": str(temporary)}) as job:
        deadline = time.monotonic() + 40
        while job.output()[0].count("up") < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)  # both are in their receives
        sent = time.monotonic()
        os.killpg(job.process.pid, number)
        ended = job.wait(60)
        seconds = time.monotonic() - sent
    assert ended.exit_code == 128 + number, ended.show()
    assert seconds < 2
    assert ended.stderr == f"doubletime: ended by {number.name}\n"
    assert not list(temporary.iterdir())


def test_workers_that_outlive_a_good_job_are_ended(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import subprocess\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print('done')\n"
    )
    ended = run_command(command(script)).check()
    assert ended.stdout == "done\n" * 2
    assert ended.seconds < 30


def test_a_killed_supervisor_leaves_no_process(tmp_path):
    # A launcher alone cannot find workers that have left the rank's session; the others it ends.
    script = written(tmp_path, RANK_1.replace(", start_new_session=True", ""))
    with start_command(command(script), env={"TMPDIR": str(tmp_path)}) as job:
        deadline = time.monotonic() + 40
        while job.output()[0].count("up") < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(job.process.pid, signal.SIGKILL)
        job.wait(60)  # fails where a process outlives the command by five seconds


SHM = Path("/dev/shm")
SEMAPHORE = """
import multiprocessing, os, signal, sys, time
from mpi4py import MPI
lock = multiprocessing.get_context("spawn").Lock()
print(f"sem.{lock._semlock.name[1:]}", flush=True)
time.sleep(0.3)
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


def test_semaphores_of_killed_ranks_are_removed(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(SEMAPHORE)
    ended = run_command(command(script))
    assert ended.exit_code == 137
    names = ended.stdout.split()
    assert len(names) == 2, ended.show()
    assert [name for name in names if not name.startswith("sem.mp-") or (SHM / name).exists()] == []


EXITS = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("mpi")
if dist.get_rank() == 1:
    sys.exit("the data set is not there")
dist.all_reduce(torch.ones(3))
"""


def test_why_a_rank_of_the_mpi_group_exits_is_told(tmp_path):
    ended = run_command(command(written(tmp_path, EXITS)))
    assert ended.exit_code == 1
    assert ended.stderr.endswith(" failed:\nthe data set is not there\n")


def test_a_rank_that_leaves_the_group_by_os_exit_0_fails_the_job(tmp_path):
    program = written(
        tmp_path, EXITS.replace('sys.exit("the data set is not there")', "os._exit(0)")
    )
    ended = run_command(command(program))
    assert ended.exit_code == 1
    assert "left with exit code 0 in the midst of its MPI job" in ended.stderr


@pytest.mark.parametrize(
    "seen",
    ["Connection closed by peer", "recvBytes failed: Connection reset by peer", "Broken pipe"],
)
def test_the_end_of_a_rank_comes_before_what_its_peers_saw_of_it(tmp_path, seen):
    """As over gloo: the peer's connection breaks before the launcher knows that the rank is gone."""
    script = tmp_path / "program.py"
    script.write_text(f"""
import os, time
if os.environ["PMI_RANK"] == "0":
    raise RuntimeError("gloo: {seen} [127.0.0.1]:4711")
time.sleep(0.3)
os._exit(4)
""")
    ended = run_command(command(script, "mpich"), timeout=30)
    assert ended.exit_code == 4, ended.show()
    assert "rank 1 on host" in ended.stderr
