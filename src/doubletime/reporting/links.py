"""A cluster's profile as people read it: levels, pairs, and the links that are slow."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.console import Console
from rich.table import Table

from doubletime.collectives.profile import Estimate, Level, Profile
from doubletime.planning.slow import blamed
from doubletime.units import format_rate, format_seconds

_MOST_PAIRS = 28


def show_profile(console: Console, profile: Profile) -> None:
    """All that was measured; of very many pairs the slow ones only."""
    console.print(_levels(profile))
    console.print(
        "reducing: "
        + _interval(profile.gamma_s_per_byte, _rate)
        + " by torch's kernels on one rank while all do"
    )
    if profile.pairs:
        console.print(_pairs(profile))
    for slow in blamed(profile.pairs):
        times = f"{slow.slowdown:.1f} times as slow as a good one"
        if len(slow.hosts) == 1:
            what = f"every link of host {slow.hosts[0]} is at least {times}"
        else:
            what = f"the link between {slow.hosts[0]} and {slow.hosts[1]} is {times}"
        console.print(
            f"slow: {what}; a collective over it goes at its pace", style="bold red", markup=False
        )


def _levels(profile: Profile) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("links", no_wrap=True)
    for heading in ("a round", "a message", "both ways at once", "one way", "residual"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, level in (("inside hosts", profile.inside), ("between hosts", profile.between)):
        if level is not None:
            table.add_row(name, *_cells(level))
    return table


def _cells(level: Level) -> tuple[str, ...]:
    return (
        _interval(level.alpha_s, format_seconds),
        format_seconds(level.message_alpha_s.value),
        _interval(level.beta_s_per_byte, _rate),
        _rate(level.one_way_beta_s_per_byte.value),
        f"{level.residual:.0%}",
    )


def _pairs(profile: Profile) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("between", no_wrap=True)
    for heading in ("a message", "both ways at once", "residual"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    shown = profile.pairs
    if len(shown) > _MOST_PAIRS:
        shown = tuple(pair for pair in shown if pair.is_slow)[:_MOST_PAIRS]
    for pair in shown:
        table.add_row(
            " - ".join(pair.hosts),
            _interval(pair.alpha_s, format_seconds),
            _interval(pair.beta_s_per_byte, _rate),
            f"{pair.residual:.0%}",
            f"{pair.slowdown:.1f}x slower" if pair.is_slow else "",
            style="bold red" if pair.is_slow else None,
        )
    if len(shown) < len(profile.pairs):
        table.caption = (
            f"{len(shown)} of {len(profile.pairs)} pairs: the slow ones; the file has all"
        )
    return table


def _rate(beta_s_per_byte: float) -> str:
    return format_rate(1 / beta_s_per_byte) if beta_s_per_byte > 0 else "no limit seen"


def _interval(estimate: Estimate, show: Callable[[float], str]) -> str:
    """A value and its 95 % interval; of rates the lower end is the longer time's."""
    ends = (estimate.high, estimate.low) if show is _rate else (estimate.low, estimate.high)
    return f"{show(estimate.value)} ({' .. '.join(map(show, ends))})"
