# doubletime run -n 2 examples/train_loop.py
"""A plain PyTorch loop, made synchronous over any number of ranks by the lines marked dt."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import doubletime as dt

session = dt.init()  # dt: joins the job that mpiexec, srun or torchrun started; or stands alone

digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).flatten(1)
labels = torch.tensor(digits.target)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
model = dt.parallelize(model)  # dt: gradients are averaged over the ranks
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
batches = dt.loader((images, labels), global_batch=50)  # dt: this rank's share of each batch

for epoch in range(5):
    total, count = 0.0, 0
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        (loss * batches.weight).backward()  # dt: the exact mean, though the last batch is uneven
        optimizer.step()
        total, count = total + loss.item() * batches.count, count + batches.count
    mean = dt.average(total / max(count, 1), count)  # dt: over all samples of all ranks
    if session.rank == 0:
        print(f"epoch {epoch + 1}: loss {mean:.4f}")
