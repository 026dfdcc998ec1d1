"""Tasks to verify: right ones, and one for each fault, exactly that."""

import random

import numpy as np
import torch
from torch import nn

from doubletime.training import session
from doubletime.training.sync_batchnorm import SyncBatchNorm
from doubletime.training.task import Task

SAMPLES, FEATURES, CLASSES = 48, 6, 3


def rank():
    return session.current().rank


def world_size():
    return session.current().world_size


def data():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
    return inputs, torch.randint(CLASSES, (SAMPLES,), generator=generator)


class Right(Task):
    """13 samples a batch are uneven shares; the last batch has 9."""

    global_batch, epochs, seed = 13, 2, 4

    def model(self):
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))

    def train_data(self):
        return data()

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


class Adam(Right):
    def optimizer(self, parameters):
        return torch.optim.Adam(parameters, lr=1e-2)

    def lr_schedule(self, optimizer, steps):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps)


class Convolution(Right):
    def model(self):
        return nn.Sequential(
            nn.Unflatten(1, (1, FEATURES)),
            nn.Conv1d(1, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(4 * FEATURES, CLASSES),
        )


class Dropout(Right):
    def model(self):
        return nn.Sequential(
            nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, CLASSES)
        )

    def loss(self, model, batch):
        inputs, targets = batch
        return super().loss(model, (inputs + 0.1 * torch.randn_like(inputs), targets))


class Double(Right):
    def model(self):
        return super().model().double()

    def train_data(self):
        inputs, targets = data()
        return inputs.double(), targets


class Singles(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs):
        return self.inner(inputs.float())


class FloatOnly(Right):
    def model(self):
        return Singles()


class BatchNorm(Right):
    def model(self):
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))


class Synchronized(Right):
    """BatchNorm over the global batch; no bias before it, whose gradient would be rounding alone."""

    def model(self):
        first = nn.Linear(FEATURES, 8, bias=False)
        layers = (first, nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))
        return SyncBatchNorm.convert(nn.Sequential(*layers))


class Summed(Right):
    global_batch = 12

    def loss(self, model, batch):
        inputs, targets = batch
        return nn.functional.cross_entropy(model(inputs), targets, reduction="sum")


class TokenMean(Right):
    """Class 0 is padding; a rank's share has more or less of it."""

    def loss(self, model, batch):
        inputs, targets = batch
        return nn.functional.cross_entropy(model(inputs), targets, ignore_index=0)


class Centred(nn.Linear):
    def forward(self, inputs):
        outputs = super().forward(inputs)
        return outputs - outputs.mean(0) if self.training else outputs


class Mixing(Right):
    def model(self):
        return nn.Sequential(Centred(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


class Rows(torch.utils.data.Dataset):
    def __init__(self, change):
        self.inputs, self.targets = data()
        self.change = change

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.change(self, index)


class RandomData(Right):
    def train_data(self):
        return Rows(lambda rows, at: (rows.inputs[at] + torch.rand(1), rows.targets[at]))


class RankData(Right):
    def train_data(self):
        return Rows(lambda rows, at: (rows.inputs[at] + rank(), rows.targets[at]))


class Repeating(Right):
    """As a sampler that pads: on several ranks some samples come in place of others."""

    def train_data(self):
        def fetch(rows, at):
            at = at // 2 * 2 if world_size() > 1 else at
            return rows.inputs[at], rows.targets[at]

        return Rows(fetch)


class Divided(Right):
    global_batch = 8

    def train_data(self):
        return tuple(part[rank() :: world_size()] for part in data())


class GrowingBatch(Right):
    @property
    def global_batch(self):
        return 6 * world_size()


class Branching(nn.Module):
    def __init__(self, is_used):
        super().__init__()
        self.trunk, self.head = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)
        self.is_used = is_used

    def forward(self, inputs):
        outputs = self.trunk(inputs)
        return outputs + self.head(inputs) if self.is_used() else outputs


class UnusedSomewhere(Right):
    def model(self):
        return Branching(lambda: rank() == 0)


class UnusedEverywhere(Right):
    def model(self):
        return Branching(lambda: False)


class ScaledRate(Right):
    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.1 * world_size())


