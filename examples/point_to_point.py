# mpiexec -n 2 python examples/point_to_point.py
"""Rank 0 sends a tensor to rank 1."""

import torch
import torch.distributed as dist

dist.init_process_group("mpi")

if dist.get_rank() == 0:
    dist.send(torch.tensor([1.0, -1.0]), dst=1)
else:
    received = torch.empty(2)
    dist.recv(received, src=0)
    print(f"rank 1 received {received.tolist()}")

dist.destroy_process_group()
