"""Tasks on images: Fashion-MNIST by a CNN and by an MLP, scikit-learn's digits by a CNN."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from doubletime.training.task import Task
from doubletime.training.tasks import fashion_mnist


def _classifier(channels: tuple[int, int], side: int, hidden: int) -> nn.Module:
    """Two convolutions, each with a pooling that halves `side`, then two linear layers."""
    first, second = channels
    return nn.Sequential(
        nn.Conv2d(1, first, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * (side // 4) ** 2, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


class Digits(Task):
    """scikit-learn's digits: 1,797 images of 8 x 8 pixels; 1,500 to train, 297 to test."""

    name = "digits"
    noun = "images"
    epochs = 10
    global_batch = 60

    def model(self) -> nn.Module:
        """A CNN of 23,000 parameters."""
        return _classifier((16, 32), 8, 128)

    def train_data(self) -> tuple[Tensor, Tensor]:
        """Images, float32 (1500, 1, 8, 8) in 0 to 1; labels, int64."""
        images, labels = self._load()
        return images[:1500], labels[:1500]

    def test_data(self) -> tuple[Tensor, Tensor]:
        """The other 297."""
        images, labels = self._load()
        return images[1500:], labels[1500:]

    @staticmethod
    def _load() -> tuple[Tensor, Tensor]:
        from sklearn.datasets import load_digits  # takes a second, so only where it is needed

        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        images = (digits.images[order] / 16).astype(np.float32)
        labels = digits.target[order].astype(np.int64)
        return torch.from_numpy(images)[:, None], torch.from_numpy(labels)


class FashionMnist(Task):
    """Fashion-MNIST: 60,000 images of 28 x 28 pixels to train, 10,000 to test, 10 classes."""

    name = "fashion-mnist"
    noun = "images"
    epochs = 3
    global_batch = 128

    @functools.cached_property
    def _folder(self) -> Path:
        return fashion_mnist.FILES.fetch()

    def prepare(self) -> None:
        """Fetch the images and check them."""
        _ = self._folder

    def substitute(self) -> Task:
        """scikit-learn's digits, which come with the package."""
        return Digits()

    def model(self) -> nn.Module:
        """A CNN of 207,000 parameters."""
        return _classifier((16, 32), 28, 128)

    def train_data(self) -> tuple[Tensor, Tensor]:
        """As `fashion_mnist.load` gives them."""
        return fashion_mnist.load(self._folder, "train")

    def test_data(self) -> tuple[Tensor, Tensor]:
        """As `fashion_mnist.load` gives them."""
        return fashion_mnist.load(self._folder, "t10k")

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """SGD with Nesterov's momentum; `lr_schedule` sets the rate."""
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def lr_schedule(
        self, optimizer: torch.optim.Optimizer, steps: int
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """One cycle (Smith, arXiv:1708.07120): up to 0.1 in a fifth of the steps, then to 0."""
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.1, total_steps=steps, pct_start=0.2
        )


class FashionMnistMlp(FashionMnist):
    """The same images by a wide MLP, which computes little for each parameter that is sent."""

    name = "fashion-mnist-mlp"

    def model(self) -> nn.Module:
        """An MLP of 10.0 M parameters: 784 to 10 through three layers of 2,048."""
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(784, 2048), nn.ReLU(),
            nn.Linear(2048, 2048), nn.ReLU(),
            nn.Linear(2048, 2048), nn.ReLU(),
            nn.Linear(2048, 10),
        )  # fmt: skip
