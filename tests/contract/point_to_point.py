"""Send and receive: tags, any source, both directions at once, batches, objects."""

from __future__ import annotations

import torch
import torch.distributed as dist

LARGE = 400_001  # float32 elements: 1.5 MiB, past any eager threshold


def tags_choose_the_message(rank: int, world_size: int) -> None:
    if rank == 0:
        sent = [dist.isend(torch.full((3,), float(tag)), 1, tag=tag) for tag in (5, 7, 6)]
        for work in sent:
            assert work is not None
            work.wait()
    elif rank == 1:
        for tag in (7, 6, 5):
            received = torch.zeros(3)
            assert dist.recv(received, 0, tag=tag) == 0
            assert received.tolist() == [tag] * 3


def any_source_tells_the_sender(rank: int, world_size: int) -> None:
    if rank:
        dist.send(torch.tensor([rank * 10]), 0)
    else:
        seen = {}
        for _ in range(world_size - 1):
            received = torch.zeros(1, dtype=torch.int64)
            source = dist.recv(received)
            seen[source] = received.item()
        assert seen == {source: source * 10 for source in range(1, world_size)}
    dist.barrier()


def any_source_asynchronously(rank: int, world_size: int) -> None:
    if rank == 0:
        received = [torch.zeros(2) for _ in range(world_size - 1)]
        works = [dist.irecv(tensor, tag=3) for tensor in received]
        for work in works:
            assert work is not None
            work.wait()
        assert sorted(t[0].item() for t in received) == list(range(1, world_size))
        sources = sorted(work._source_rank() for work in works if work is not None)
        assert sources == list(range(1, world_size))
    else:
        dist.send(torch.full((2,), float(rank)), 0, tag=3)
    dist.barrier()


def everyone_to_everyone_large(rank: int, world_size: int) -> None:
    """Rendezvous-size messages in every direction at once: no order of posting may deadlock."""
    peers = [peer for peer in range(world_size) if peer != rank]
    received = {peer: torch.zeros(LARGE) for peer in peers}
    sends = [dist.isend(torch.full((LARGE,), float(rank * 10 + peer)), peer) for peer in peers]
    receives = [dist.irecv(received[peer], peer) for peer in peers]
    for work in reversed([*sends, *receives]):
        assert work is not None
        work.wait()
    for peer, tensor in received.items():
        assert (tensor == peer * 10 + rank).all()


def messages_do_not_overtake(rank: int, world_size: int) -> None:
    if rank == 0:
        for i in range(200):
            dist.send(torch.tensor([i]), 1)
    elif rank == 1:
        received = [torch.zeros(1, dtype=torch.int64) for _ in range(200)]
        works = [dist.irecv(tensor, 0) for tensor in received]
        for work in works:
            assert work is not None
            work.wait()
        assert [tensor.item() for tensor in received] == list(range(200))


def a_posted_receive_blocks_no_collective(rank: int, world_size: int) -> None:
    """The matching send comes after a collective, so the receive must not hold that up."""
    received, total = torch.zeros(4), torch.ones(4)
    work = dist.irecv(received, world_size - 1) if rank == 0 else None
    dist.all_reduce(total)
    assert (total == world_size).all()
    if rank == world_size - 1:
        dist.send(torch.arange(4.0), 0)
    if work is not None:
        work.wait()
        assert received.tolist() == [0, 1, 2, 3]


def a_posted_send_blocks_no_collective(rank: int, world_size: int) -> None:
    work = dist.isend(torch.full((LARGE,), 3.0), 1) if rank == 0 else None
    total = torch.ones(4)
    dist.all_reduce(total)
    assert (total == world_size).all()
    if rank == 1:
        received = torch.zeros(LARGE)
        dist.recv(received, 0)
        assert (received == 3).all()
    if work is not None:
        work.wait()


def batches_in_any_order(rank: int, world_size: int) -> None:
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    for size, dtype in ((3, torch.float32), (0, torch.float32), (LARGE, torch.bfloat16)):
        received = torch.zeros(size, dtype=dtype)
        operations = [
            dist.P2POp(dist.irecv, received, left),
            dist.P2POp(dist.isend, torch.full((size,), rank, dtype=dtype), right),
        ]
        if rank % 2:
            operations.reverse()
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert (received == left).all()


def batches_carry_many_messages(rank: int, world_size: int) -> None:
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    received = [torch.zeros(i + 1) for i in range(10)]
    operations = [dist.P2POp(dist.irecv, tensor, left) for tensor in received]
    operations += [dist.P2POp(dist.isend, torch.full((i + 1,), i + 0.5), right) for i in range(10)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for i, tensor in enumerate(received):
        assert (tensor == i + 0.5).all()


def objects_from_one_to_another(rank: int, world_size: int) -> None:
    sent = [{"rank": 0, "text": "ä" * 70_000}, None, [1, 2.5]]
    if rank == 0:
        dist.send_object_list(sent, dst=1)
    elif rank == 1:
        received: list[object] = [None] * 3
        assert dist.recv_object_list(received, src=0) == 0
        assert received == sent


def ranks_count_within_the_group(rank: int, world_size: int) -> None:
    """In a subgroup src and dst are global ranks, group_src and group_dst its own."""
    members = [world_size - 2, world_size - 1]
    group = dist.new_group(members)
    if rank == members[0]:
        dist.send(torch.tensor([1.0]), members[1], group=group)
        dist.send(torch.tensor([2.0]), group=group, group_dst=1)
    elif rank == members[1]:
        received = torch.zeros(1)
        assert dist.recv(received, members[0], group=group) == members[0]
        assert received.item() == 1
        assert dist.recv(received, group=group) == members[0]
        assert received.item() == 2
    if rank in members:
        dist.destroy_process_group(group)


CHECKS = (
    tags_choose_the_message,
    any_source_tells_the_sender,
    any_source_asynchronously,
    everyone_to_everyone_large,
    messages_do_not_overtake,
    a_posted_receive_blocks_no_collective,
    a_posted_send_blocks_no_collective,
    batches_in_any_order,
    batches_carry_many_messages,
    objects_from_one_to_another,
    ranks_count_within_the_group,
)
