"""What goes wrong in a reduction algorithm, and what people then see, over mpi and over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.report import free_port
from ranks import Ranks, run_command, run_ranks, venv

JOIN = """
import os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
import doubletime as dt
backend = sys.argv[1]
if backend == "gloo":
    os.environ["RANK"], os.environ["WORLD_SIZE"] = os.environ["PMI_RANK"], os.environ["PMI_SIZE"]
dist.init_process_group(backend, timeout=timedelta(seconds=20))
rank = dist.get_rank()
"""
# Rank 1 dies while the others are in the middle of it: many segments, and it comes to none of them.
DIES = """
from doubletime.collectives import execution
def die(*_):
    {end}
if rank == 1:
    calls = []
    posted = execution.Execution._post_sends
    def few_sends(self, *args):
        calls.append(args)
        if len(calls) == 20:
            die()
        posted(self, *args)
    execution.Execution._post_sends = few_sends
dt.all_reduce(torch.ones(1 << 20), algorithm={algorithm!r}, segment_nbytes=16384)
print("went on")
"""


def start(body: str, backend: str, ranks: int = 3, **variables: str) -> Ranks:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **variables}
    return run_ranks(JOIN + body, ranks, args=[backend], env=env, timeout=40)


@pytest.mark.parametrize("backend", ["mpi", "gloo"])
@pytest.mark.parametrize("algorithm", ["pipelined_ring", "double_binary_tree"])
@pytest.mark.parametrize(
    ("end", "code"), [("os._exit(4)", 4), ("raise ValueError('the reason')", 1)]
)
def test_rank_that_dies_in_the_middle_ends_the_job(
    tmp_path: Path, backend: str, algorithm: str, end: str, code: int
) -> None:
    script = tmp_path / "program.py"
    # so that the end cannot be that of the group's timeout
    patient = JOIN.replace("seconds=20", "seconds=90")
    script.write_text(patient + DIES.format(end=end, algorithm=algorithm))
    # Under `doubletime run`: a bare mpiexec may report a rank that only saw its peer go.
    ended = run_command(
        [str(venv("mpich") / "bin" / "python"), "-m", "doubletime", "run", "-n", "3", str(script), backend],
        env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())},
    )  # fmt: skip
    assert ended.exit_code == code
    assert "rank 1 on host" in ended.stderr
    assert "went on" not in ended.stdout
    if "reason" in end:
        assert "the reason" in ended.stderr
    assert ended.seconds < 50


@pytest.mark.parametrize("backend", ["mpi", "gloo"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("dt.all_reduce(torch.ones(3), {})", "dt.all_reduce(torch.ones(4), {})"),
        ("dt.all_reduce(torch.ones(3), {})", "dt.all_reduce(torch.ones(3).double(), {})"),
        ("dt.all_reduce(torch.ones(3), {})", "dt.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX, {})"),
        ("dt.broadcast(torch.ones(3), 0, {})", "dt.broadcast(torch.ones(3), 1, {})"),
    ],
    ids=["shape", "type", "operation", "root"],
)  # fmt: skip
def test_different_calls_are_named_in_debug_mode(backend: str, one: str, other: str) -> None:
    way = "algorithm='pipelined_ring'"
    body = f"if rank == 0:\n    {one.format(way)}\nelse:\n    {other.format(way)}\n"
    ended = start(body, backend, 2, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    # Without the mpi backend a rank that raises is ended by a bare mpiexec while it does.
    assert ended.exit_code == 1 or (backend == "gloo" and ended.exit_code)
    assert "call different collectives, or the same with different shapes" in ended.stderr
    for rank in (0, 1):
        assert f"rank {rank}: {one[3:].partition('(')[0]}" in ended.stderr
    assert "program.py:" in ended.stderr


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("dt.all_reduce(x, algorithm='rings')", ["'rings'", "one of linear,", "two_level:INSIDE"]),
        ("dt.all_gather(x, x[:1], algorithm='binomial_tree')", ["all_gather", "it defines all_reduce"]),
        ("dt.all_reduce(x, op=dist.ReduceOp.AVG, algorithm='ring')", ["AVG", "int64"]),
        ("dt.reduce(x, root=2, algorithm='linear')", ["root 2", "0 to 1"]),
        ("dt.all_reduce(x, algorithm='ring', segment_nbytes=0)", ["segments of 0 bytes"]),
    ],
    ids=["unknown", "not defined", "integer AVG", "root", "segment"],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_on_every_rank(call: str, words: list[str]) -> None:
    body = f"""
x = torch.arange(2)
try:
    {call}
except dt.DoubletimeError as error:
    print(f"rank {{rank}}: {{error}}".replace("\\n", " "))
y = torch.ones(1)
dt.all_reduce(y, algorithm="ring")
assert y.item() == 2
"""
    ended = start(body, "mpi", 2).check()
    lines = ended.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert not [word for word in words if word not in line], line
