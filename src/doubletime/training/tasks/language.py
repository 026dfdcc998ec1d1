"""Tasks on text: to guess each next byte, by a Transformer, an LSTM or a GRU."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from doubletime.training.task import Task
from doubletime.training.tasks import language_models, text


class _NextByte(Task):
    """To guess each next byte of a text; Python's own documentation, which needs no download."""

    noun = "sequences"
    epochs = 3
    global_batch = 32
    rate = 3e-3  # the largest learning rate

    def text(self) -> bytes:
        """What is learned from."""
        return text.python_documentation()

    def train_data(self) -> tuple[Tensor, Tensor]:
        """As `text.rows` gives them: fifteen of sixteen."""
        return text.rows(self.text(), is_test=False)

    def test_data(self) -> tuple[Tensor, Tensor]:
        """As `text.rows` gives them: every sixteenth."""
        return text.rows(self.text(), is_test=True)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross-entropy in nats, the mean over all bytes that are guessed."""
        inputs, targets = batch
        return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def metrics(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Mapping[str, Tensor]:
        """The loss, the same in bits, and how many bytes are guessed right."""
        inputs, targets = batch
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return {
            "loss": loss,
            "bits_per_byte": loss / math.log(2),
            "accuracy": (logits.argmax(dim=-1) == targets).float().mean(),
        }

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """AdamW (Loshchilov and Hutter, arXiv:1711.05101); `lr_schedule` sets the rate."""
        return torch.optim.AdamW(parameters, lr=self.rate, betas=(0.9, 0.95))

    def lr_schedule(
        self, optimizer: torch.optim.Optimizer, steps: int
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """Up in a tenth of the steps, then down to almost 0 along a cosine."""
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.rate, total_steps=steps, pct_start=0.1, cycle_momentum=False
        )


class PydocTransformer(_NextByte):
    """A Transformer on Python's own documentation."""

    name = "pydoc-transformer"

    def model(self) -> nn.Module:
        """A Transformer of 876,000 parameters: 4 blocks of 8 heads and 64 features."""
        return language_models.transformer(text.SYMBOLS, text.LENGTH, width=64, heads=8, blocks=4)


class PydocLstm(_NextByte):
    """An LSTM on Python's own documentation."""

    name = "pydoc-lstm"
    rate = 5e-3

    def model(self) -> nn.Module:
        """Two layers of 128 LSTM cells: 560,000 parameters."""
        return language_models.recurrent(nn.LSTM, text.SYMBOLS, width=64, hidden=128, layers=2)


class PydocGru(_NextByte):
    """A GRU on Python's own documentation."""

    name = "pydoc-gru"
    rate = 1e-2

    def model(self) -> nn.Module:
        """Two layers of 128 GRU cells: 437,000 parameters."""
        return language_models.recurrent(nn.GRU, text.SYMBOLS, width=64, hidden=128, layers=2)


class _OnTheJargonFile(_NextByte):
    """The same on the Jargon File, which is larger; its substitute is Python's documentation."""

    @functools.cached_property
    def _folder(self) -> Path:
        return text.JARGON.fetch()

    def prepare(self) -> None:
        """Fetch the text and check it."""
        _ = self._folder

    def text(self) -> bytes:
        """The Jargon File, 1.7 MB."""
        return text.jargon(self._folder)


class TextTransformer(_OnTheJargonFile, PydocTransformer):
    """A Transformer on the Jargon File."""

    name = "text-transformer"

    def substitute(self) -> Task:
        """The same model on a text that comes with Python."""
        return PydocTransformer()


class TextLstm(_OnTheJargonFile, PydocLstm):
    """An LSTM on the Jargon File."""

    name = "text-lstm"

    def substitute(self) -> Task:
        """The same model on a text that comes with Python."""
        return PydocLstm()


class TextGru(_OnTheJargonFile, PydocGru):
    """A GRU on the Jargon File."""

    name = "text-gru"

    def substitute(self) -> Task:
        """The same model on a text that comes with Python."""
        return PydocGru()
