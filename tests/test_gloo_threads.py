"""Ranks over gloo end well, though its threads still hold tensors when the program is over."""

import subprocess
import sys

import pytest

# Pairs of ranks, one pair after the other. Many tensors, so that dropping them takes a while; known to
# Python to the end, so that dropping them takes the interpreter's lock.
_PAIRS = """
import os, sys, warnings
import torch
import torch.distributed as dist

warnings.simplefilter("ignore")
ends = []
for pair in range(6):
    ranks = []
    for rank in range(2):
        ranks.append(os.fork())
        if not ranks[-1]:
            store = dist.FileStore(f"{sys.argv[1]}/{pair}", 2)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
            kept = [torch.ones(1) for _ in range(20_000)]
            dist.all_reduce_coalesced(kept)
            if sys.argv[2] == "leaves":
                dist.destroy_process_group()
            sys.exit()
    ends += [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
print(ends)
"""


@pytest.mark.parametrize("how", ["leaves", "forgets to leave"])
def test_a_program_that_is_over_does_not_abort(tmp_path, how):
    command = [sys.executable, "-c", _PAIRS, tmp_path, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == f"{[0] * 12}\n", done.stderr


def test_a_collective_that_never_ends_does_not_keep_a_program(tmp_path):
    """Its peer has gone: the thread sleeps, as it does when it is idle."""
    text = _PAIRS.replace("dist.all_reduce_coalesced(kept)", "if rank: os._exit(0)").replace(
        "if sys.argv[2]", "dist.all_reduce(kept[0], async_op=True)\n            if sys.argv[2]"
    )
    command = [sys.executable, "-c", text.replace("range(6)", "range(1)"), tmp_path, "stays"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[0, 0]\n", done.stderr
