"""init() finds the job that the launcher started, or stands alone."""

import json
import sys
import textwrap

import pytest

from doubletime.environment import own_cores
from ranks import run_command, run_ranks

SHOWS = """
import json, sys
import torch
import torch.distributed as dist
import doubletime as dt
session = dt.init(*sys.argv[1:])
assert dt.init() is session
parts = [None] * session.world_size
mine = [session.rank, session.local_rank, session.world_size, session.local_world_size,
        session.backend, session.threads, str(session.device), session.launcher,
        torch.get_num_threads(), session.describe()]
if dist.is_initialized():
    dist.all_gather_object(parts, mine)
else:
    parts = [mine]
if session.rank == 0:
    print(json.dumps(parts))
from doubletime.training.session import leave
leave()
"""


def _parts(done):
    return json.loads(done.check().stdout.splitlines()[-1])


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "shows.py"
    path.write_text(SHOWS)
    return str(path)


def test_a_plain_python_is_one_process_without_a_group(script):
    [part] = _parts(run_command([sys.executable, script]))
    assert part[:5] == [0, 0, 1, 1, None]
    assert part[-1] == "1 process, no group, on cpu, 1 thread"


def test_a_plain_python_gets_a_group_of_one_if_it_names_a_backend(script):
    [part] = _parts(run_command([sys.executable, script, "gloo"]))
    assert part[:5] == [0, 0, 1, 1, "gloo"]
    assert part[-1] == "1 rank over gloo, no launcher, on cpu, 1 thread each"


def test_rank_0_says_in_one_line_what_was_chosen(script):
    done = run_command(["mpiexec", "-n", "2", sys.executable, script]).check()
    said = [line for line in done.stderr.splitlines() if line.startswith("doubletime: ")]
    assert said == [f"doubletime: {_parts(done)[0][-1]}"]
    assert run_command([sys.executable, script, "gloo"]).check().stderr.count("doubletime") == 0


@pytest.mark.parametrize(("arguments", "backend"), [([], "mpi"), (["gloo"], "gloo")])
def test_mpiexec_means_mpi_unless_another_backend_is_named(script, arguments, backend):
    parts = _parts(run_command(["mpiexec", "-n", "2", sys.executable, script, *arguments]))
    assert [part[:5] for part in parts] == [[rank, rank, 2, 2, backend] for rank in (0, 1)]
    assert {part[7] for part in parts} == {"MPICH or Intel MPI"}
    assert parts[0][-1].startswith(f"2 ranks over {backend}")


def test_the_launcher_names_the_backend_where_the_program_does_not(script):
    command = ["mpiexec", "-n", "2", sys.executable, script]
    parts = _parts(run_command(command, env={"DOUBLETIME_BACKEND": "gloo"}))
    assert [part[4] for part in parts] == ["gloo", "gloo"]
    [part] = _parts(run_command([sys.executable, script], env={"DOUBLETIME_BACKEND": "gloo"}))
    assert part[4] is None


def test_nccl_without_a_gpu_is_refused():
    ranks = run_ranks("import doubletime as dt\ndt.init('nccl', device='cpu')\n", 1,
                      env={"CUDA_VISIBLE_DEVICES": ""})  # fmt: skip
    assert ranks.exit_code == 1
    assert "backend 'nccl' needs a GPU" in ranks.stderr
    assert "remedy: --backend gloo, or mpi" in ranks.stderr


def test_torchrun_means_gloo_and_its_threads_are_kept(script):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = [*torchrun, "--standalone", script]
    parts = _parts(run_command(command, env={"OMP_NUM_THREADS": "2"}))
    assert [part[:6] for part in parts] == [[rank, rank, 2, 2, "gloo", 2] for rank in (0, 1)]
    assert {part[7] for part in parts} == {"torchrun"}


def test_ranks_that_share_cores_divide_them():
    forget = "import json, os, sys\ndel os.environ['OMP_NUM_THREADS']"
    parts = _parts(run_ranks(SHOWS.replace("import json, sys", forget), 2, args=["gloo"]))
    for part in parts:
        assert part[5] == part[8] == max(1, own_cores() // 2)


def test_another_backend_than_the_one_joined_is_refused():
    program = """
        import doubletime as dt
        dt.init()
        try:
            dt.init("gloo")
        except dt.DoubletimeError as error:
            print(error.what)
    """
    done = run_command([sys.executable, "-c", textwrap.dedent(program)]).check()
    assert done.stdout.strip() == (
        "backend 'gloo' was asked for, this process has joined over None already"
    )


def test_an_unknown_backend_is_refused():
    ranks = run_ranks("import doubletime as dt\ndt.init('glue')\n", 1)
    assert ranks.exit_code == 1
    assert "there is no backend 'glue'\n  remedy: choose among mpi, gloo and nccl" in ranks.stderr
