# doubletime run -n 2 examples/resumable.py
"""Goes on from its last checkpoint, on any number of ranks: run --max-restarts 3 … FOLDER EPOCHS."""

import io
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

import doubletime as dt

CHECKPOINT = Path(*sys.argv[1:2], "resumable.pt")  # in a folder that all hosts share
EPOCHS = int(sys.argv[2]) if len(sys.argv) > 2 else 3
EVERY = 10  # steps from checkpoint to checkpoint


def save(state):
    """Aside and onto the disk, then over the last one: whatever happens, one of them is whole."""
    torch.save(state, data := io.BytesIO())
    partial = CHECKPOINT.with_suffix(".partial")
    try:
        with partial.open("wb") as file:
            file.write(data.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(CHECKPOINT)
    except OSError as error:
        partial.unlink(missing_ok=True)
        sys.exit(f"{CHECKPOINT}: {error.strerror}; the checkpoint before is whole")


def over_ranks(counts):
    """Their sum over all ranks."""
    total = counts.to(session.device, copy=True)
    if session.world_size > 1:
        dist.all_reduce(total)
    return total.cpu()


session = dt.init()
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).flatten(1)
samples = (images, torch.tensor(digits.target), torch.arange(len(images)))
batches = dt.loader(tuple(part.to(session.device) for part in samples), global_batch=50)
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(session.device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
seen = torch.zeros(len(images), dtype=torch.int64)  # how often this rank saw each, in this epoch
first_epoch = first_step = 0  # counted in global batches: the same on any number of ranks

state = [torch.load(CHECKPOINT) if session.rank == 0 and CHECKPOINT.exists() else None]
if session.world_size > 1:
    dist.broadcast_object_list(state)  # rank 0's: another host may still see an older file
if state[0] is not None:
    first_epoch, first_step = state[0]["epoch"], state[0]["step"]
    batches.resume(first_epoch, first_step)
    net.load_state_dict(state[0]["net"])
    optimizer.load_state_dict(state[0]["optimizer"])
    if session.rank == 0:
        seen += state[0]["seen"]
        print(f"goes on in epoch {first_epoch + 1} after step {first_step}", flush=True)
model = dt.parallelize(net)

for epoch in range(first_epoch, EPOCHS):
    for step, (inputs, targets, indices) in enumerate(batches, first_step + 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        (loss * batches.weight).backward()
        optimizer.step()
        seen[indices.cpu()] += batches.count > 0
        if step % EVERY == 0:
            everyone = over_ranks(seen)
            if session.rank == 0:
                parts = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
                save({"epoch": epoch, "step": step, "seen": everyone, **parts})
    counts = over_ranks(seen)
    if session.rank == 0:
        seen_by_all = f"each seen {counts.min()} to {counts.max()} times"
        print(
            f"epoch {epoch + 1}: loss {loss:.3f}, {len(counts)} samples, {seen_by_all}", flush=True
        )
    seen.zero_()
    first_step = 0
