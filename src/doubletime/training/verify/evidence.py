"""What speaks for one cause or another where ranks do not compute what one process does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from doubletime.training.verify.records import Account, Difference, Reference, Start


@dataclass(frozen=True)
class Evidence:
    """All records of both sides.

    Attributes:
        ranks: how many with other samples; places of a mesh that share samples count as one.
        one: of one process.
        many: of the ranks, in the task's own precision.
        differences: those that are beyond the tolerance, in order of steps.
        tolerance: of the precision that was judged in.
        averaging_bound: see `distance.averaging_bound`.
    """

    ranks: int
    one: Reference
    many: Account
    differences: tuple[Difference, ...]
    tolerance: float
    averaging_bound: float

    @property
    def start(self) -> Start:
        """Of the one process."""
        return self.one.account.start[0]

    def strange_samples(self) -> Iterator[tuple[int, int, int]]:
        """Step, rank and place in the global batch of samples that are not those of one process.

        Samples of a global batch are dealt out one by one: rank r of p has those at r, r + p, …
        """
        for step, (one, many) in enumerate(
            zip(self.one.account.before, self.many.before, strict=False), 1
        ):
            wanted = one[0].samples
            for rank, before in enumerate(many):
                for at, sample in enumerate(before.samples):
                    place = rank + at * self.ranks
                    if wanted and (place >= len(wanted) or wanted[place] != sample):
                        yield step, rank, place

    def sample_counts(self, step: int) -> tuple[int, int]:
        """How many samples of the step came twice or more on ranks, and how many of one process's did not."""
        wanted = list(self.one.account.before[step - 1][0].samples)
        found = [sample for before in self.many.before[step - 1] for sample in before.samples]
        repeated = sum(
            found.count(sample) > max(1, wanted.count(sample)) for sample in dict.fromkeys(found)
        )
        return repeated, sum(sample not in found for sample in dict.fromkeys(wanted))

    def alike_ranks(self) -> tuple[int, int, int] | None:
        """Step and two ranks whose generators were in the same state at their first draw."""
        for step, ranks in enumerate(self.many.before, 1):
            for one, other in combinations(range(self.ranks), 2):
                state = ranks[one].generator
                if state is not None and state == ranks[other].generator:
                    return step, one, other
        return None

    def drifted(self, kind: str) -> tuple[int, int, str] | None:
        """Step, rank and name of the first parameter or buffer that is not the first rank's after a step."""
        for step, ranks in enumerate(self.many.after, 1):
            first: dict[str, bytes] = {}  # of those that have it
            for rank, after in enumerate(ranks):
                for name, state in getattr(after, kind).items():
                    if first.setdefault(name, state) != state:
                        return step, rank, name
        return None

    def differ(self, kind: str) -> Difference | None:
        """The first difference of a kind, the largest of its step."""
        of_kind = [each for each in self.differences if each.kind == kind]
        first = [each for each in of_kind if each.step == of_kind[0].step]
        return max(first, key=lambda each: each.distance, default=None)


def listed(names: tuple[str, ...] | list[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
