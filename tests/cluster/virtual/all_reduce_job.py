"""Four ranks, two on each of two hosts: small and large tensors, over all and within a host."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

import doubletime as dt

dist.init_process_group("mpi")
rank, world_size = dist.get_rank(), dist.get_world_size()
host = os.uname().nodename


def check(nbytes: int, group: dist.ProcessGroup | None, ranks: list[int]) -> None:
    """All-reduce float32 tensors whose elements all differ, twice, and compare each element."""
    count = nbytes // 4
    pattern = torch.arange(count, dtype=torch.float32) % 1000
    for again in range(2):
        tensor = pattern * (rank + 1) + again
        dist.all_reduce(tensor, group=group)
        factor = sum(each + 1 for each in ranks)
        assert torch.equal(tensor, pattern * factor + again * len(ranks)), (rank, nbytes, ranks)


everyone = list(range(world_size))
names: list[str] = [""] * world_size
dist.all_gather_object(names, host)
mine = [each for each in everyone if names[each] == host]
assert len(set(names)) == 2, names
within, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])
for nbytes in (4, 64 << 10, 16 << 20):
    check(nbytes, None, everyone)
    check(nbytes, within, mine)
# Process ids of the two hosts coincide; each rank found its neighbour's memory all the same.
mapped = Path("/proc/self/maps").read_text().count("memfd:doubletime")
assert mapped == len(mine), f"{mapped} shared segments among {len(mine)} ranks of a host"
# Between hosts large messages go in pieces, the last one a smaller one.
count = (1 << 20) + 3
pattern = torch.arange(count, dtype=torch.float32) % 1000
for algorithm in ("ring", "recursive_doubling", "halving_doubling", "two_level"):
    tensor = pattern * (rank + 1)
    dt.all_reduce(tensor, algorithm=algorithm)
    assert torch.equal(tensor, pattern * sum(each + 1 for each in everyone)), (rank, algorithm)
gathered = torch.empty(world_size, count)
dist.all_gather_into_tensor(gathered, pattern + rank)
for each in everyone:
    assert torch.equal(gathered[each], pattern + each), (rank, each)
dist.barrier()
print(f"{rank} on {host}", flush=True)
dist.destroy_process_group()
