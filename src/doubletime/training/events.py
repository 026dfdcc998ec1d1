"""What a training tells while it runs: records, for whoever shows or keeps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Notice:
    """Something that people must know before they read the figures."""

    text: str


@dataclass(frozen=True)
class RunStarted:
    """A run begins.

    Attributes:
        session: what the ranks found and chose, in one line.
        samples: of the training data; `steps` global batches per epoch.
        parameters: numbers to train.
    """

    task: str
    session: str
    world_size: int
    threads: int
    samples: int
    test_samples: int
    global_batch: int
    epochs: int
    steps: int
    parameters: int
    seed: int
    noun: str


@dataclass(frozen=True)
class StepDone:
    """One step was made.

    Attributes:
        epoch: from 1.
        step: within the epoch, from 1.
        loss: the mean over this rank's share of the global batch.
        samples: of the global batch.
    """

    epoch: int
    step: int
    loss: float
    samples: int


@dataclass(frozen=True)
class EpochDone:
    """One pass over the training data, and over the test data.

    Attributes:
        loss: mean over all training samples, as they were met.
        metrics: over all test samples, each counted once; empty without test data.
        samples_per_s: of all ranks together, evaluation left out.
        waiting_share: of the training time, how much was spent waiting for communication, mean
            over the ranks; None where it cannot be measured (on a GPU).
        train_s, test_s: seconds of both passes.
    """

    epoch: int
    loss: float
    metrics: Mapping[str, float]
    samples_per_s: float
    waiting_share: float | None
    train_s: float
    test_s: float


@dataclass(frozen=True)
class RunDone:
    """A run is complete: its last epoch's loss and metrics, and figures over all epochs.

    Attributes:
        sent_share: bytes that a rank sent, as a share of what an all_reduce of all gradients at each
            step sends; None where that is what was done.
    """

    task: str
    world_size: int
    threads: int
    noun: str
    epochs: int
    loss: float
    metrics: Mapping[str, float]
    samples_per_s: float
    waiting_share: float | None
    train_s: float
    total_s: float
    sent_share: float | None = None


@dataclass(frozen=True)
class Resumed:
    """A run goes on from a checkpoint.

    Attributes:
        path: of the checkpoint.
        epoch: that it goes on in, from 1.
        step: of that epoch, how many are done.
        samples: trained on before, over all epochs.
        world_size: how many ranks it was saved by.
    """

    path: str
    epoch: int
    step: int
    samples: int
    world_size: int


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint is whole, and on the disk.

    Attributes:
        path: of the checkpoint.
        step: since the run's begin, over all epochs.
        nbytes: of what it holds.
        pause_s: how long training stood still for it, on rank 0.
        total_s: from the first copy until it was whole.
    """

    path: str
    step: int
    nbytes: int
    pause_s: float
    total_s: float


Event = Notice | Resumed | CheckpointSaved | RunStarted | StepDone | EpochDone | RunDone
Observer = Callable[[Event], None]
