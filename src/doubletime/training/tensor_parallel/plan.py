"""Plan: which layers ranks divide, and how; which stay whole, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from torch.distributed.tensor.parallel import ParallelStyle


class Role(Enum):
    """What a rank's part of a layer is."""

    OUTPUTS = "its outputs"
    GATHERED = "its outputs, then gathered"
    INPUTS = "its inputs, then summed"
    FEATURES = "the features that come in"
    HEADS = "its heads, then summed"
    WRITTEN = "as the task says"


@dataclass(frozen=True)
class Part:
    """What each rank has of a layer.

    Attributes:
        role: which part.
        dim: the dimension of the features that are divided, from the end.
        ndim: how many dimensions its input must have; None for any number.
    """

    role: Role
    dim: int = -1
    ndim: int | None = None


@dataclass(frozen=True)
class Split:
    """A layer that ranks divide.

    Attributes:
        module: its name in the model.
        layer: what it is, such as "Linear(784, 512)".
        part: what each rank has of it.
        parameters: how many it has.
        per_rank: how many of them each rank holds.
    """

    module: str
    layer: str
    part: Part
    parameters: int
    per_rank: int


@dataclass(frozen=True)
class Kept:
    """A layer with parameters that every rank holds whole.

    Attributes:
        module: its name in the model; "" for the model itself.
        layer: what it is.
        reason: why it is not divided.
        parameters: how many it has.
    """

    module: str
    layer: str
    reason: str
    parameters: int


@dataclass(frozen=True)
class Plan:
    """How `size` ranks divide a model.

    Attributes:
        size: how many ranks.
        splits: the layers they divide, in the model's order.
        kept: the layers with parameters that each holds whole.
        written: the styles that a task gave by hand; empty where the plan was derived.
    """

    size: int
    splits: tuple[Split, ...]
    kept: tuple[Kept, ...]
    written: Mapping[str, ParallelStyle] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """How many the model has."""
        divided = sum(split.parameters for split in self.splits)
        return divided + sum(kept.parameters for kept in self.kept)

    @property
    def per_rank(self) -> int:
        """How many of them each rank holds."""
        divided = sum(split.per_rank for split in self.splits)
        return divided + sum(kept.parameters for kept in self.kept)

    def describe(self) -> str:
        """A table for people: each layer, what a rank has of it, and how many parameters that is."""
        divided = [
            (split.module, split.layer, split.part.role.value, f"{split.per_rank:,}")
            for split in self.splits
        ]
        whole = [
            (kept.module or "(model)", kept.layer, f"whole: {kept.reason}", f"{kept.parameters:,}")
            for kept in self.kept
        ]
        header = ("module", "layer", "each rank has", "parameters")
        lines = _columns([header, *divided, *whole])
        share = 100 * self.per_rank / self.parameters if self.parameters else 100.0
        ranks = "1 rank" if self.size == 1 else f"{self.size} ranks"
        lines.append(
            f"{ranks}: each holds {self.per_rank:,} of {self.parameters:,} parameters"
            f" ({share:.0f} %)"
        )
        return "\n".join(lines)


def _columns(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Rows as lines, each column as wide as its widest cell; the last one is of figures."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number == len(widths) - 1 else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
