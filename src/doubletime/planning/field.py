"""Which choices are worth trying at the next size, and which of those tried are worth timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from doubletime.collectives.choice import NATIVE, Choice

_NEAR = 1.3  # a quick look errs by less
_MOST = 4
_FAR = 2.0
_DROPPED_FROM_NBYTES = 1 << 20  # below, trying costs little, and noise much
# By how much the best time grows from a size to the next of twice as many bytes where bytes decide it.
_GROWTH = 1.6
_CATCHING_UP = 0.95


class Field:
    """All choices at one size after the other, ascending; times come from quick looks.

    A choice is dropped for good where it takes twice as long as the best and does not catch up with
    it from size to size, once bytes and not latency decide: there, what is behind stays behind. What
    is slow for small messages only, as a ring, stays.
    """

    def __init__(self) -> None:
        self._nbytes = 0
        self._best_s = 0.0
        self._ratios: dict[Choice, float] = {}
        self._dropped: set[Choice] = set()

    def entered(self, choices: Sequence[Choice]) -> list[Choice]:
        """Those that are still to be tried; native is always among them."""
        return [choice for choice in choices if choice not in self._dropped]

    def finalists(self, nbytes: int, times: Mapping[Choice, float]) -> list[Choice]:
        """Native, and the best others that are near the best, the fastest first.

        Args:
            nbytes: the size, larger than any before.
            times: seconds of each choice that was entered, native among them.
        """
        best_s = min(times.values())
        ratios = {choice: time_s / best_s for choice, time_s in times.items()}
        doublings = nbytes / self._nbytes / 2 if self._nbytes else float("inf")
        if nbytes >= _DROPPED_FROM_NBYTES and best_s > self._best_s * _GROWTH * doublings:
            self._dropped.update(
                choice
                for choice, ratio in ratios.items()
                if ratio > _FAR
                and ratio > self._ratios.get(choice, ratio) * _CATCHING_UP
                and choice.algorithm != NATIVE
                and choice in self._ratios
            )
        self._nbytes, self._best_s, self._ratios = nbytes, best_s, ratios
        native = Choice(NATIVE)
        others = sorted((each for each in times if each != native), key=lambda each: times[each])
        near = [choice for choice in others if ratios[choice] <= _NEAR]
        return [native, *near[: _MOST - 1]]
