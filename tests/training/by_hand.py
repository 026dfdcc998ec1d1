"""What a loop written out in plain torch makes of a classifier: one process, whole batches."""

import math

import torch

from doubletime.training.data import ShardedSampler


def train(task):
    """SGD of rate 0.3 falling to a tenth, momentum 0.9: the model, epoch losses, test metrics."""
    inputs, targets = task.train_data()
    samples = len(inputs)
    torch.manual_seed(task.seed)
    model = task.model()
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    steps, step, losses = task.epochs * math.ceil(samples / task.global_batch), 0, []
    order = ShardedSampler(samples, task.global_batch, rank=0, world_size=1, seed=task.seed)
    for order.epoch in range(task.epochs):
        total = 0.0
        for rows in order:
            logs = model(inputs[rows]).log_softmax(1)
            loss = -sum(logs[i, targets[row]] for i, row in enumerate(rows)) / len(rows)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            lr = 0.3 * (1.0 + (0.1 - 1.0) * step / steps)
            with torch.no_grad():
                for p, v, g in zip(model.parameters(), velocity, gradients, strict=True):
                    v.mul_(0.9).add_(g)
                    p.sub_(lr * v)
            total, step = total + float(loss.detach()) * len(rows), step + 1
        losses.append(total / samples)
    inputs, targets = task.test_data()
    with torch.no_grad():
        logs = model(inputs).log_softmax(1)
    right = int((logs.argmax(1) == targets).sum())
    test_loss = -float(logs[torch.arange(len(targets)), targets].mean())
    return model, losses, {"accuracy": right / len(targets), "loss": test_loss}
