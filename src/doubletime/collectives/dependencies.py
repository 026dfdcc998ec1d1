"""What each of a rank's messages must wait for: how far an executor may run ahead of the rounds.

Rounds give a correct order, not the only one. A send may start as soon as its chunks have their
values, a receive as soon as its place is free, however many earlier rounds are still in flight.
Messages between one pair of ranks must still start in the order of rounds on both sides, since
that order is how they match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from doubletime.collectives.chunks import members
from doubletime.collectives.schedule import Round, scratch

NOTHING = -1


@dataclass(frozen=True)
class Needs:
    """What one round's messages wait for: indices into the rank's own rounds, −1 for nothing.

    Attributes:
        sends: for each send the last earlier round that writes one of its chunks: it and all before
            it (which may write its other chunks) must have been received, and reduced where they
            are reduced.
        receives: for each receive the last earlier round that sends or writes one of its chunks.
            A copy must not be received in place before that round and all before it are complete
            (an earlier one may still be sending the same chunk); a reduced receive may come into
            scratch memory at any time, and waits with the reduction only.
    """

    sends: tuple[int, ...]
    receives: tuple[int, ...]


def needs(rounds: Sequence[Round], chunks: int) -> tuple[Needs, ...]:
    """What each round of one rank waits for.

    Args:
        rounds: the rank's rounds.
        chunks: how many chunks the message has.

    Returns:
        One entry for each round, in O(all chunks of all messages).
    """
    written = [NOTHING] * chunks
    used = [NOTHING] * chunks  # last sent or written
    found = []
    for index, each in enumerate(rounds):
        found.append(
            Needs(
                tuple(
                    max(max(written[first:end]) for first, end in send.chunks)
                    for send in each.sends
                ),
                tuple(
                    max(max(used[first:end]) for first, end in receive.chunks)
                    for receive in each.receives
                ),
            )
        )
        for send in each.sends:
            for chunk in members(send.chunks):
                used[chunk] = index
        for receive in each.receives:
            for chunk in members(receive.chunks):
                used[chunk] = written[chunk] = index
    return tuple(found)


def scratch_ahead(rounds: Sequence[Round], bounds: Sequence[int], in_flight: int) -> int:
    """Scratch memory of a rank that has up to `in_flight` rounds open, in the unit of `bounds`.

    It is the most that any so many rounds in a row receive to reduce.
    """
    reduced = [scratch([each], bounds) for each in rounds]
    return max(
        (sum(reduced[at : at + in_flight]) for at in range(max(1, len(reduced) - in_flight + 1))),
        default=0,
    )