class Running(nn.Module):
    """Follows its inputs, and does nothing with what it finds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(FEATURES))

    def forward(self, inputs):
        with torch.no_grad():
            self.mean.lerp_(inputs.mean(0), 0.1)
        return inputs


class Buffers(Right):
    def model(self):
        return nn.Sequential(Running(), nn.Linear(FEATURES, CLASSES))


class SeededAlike(Dropout):
    def optimizer(self, parameters):
        torch.manual_seed(7)
        return super().optimizer(parameters)


class RankModel(Right):
    def model(self):
        torch.manual_seed(rank())
        return super().model()


class Dead(Right):
    def loss(self, model, batch):
        return 0.0 * super().loss(model, batch)


class Still(Right):
    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.0)


class OtherRandomness(Right):
    def loss(self, model, batch):
        return super().loss(model, batch) * (1 + random.random() + np.random.rand())


class Choices(Right):
    def loss(self, model, batch):
        inputs, targets = batch
        return super().loss(model, (inputs[:, torch.randperm(FEATURES)], targets))


class RankLoss(Right):
    def loss(self, model, batch):
        return super().loss(model, batch) * (1 + 0.1 * rank())


class LocalClipping(Right):
    """Each rank's own gradient is clipped, before the mean."""

    def model(self):
        model = super().model()
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient / max(1, gradient.norm() * 20))
        return model


class RankGradient(Right):
    def model(self):
        model = super().model()
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient * (1 + 0.1 * rank()))
        return model


class Coarse(Right):
    """Gradients cross the network in fewer digits, or so."""

    def optimizer(self, parameters):
        optimizer = super().optimizer(parameters)

        def round_off(changed, args, kwargs):
            for parameter in changed.param_groups[0]["params"]:
                parameter.grad.copy_(parameter.grad.bfloat16())

        if world_size() > 1:
            optimizer.register_step_pre_hook(round_off)
        return optimizer


class Drifting(Right):
    def optimizer(self, parameters):
        optimizer = super().optimizer(parameters)

        def drift(changed, args, kwargs):
            with torch.no_grad():
                changed.param_groups[0]["params"][1].add_(0.01 * rank())

        optimizer.register_step_post_hook(drift)
        return optimizer


EQUAL = (Right, Adam, Convolution, Dropout, Double, FloatOnly, Synchronized)

# Each with the cause that is to be named first, and a word of the evidence.
FAULTS = {
    BatchNorm: ("BatchNorm over local batches", "1 (BatchNorm1d) takes"),
    Summed: ("the loss is a sum", "times smaller"),
    TokenMean: ("the loss is no mean over samples", "padding"),
    Mixing: ("the model looks across the samples of a batch", "training mode"),
    RandomData: ("samples are random", "fetched twice"),
    RankData: ("ranks get other samples", "step 1, rank 1: 6 samples"),
    Repeating: ("ranks get other samples", "did not come"),
    Divided: ("the data depends on the ranks", "48 samples to 1 process, and 24"),
    GrowingBatch: ("the global batch depends on the ranks", "6 on 1 process, and 12 on 2"),
    UnusedSomewhere: (
        "a parameter that gets no gradient on some rank",
        "on rank 1 the loss does not depend on head.weight, head.bias",
    ),
    UnusedEverywhere: ("parameters without a gradient", "head.weight, head.bias"),
    ScaledRate: ("the optimizer depends on the ranks", "lr of parameter group 0 is 0.1 on 1"),
    Buffers: ("buffers differ between ranks", "0.mean"),
    SeededAlike: ("ranks are seeded alike", "ranks 0 and 1"),
    RankModel: ("model() depends on the rank", "on rank 1"),
    Dead: ("gradients are zero", "step 1"),
    Still: ("parameters do not move", "optimizer"),
    OtherRandomness: ("random numbers of another library", "numpy.random and random"),
    Choices: ("random choices", "randperm"),
    RankLoss: ("loss() or the model depends on the rank", "rank 1 finds a loss"),
    LocalClipping: ("gradients are changed before they are averaged", "clips"),
    RankGradient: ("not known", "as they must be"),
    Coarse: ("the mean over the ranks is wrong", "rounding explains"),
    Drifting: ("parameters differ between ranks", "0.bias is not on rank 1"),
}
