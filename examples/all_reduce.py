# mpiexec -n 3 python examples/all_reduce.py
"""Three ranks hold 1, 2 and -3; afterwards each holds their sum."""

import torch
import torch.distributed as dist

dist.init_process_group("mpi")
rank = dist.get_rank()

number = torch.tensor([1, 2, -3])[rank]
dist.all_reduce(number)
print(f"rank {rank} has the sum {number.item()}")

dist.destroy_process_group()
