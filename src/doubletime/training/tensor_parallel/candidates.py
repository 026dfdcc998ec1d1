"""Which of the regions that could be divided are: those with the most parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from doubletime.training.tensor_parallel.layers import parameters_of
from doubletime.training.tensor_parallel.plan import Part
from doubletime.training.tensor_parallel.regions import Region


@dataclass(frozen=True)
class Candidate:
    """A region that may be taken: roles of its layers, where they stand, parameters divided."""

    parts: tuple[tuple[str, Part], ...]
    first: int
    last: int
    gain: int


def candidate_of(region: Region, modules: Mapping[str, nn.Module]) -> Candidate:
    """What there is to choose by."""
    parts = tuple(sorted(region.parts.items(), key=lambda each: each[0]))
    gain = sum(parameters_of(modules[name]) for name in region.parts)
    return Candidate(parts, region.positions[0], region.positions[-1], gain)


def heaviest(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates without a layer in common, with the most parameters that stretches in a row allow.

    The best among stretches that do not overlap, as in weighted interval scheduling, then whatever
    else still fits.
    """
    ordered = sorted(candidates, key=lambda each: (each.last, each.first))
    best: list[tuple[int, list[Candidate]]] = [(0, [])]
    for number, candidate in enumerate(ordered):
        before = sum(1 for each in ordered[:number] if each.last < candidate.first)
        gain, taken = best[before]
        with_it = (gain + candidate.gain, [*taken, candidate])
        best.append(max(best[-1], with_it, key=lambda each: each[0]))
    chosen = best[-1][1]
    used = {name for candidate in chosen for name, _ in candidate.parts}
    for candidate in sorted(ordered, key=lambda each: -each.gain):
        names = {name for name, _ in candidate.parts}
        if not names & used:
            chosen.append(candidate)
            used |= names
    return chosen
