"""One rank's rounds in a part of an algorithm, and how parts follow or accompany each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from doubletime.collectives.chunks import Ranges
from doubletime.collectives.line import Line
from doubletime.collectives.schedule import Combine, Receive, Round, Send

# One message of a rank in a round: the round's number and what is sent or received.
Step = tuple[int, Send | Receive]


@dataclass(frozen=True)
class Phase:
    """One rank's rounds among those of a line.

    Attributes:
        rounds: those that this rank takes part in, by ascending number.
        length: how many rounds all of the line's ranks take together: the same on each of them,
            so that what follows begins at the same number everywhere.
    """

    rounds: tuple[Round, ...]
    length: int

    def then(self, other: Phase) -> Phase:
        """This part, and the other when all its rounds are over."""
        return Phase(self.rounds + _late(other.rounds, self.length), self.length + other.length)

    def beside(self, other: Phase, delay: int = 0) -> Phase:
        """Both at once, the other `delay` rounds later; they must share no chunk."""
        merged = {each.number: each for each in self.rounds}
        for late in _late(other.rounds, delay):
            first = merged.get(late.number)
            merged[late.number] = (
                late
                if first is None
                else Round(late.number, first.sends + late.sends, first.receives + late.receives)
            )
        return Phase(
            tuple(merged[number] for number in sorted(merged)),
            max(self.length, delay + other.length),
        )


NOTHING = Phase((), 0)


def phase(steps: Iterable[Step], length: int) -> Phase:
    """Rounds from single messages, in any order of rounds; those without chunks are left out."""
    sends: dict[int, list[Send]] = {}
    receives: dict[int, list[Receive]] = {}
    for number, message in steps:
        if not message.chunks:
            continue
        if isinstance(message, Send):
            sends.setdefault(number, []).append(message)
        else:
            receives.setdefault(number, []).append(message)
    rounds = tuple(
        Round(number, tuple(sends.get(number, ())), tuple(receives.get(number, ())))
        for number in sorted(sends.keys() | receives.keys())
    )
    return Phase(rounds, length)


def reduce_from(line: Line, position: int, other: int, chunks: Ranges) -> Receive:
    """Receive at `position` from `other` and reduce: the lower position stands on the left."""
    side = Combine.RECEIVED_LEFT if other < position else Combine.RECEIVED_RIGHT
    return Receive(line.ranks[other], chunks, side)


def copy_from(line: Line, other: int, chunks: Ranges) -> Receive:
    """Receive from position `other` in place."""
    return Receive(line.ranks[other], chunks, Combine.COPY)


def send_to(line: Line, other: int, chunks: Ranges) -> Send:
    """Send to position `other`."""
    return Send(line.ranks[other], chunks)


def _late(rounds: tuple[Round, ...], delay: int) -> tuple[Round, ...]:
    if not delay:
        return rounds
    return tuple(replace(each, number=each.number + delay) for each in rounds)
