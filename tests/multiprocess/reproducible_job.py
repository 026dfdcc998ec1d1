"""Trains reproducibly, and tells the bits it ends with: `reproducible_job.py FOLDER NAME EPOCHS BACKEND|-`."""

import hashlib
import sys

import torch
from torch import nn

import doubletime as dt


class Hostile(dt.Task):
    """Draws at random, keeps buffers, has batches that 8 does not divide and one smaller than that."""

    global_batch = 29

    def train_data(self):
        drawn = torch.Generator().manual_seed(1)
        inputs = torch.randn(3 * 29 + 5, 1, 6, 6, generator=drawn)
        return inputs, torch.randint(0, 4, (len(inputs),), generator=drawn)

    def model(self):
        self.net = nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3),
            nn.Linear(96, 16), nn.ReLU(), nn.Linear(16, 4),
        )  # fmt: skip
        return self.net

    def optimizer(self, parameters):
        return torch.optim.AdamW(parameters, lr=1e-2)


folder, name, epochs, backend = sys.argv[1:]
task = Hostile()
done = dt.train(
    task,
    epochs=int(epochs),
    runs=folder,
    name=name,
    resume="auto",
    backend=None if backend == "-" else backend,
    reproducible=True,
    clip_norm=1.0,
)
numbers = b"".join(each.detach().numpy().tobytes() for each in task.net.state_dict().values())
told = f"{hashlib.sha256(numbers).hexdigest()} {done.loss.hex()}\n"
sys.stdout.write(told)  # a line is one write
