"""Runs the table of reduction algorithms in one job; see `checks.job.main` for its arguments."""

from __future__ import annotations

import functools
import zlib

import torch

from checks.job import Check, main
from contract.algorithm_scenarios import CHECKS
from contract.algorithms import CALLS, NAMES, ROUNDED, Line, lines
from contract.collectives import Outcome, Setting
from contract.values import difference, stains
from doubletime.collectives.party import party_of
from doubletime.collectives.topology import Topology


def check(line: Line, rank: int, world_size: int) -> int | None:
    """Run one case; a digest of its result where all ranks must hold the same."""
    setting, case = Setting(line.case, rank, world_size), line.case
    call = functools.partial(CALLS[case.collective], setting, line.algorithm)
    if case.refused:
        refuse(line, call)
        return None
    outcome = call()
    for position, (actual, expected) in enumerate(outcome):
        wrong = difference(actual, expected) or stains(actual, case.layout)
        assert wrong is None, f"tensor {position}: {wrong}"
    bits = _bits(outcome)
    if case.dtype in ROUNDED and case.collective in ("all_reduce", "reduce", "reduce_scatter"):
        assert _bits(call()) == bits, "a second run gives other bits"
    if case.collective in ("all_reduce", "broadcast", "all_gather"):
        return bits[0]  # of the result; all_gather also lists this rank's own input
    return None


def _bits(outcome: Outcome) -> list[int]:
    return [_digest(actual) for actual, _ in outcome]


def _digest(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    return zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).numpy())


def refuse(line: Line, call: functools.partial[Outcome]) -> None:
    """The call must raise, and say which operation and which type."""
    try:
        call()
    except TypeError as error:
        text = str(error)
    else:
        raise AssertionError("was not refused")
    assert line.case.op is not None
    assert line.case.op in text, f"does not name {line.case.op}: {text}"
    assert line.case.dtype in text, f"does not name {line.case.dtype}: {text}"


def checks(world_size: int) -> dict[str, Check]:
    """All lines for this many ranks, then what is more than one line, for each algorithm."""
    # As if every other rank were on a second host: rings lie in host order, two_level has two levels.
    party = party_of(None)
    party.topology = Topology.of([rank % 2 for rank in range(world_size)])
    table = {line.name: functools.partial(check, line) for line in lines(world_size)}
    for name in NAMES:
        for each in CHECKS:
            table[f"{name}:{each.__name__}"] = functools.partial(each, name)
    return table


if __name__ == "__main__":
    main(checks)
