"""Find the best all_reduce for each size on these ranks: quick looks at all, then the best by turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
from time import perf_counter

import torch
import torch.distributed as dist

from doubletime.collectives import auto, run
from doubletime.collectives.choice import NATIVE, Choice
from doubletime.collectives.party import Party
from doubletime.collectives.table import Decision, Measured
from doubletime.errors import CollectiveError
from doubletime.planning import room
from doubletime.planning.field import Field
from doubletime.planning.peers import Job
from doubletime.planning.timing import Spread, spread
from doubletime.planning.turns import Work, by_turns, slowest
from doubletime.units import format_nbytes

_PERIOD = 251  # of the test data: prime, so that a shifted chunk is seen, and exact in float32
_LOOKS = 3
_LOOK_S = 2e-3
_LONG_S = 0.05  # one look at such a call says enough
# Of two choices that take about as long, the plainer one is as good, and noise decides no less.
_ALIKE = 1.02


@dataclass(frozen=True)
class Looking:
    """What is tried now.

    Attributes:
        fraction: of all sizes, 0 to 1.
        nbytes: the size.
        choice: that is looked at; None while the best are timed.
    """

    fraction: float
    nbytes: int
    choice: Choice | None


@dataclass(frozen=True)
class Sized:
    """One size, decided.

    Attributes:
        decision: what was best.
        finalists: those that were timed, the fastest first.
        tried: how many were looked at.
    """

    decision: Decision
    finalists: tuple[tuple[Choice, Spread], ...]
    tried: int


Observer = Callable[[Looking | Sized], None]


def all_reduce(
    job: Job, party: Party, sizes: Sequence[int], seconds: float, observe: Observer
) -> Measured:
    """Decide for each size; every rank makes this call.

    Args:
        job: all ranks.
        party: the group of all ranks whose backend is tuned.
        sizes: in bytes, ascending, multiples of 4.
        seconds: to spend on each size and each of the best, about.
        observe: is told progress, and every size decided; on every rank.

    Returns:
        The same on every rank.

    Raises:
        CollectiveError: on every rank, if an algorithm sums wrongly on any.
        LaunchError: on every rank, if some host has not the memory.
    """
    room.check(job.comm, max(sizes))
    decisions: list[Decision] = []
    field = Field()
    for index, nbytes in enumerate(sizes):
        tensor = torch.empty(nbytes // 4)
        choices = [Choice(NATIVE), *auto.candidates("all_reduce", party.topology, nbytes)]
        found: dict[Choice, float] = {}
        for number, choice in enumerate(entered := field.entered(choices)):
            share = 0.5 * number / len(entered)
            observe(Looking((index + share) / len(sizes), nbytes, choice))
            _check(job, party, tensor, choice)
            tensor.zero_()  # sums of zeros stay finite however often they are added
            found[choice] = _look(job, party, tensor, choice)
        observe(Looking((index + 0.5) / len(sizes), nbytes, None))
        finalists = field.finalists(nbytes, found)
        before = decisions[-1].choice if decisions else None
        sized = _final(job, party, tensor, finalists, before, seconds, len(found))
        decisions.append(sized.decision)
        observe(sized)
    return Measured(
        auto.here(party), "all_reduce", tuple(decisions),
        datetime.now(timezone.utc).isoformat(timespec="seconds"), version("doubletime"),
    )  # fmt: skip


def _final(
    job: Job,
    party: Party,
    tensor: torch.Tensor,
    finalists: Sequence[Choice],
    before: Choice | None,
    seconds: float,
    tried: int,
) -> Sized:
    """Time the best by turns, and decide."""
    meet = partial(dist.barrier, group=party.group)
    works = [Work(partial(_carry_out, party, tensor, choice), meet) for choice in finalists]
    taken = by_turns(job.comm, works, seconds, _ignored)
    spreads = {choice: spread(samples) for choice, samples in zip(finalists, taken, strict=True)}
    ranked = sorted(spreads.items(), key=lambda each: each[1].median_s)
    limit_s = ranked[0][1].median_s * _ALIKE
    plain = [Choice(NATIVE), *([before] if before in spreads else [])]
    alike = [choice for choice in plain if choice and spreads[choice].median_s <= limit_s]
    best = alike[0] if alike else ranked[0][0]
    decision = Decision(
        tensor.nbytes, best, spreads[best].median_s, spreads[Choice(NATIVE)].median_s
    )
    return Sized(decision, tuple(ranked), tried)


def _look(job: Job, party: Party, tensor: torch.Tensor, choice: Choice) -> float:
    """Seconds a call, at its best and on the slowest rank; the same on every rank."""
    taken: list[float] = []
    calls = 1
    while len(taken) < _LOOKS:
        dist.barrier(group=party.group)
        start = perf_counter()
        for _ in range(calls):
            _carry_out(party, tensor, choice)
        mine_s = (perf_counter() - start) / calls
        taken.append(float(slowest(job.comm, [mine_s])[0]))
        calls = max(1, min(100, int(_LOOK_S / taken[-1])))
        if taken[-1] > _LONG_S:
            break
    return min(taken)


def _carry_out(party: Party, tensor: torch.Tensor, choice: Choice) -> None:
    run.all_reduce(party, tensor, dist.ReduceOp.SUM, choice)


def _check(job: Job, party: Party, tensor: torch.Tensor, choice: Choice) -> None:
    pattern = torch.arange(tensor.numel(), dtype=torch.int32).remainder_(_PERIOD).float()
    tensor.copy_(pattern + job.rank)
    _carry_out(party, tensor, choice)
    ranks = job.world_size
    expected = pattern.mul_(ranks).add_(ranks * (ranks - 1) // 2)
    answers = job.comm.allgather(torch.equal(tensor, expected))
    wrong = [rank for rank, is_right in enumerate(answers) if not is_right]
    if wrong:
        raise CollectiveError(
            f"all_reduce of {format_nbytes(tensor.nbytes)} by {choice} gave wrong sums on rank "
            f"{wrong[0]} ({len(wrong)} of {ranks} ranks)",
            "report this line with the versions of doubletime and MPI",
        )


def _ignored(_share: float) -> None:
    """Progress inside a size is not shown."""
