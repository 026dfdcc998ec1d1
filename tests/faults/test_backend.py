"""What goes wrong under a bare mpiexec with the mpi backend, and what people then see."""

import os
import re
import subprocess
import sys

import pytest

from ranks import run_ranks

JOIN = """
import os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("mpi", timeout=timedelta(seconds={timeout}))
rank = dist.get_rank()
"""
WAIT = "dist.all_reduce(torch.ones(3))\n"


def program(body, timeout=60):
    return JOIN.format(timeout=timeout) + body


def without_launcher(env):
    """What a program does that joins the mpi group as plain `python`, with this environment."""
    code = "import torch.distributed as dist; dist.init_process_group('mpi')"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("raise ValueError('the reason')", 1),
        ("sys.exit(3)", 3),
        ("raise SystemExit(3)", 3),
        ("os._exit(4)", 4),
    ],
)
def test_one_rank_ends_while_others_wait(mpi, end, code):
    body = f"if rank == 1:\n    time.sleep(0.5)\n    {end}\n{WAIT}"
    ranks = run_ranks(program(body), 2, mpi=mpi, timeout=60)
    # Intel's bare mpiexec reports 255 for a rank that vanishes without a word, whatever it exits with.
    vanished = end.startswith("os._exit") and mpi == "intel"
    assert ranks.exit_code == (255 if vanished else code)
    assert ranks.stderr.count("the reason\n") == (1 if "reason" in end else 0)
    if "reason" in end or end == "sys.exit(3)":
        assert "doubletime: rank 1 on host" in ranks.stderr + ranks.stdout


def test_a_rank_that_never_joins_ends_the_others_after_their_timeout(mpi):
    code = """
        import os, sys, time
        from datetime import timedelta
        import torch.distributed as dist
        from doubletime import environment
        if environment.place().rank == 1:
            time.sleep(40)
            sys.exit(5)
        dist.init_process_group("mpi", timeout=timedelta(seconds=2))
    """
    ranks = run_ranks(code, 2, mpi=mpi, timeout=60)
    assert ranks.exit_code != 0
    assert ranks.seconds < 35
    assert "did not start within 2 s" in ranks.stderr or "was not called by rank 1" in ranks.stderr


def test_dead_rank_ends_the_job():
    body = f"if rank == 1:\n    time.sleep(0.5)\n    os.kill(os.getpid(), signal.SIGKILL)\n{WAIT}"
    assert run_ranks(program(body), 2, timeout=60).exit_code != 0


def test_collective_not_all_enter_names_who_is_missing_and_where():
    body = f"if rank == 1:\n    time.sleep(30)  # the place\n{WAIT}"
    ranks = run_ranks(program(body, timeout=2), 2, timeout=60)
    assert ranks.exit_code == 1
    said = ranks.stderr
    assert "all_reduce #1 (float32[3], SUM) called at" in said
    assert "timed out after 2 s" in said
    assert "rank 1 on host" in said
    assert "is missing" in said
    assert re.search(r"is now at \S+\.py:\d+ in <module>", said), said


def test_early_return_of_a_rank_is_named():
    body = f"if rank == 0:\n    {WAIT}"
    ranks = run_ranks(program(body), 2, timeout=60)
    assert ranks.exit_code == 1
    assert (
        "it came to the end of its program (exit code 0) while rank 0 waits for it" in ranks.stderr
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("dist.all_reduce(torch.ones(3))", "dist.broadcast(torch.ones(3), 0)"),
        ("dist.all_reduce(torch.ones(3))", "dist.all_reduce(torch.ones(4))"),
        ("dist.all_reduce(torch.ones(3))", "dist.all_reduce(torch.ones(3, dtype=torch.float64))"),
    ],
)
def test_different_calls_are_named_in_debug_mode(one, other):
    body = f"if rank == 0:\n    {one}\nelse:\n    {other}\n"
    ranks = run_ranks(program(body), 2, timeout=60, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    assert ranks.exit_code == 1
    assert "call different collectives" in ranks.stderr
    assert "rank 0: all_reduce #1 (float32[3], SUM)" in ranks.stderr


@pytest.mark.parametrize("argument", ["rank=5", "world_size=7"])
def test_contradicting_arguments_are_refused(argument):
    code = f"""
        import torch.distributed as dist
        dist.init_process_group("mpi", {argument})
    """
    ranks = run_ranks(code, 2, timeout=60)
    assert ranks.exit_code == 1
    assert "remedy: leave rank and world_size out" in ranks.stderr


def test_torchrun_environment_without_mpi_is_refused():
    env = {key: value for key, value in os.environ.items() if not key.startswith("PMI")}
    env |= {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    done = without_launcher(env)
    assert done.returncode == 1
    assert "no MPI launcher" in done.stderr
    assert "mpiexec -n 2" in done.stderr


def test_mpiexec_of_another_mpi_is_refused():
    env = os.environ | {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    }
    done = without_launcher(env)
    assert done.returncode == 1
    assert "Open MPI started rank 1 of 2, but MPICH" in done.stderr
    assert "two MPIs" in done.stderr


def test_forgetting_to_destroy_neither_hangs_nor_crashes(mpi):
    body = f"{WAIT}w = dist.all_reduce(torch.ones(1 << 20), async_op=True)\nprint('done', flush=True)\n"
    ranks = run_ranks(program(body), 2, mpi=mpi, timeout=60)
    assert ranks.exit_code == 0, ranks.stderr
    assert ranks.stdout.count("done") == 2


def test_ranks_that_end_at_different_times_all_end_well():
    body = f"{WAIT}time.sleep(3 * rank)\n"
    assert run_ranks(program(body), 2, timeout=60).exit_code == 0


THREADS = """
import threading, time
def loop(start):
    try:
        while True:
            start()
    except Exception as error:
        print("stopped:", type(error).__name__, flush=True)
def all_reduce():
    dist.all_reduce(torch.ones(3))
def large():
    dist.all_reduce(torch.ones(1 << 20), async_op=True).wait()
def messages():
    sent = dist.isend(torch.ones(3), 1 - rank)
    dist.recv(torch.ones(3), 1 - rank)
    sent.wait()
threading.Thread(target=loop, args=({start},), daemon=True).start()
time.sleep(0.5)
"""


@pytest.mark.parametrize("start", ["all_reduce", "large", "messages"])
def test_threads_that_use_the_group_at_exit_stop(mpi, start):
    ranks = run_ranks(program(THREADS.replace("{start}", start)), 2, mpi=mpi, timeout=60)
    assert ranks.exit_code == 0, ranks.show()
    assert ranks.stdout.count("stopped: CollectiveError") == 2


@pytest.mark.parametrize(("call", "function"), [("irecv", "<module>"), ("recv", "step")])
def test_a_message_that_nobody_sends_is_named_by_its_line(call, function):
    begin = f"dist.{call}(torch.ones(3), 1 - rank)" + (".wait()" if call == "irecv" else "")
    body = f"def step():\n    {begin}\nstep()\n" if function == "step" else f"{begin}\n"
    ranks = run_ranks(program(body, timeout=1), 2, timeout=60)
    assert ranks.exit_code == 1
    line = 8 if function == "step" else 7
    assert re.search(rf"called at \S+/program\.py:{line} in {function} ", ranks.stderr), (
        ranks.stderr
    )
