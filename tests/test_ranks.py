"""The tests' own ground: ranks really run, and what they leave is really ended."""

import time
from pathlib import Path

import psutil
import pytest

from ranks import run_command, run_ranks, shm_seen, start_command

HELLO = """
    import sys
    from mpi4py import MPI
    print(MPI.COMM_WORLD.allreduce(1), sys.argv[1:])
"""


def test_a_source_text_runs_on_every_rank(mpi):
    ended = run_ranks(HELLO, 3, mpi=mpi, args=["a", "b c"]).check()
    assert ended.stdout.splitlines() == ["3 ['a', 'b c']"] * 3


def test_each_mpi_is_the_one_asked_for(mpi):
    source = "from mpi4py import MPI; print(MPI.Get_library_version(), end='\\n--\\n')"
    ended = run_ranks(source, 2, mpi=mpi).check()
    name = {"mpich": "MPICH Version", "openmpi": "Open MPI v", "intel": "Intel(R) MPI Library"}[mpi]
    assert ended.stdout.count(name) == 2


def test_a_script_runs_by_its_path(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('here')")
    assert run_ranks(script, 2).check().stdout == "here\nhere\n"


def test_variables_are_set_and_removed():
    source = "import os; print(os.environ.get('A'), os.environ.get('OMP_NUM_THREADS'))"
    ended = run_ranks(source, 1, env={"A": "1", "OMP_NUM_THREADS": None}).check()
    assert ended.stdout == "1 None\n"


def test_check_shows_what_a_failed_job_wrote():
    ended = run_ranks("import sys; sys.exit('what went wrong')", 1)
    with pytest.raises(AssertionError, match="what went wrong"):
        ended.check()


def test_a_job_past_its_time_is_killed_and_shown():
    source = "import time; print('began', flush=True); time.sleep(60)"
    with pytest.raises(AssertionError, match=r"still running after 2 s(?s:.*)began"):
        run_ranks(source, 2, timeout=2)


def test_an_orphan_in_a_session_of_its_own_is_found_and_killed(tmp_path):
    command = ["bash", "-c", f"setsid sleep 60 & echo $! > {tmp_path}/pid"]
    with pytest.raises(AssertionError, match="outlived the job"):
        run_command(command)
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_running_job_can_be_interrupted():
    with start_command(["sleep", "60"]) as job:
        while not job.processes():
            time.sleep(0.01)
        job.interrupt()
        ended = job.wait(5)
    assert ended.exit_code == -2
    assert ended.seconds < 5


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_job_and_leaves_no_file(mpi, victim):
    source = f"""
        import os, signal, time
        from mpi4py import MPI
        MPI.COMM_WORLD.barrier()
        if MPI.COMM_WORLD.rank == {victim}:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    """
    before = set(Path("/dev/shm").iterdir())
    ended = run_ranks(source, 2, mpi=mpi, timeout=30)
    assert ended.exit_code != 0
    assert ended.seconds < 20
    assert not [path for path in set(Path("/dev/shm").iterdir()) - before if path.name in shm_seen]
