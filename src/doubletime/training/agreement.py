"""What every rank must learn of the others while they train: in one small message a step."""

from __future__ import annotations

import torch
import torch.distributed as dist

from doubletime.training import session


class Agreement:
    """Counts the ranks that claim something; all learn the counts at the same step.

    The message travels while the next step is computed, so that no rank waits for it: what is said
    after one step is known after the next. With one rank it is known at once.

    Args:
        claims: how many there are.
    """

    def __init__(self, claims: int) -> None:
        self._joined = session.current()
        self._claims = claims
        self._counts: torch.Tensor | None = None
        self._work: dist.Work | None = None

    def after_step(self, *claims: bool) -> tuple[int, ...]:
        """Say what holds for this rank; returns how many said so at the call before.

        Every rank must call this equally often.
        """
        if self._joined.world_size == 1:
            return tuple(int(claim) for claim in claims)
        known = self.settle()
        self._counts = torch.tensor(claims, dtype=torch.int32, device=self._joined.device)
        self._work = dist.all_reduce(self._counts, async_op=True)
        return known

    def settle(self) -> tuple[int, ...]:
        """What is under way, waited for; all 0 where nothing is."""
        if self._work is None or self._counts is None:
            return (0,) * self._claims
        self._work.wait()
        counts = tuple(int(count) for count in self._counts)
        self._counts = self._work = None
        return counts
