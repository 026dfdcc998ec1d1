"""Tensors of more than 2**31 elements on two ranks: mpiexec -n 2 python large_job.py."""

from __future__ import annotations

import torch
import torch.distributed as dist

from checks.job import join

ELEMENTS = (1 << 31) + 8
# Where a 32-bit count or offset would go wrong.
SPOTS = (0, 1, (1 << 30) - 1, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, ELEMENTS - 1)


def expect(tensor: torch.Tensor, value: int, spots: list[int], step: str) -> None:
    """Everywhere `value`, but for the spots."""
    found = [int(tensor[spot]) for spot in SPOTS]
    assert found == spots, f"{step}: {found}, expected {spots}"
    # Eight elements at a time, which takes a seventh of the time.
    word = int.from_bytes(bytes([value] * 8), "little")
    words = tensor.view(torch.int64)
    marked = {spot // 8 for spot in SPOTS}
    others = []
    for chunk, part in enumerate(words.split(1 << 25)):
        for at in (part != word).nonzero().flatten()[: len(marked) + 9].tolist():
            others.append((chunk << 25) + at)
    wrong_words = {hex(8 * at): hex(int(words[at])) for at in others if at not in marked}
    assert not wrong_words, f"{step}: not {value}, among others: {wrong_words}"
    assert len(others) == len(marked), f"{step}: of {len(marked)} words only {others} are marked"
    for index in marked:
        near = {8 * index + i: int(tensor[8 * index + i]) for i in range(8)}
        wrong = {at: found for at, found in near.items() if at not in SPOTS and found != value}
        assert not wrong, f"{step}: {wrong}, expected {value}"


def mark(tensor: torch.Tensor, rank: int) -> list[int]:
    """Fill with 3 + rank, and another number at each spot."""
    tensor.fill_(3 + rank)
    values = [10 * (rank + 1) + i for i in range(len(SPOTS))]
    for spot, value in zip(SPOTS, values, strict=True):
        tensor[spot] = value
    return values


def main() -> None:
    """All-reduce, broadcast, send and receive."""
    join("mpi")
    rank = dist.get_rank()
    tensor = torch.empty(ELEMENTS, dtype=torch.uint8)
    mark(tensor, rank)
    dist.all_reduce(tensor)
    expect(tensor, 7, [30 + 2 * i for i in range(len(SPOTS))], "all_reduce")
    values = mark(tensor, rank)
    dist.broadcast(tensor, 1)
    expect(tensor, 4, [20 + i for i in range(len(SPOTS))], "broadcast")
    values = mark(tensor, rank)
    if rank == 0:
        dist.send(tensor, 1)
        expect(tensor, 3, values, "send")
    else:
        dist.recv(tensor, 0)
        expect(tensor, 3, [10 + i for i in range(len(SPOTS))], "recv")
    dist.destroy_process_group()
    print(f"rank {rank}: {ELEMENTS} elements are right")


if __name__ == "__main__":
    main()
