"""What the model says a schedule takes: a bar for each round, and the total beside the lower bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from doubletime.collectives.cost import Cost, RoundTime, evaluate
from doubletime.collectives.formula import Terms
from doubletime.collectives.model import Parameters, formula_s, lower_bound_s
from doubletime.collectives.schedule import Schedule, nbytes_of
from doubletime.reporting.schedule_view import FIRST_ROUNDS, LAST_ROUNDS, Page, place_name
from doubletime.units import format_nbytes, format_rate, format_seconds

_BAR_COLUMNS = 40


@dataclass(frozen=True)
class Prices:
    """A schedule priced for one size on one cluster.

    Attributes:
        schedule: what is priced.
        nbytes: the whole message.
        cost: rounds one by one.
        ahead_s: the same with `in_flight` rounds open at once; seconds.
        in_flight: as in `cost.evaluate`.
        bound_s: what no algorithm can beat; seconds.
        formula_s: what the published formula says; seconds.
        is_exact: whether the formula is the schedule's time, or at least that.
        parameters: the cluster.
    """

    schedule: Schedule
    nbytes: int
    cost: Cost
    ahead_s: float
    in_flight: int
    bound_s: float
    formula_s: float
    is_exact: bool
    parameters: Parameters

    @property
    def times(self) -> Mapping[int, RoundTime]:
        """Each round's times, by its number."""
        return {time.number: time for time in self.cost.rounds}


def price(
    schedule: Schedule,
    terms: Sequence[Terms],
    nbytes: int,
    parameters: Parameters,
    in_flight: int,
) -> Prices:
    """Price a schedule.

    Args:
        schedule: what all ranks do.
        terms: its algorithm's closed formula for this size.
        nbytes: the whole message.
        parameters: the cluster.
        in_flight: how many rounds are open at once where they are carried out.
    """
    problem = schedule.problem
    ahead = evaluate(schedule, nbytes, parameters, in_flight=in_flight)
    return Prices(
        schedule=schedule,
        nbytes=nbytes,
        cost=evaluate(schedule, nbytes, parameters),
        ahead_s=ahead.time_s,
        in_flight=in_flight,
        bound_s=lower_bound_s(problem.collective, problem.topology, nbytes, parameters),
        formula_s=formula_s(terms, problem.topology, parameters),
        is_exact=all(each.is_exact for each in terms),
        parameters=parameters,
    )


def show_prices(page: Page, prices: Prices, origin: str, *, shows_all: bool = False) -> None:
    """Show when each round happens, and what all take together.

    Args:
        page: where.
        prices: what to show.
        origin: where the parameters come from, in words.
        shows_all: leave no round out.
    """
    topology = prices.schedule.problem.topology
    page.line()
    page.line(("predicted", "bold"), f" for {format_nbytes(prices.nbytes)}, {place_name(topology)}")
    page.prose((f"{origin}: {_parameters(prices)}", "dim"), indent=2)
    page.line()
    _show_rounds(page, prices, shows_all)
    page.line()
    total_s = prices.cost.time_s
    _total(page, "rounds one by one", total_s, prices.bound_s, "bold")
    if prices.in_flight > 1:
        _total(
            page, f"{prices.in_flight} rounds in flight", prices.ahead_s, prices.bound_s, "bold green"
        )  # fmt: skip
    _total(page, "lower bound", prices.bound_s, 0.0, "")
    word = "published formula" if prices.is_exact else "formula, at most"
    _total(page, word, prices.formula_s, 0.0, "dim")


def _total(page: Page, name: str, time_s: float, bound_s: float, style: str) -> None:
    share = f"  bound / time {bound_s / time_s:.2f}" if bound_s and time_s else ""
    page.line((f"  {name:<20}{format_seconds(time_s):>10}{share}", style))


def _show_rounds(page: Page, prices: Prices, shows_all: bool) -> None:
    rounds = prices.cost.rounds
    total_s = prices.cost.time_s
    largest = _largest(prices)
    for at, each in enumerate(rounds):
        is_long = not shows_all and len(rounds) > FIRST_ROUNDS + LAST_ROUNDS + 1
        if is_long and FIRST_ROUNDS <= at < len(rounds) - LAST_ROUNDS:
            if at == FIRST_ROUNDS:
                page.line((f"  … {len(rounds) - FIRST_ROUNDS - LAST_ROUNDS} rounds more", "dim"))
            continue
        first = round(each.start_s / total_s * _BAR_COLUMNS)
        size = max(1, round(each.end_s / total_s * _BAR_COLUMNS) - first)
        page.line(
            f"  round {each.number + 1:<4}{format_nbytes(largest[each.number]):>11} a message"
            f"{format_seconds(each.end_s - each.start_s):>10}  ",
            (" " * min(first, _BAR_COLUMNS - 1) + "█" * size, "green"),
        )


def _largest(prices: Prices) -> Mapping[int, int]:
    """The largest message of each round, in bytes."""
    bounds = prices.schedule.problem.bounds(prices.nbytes)
    found: dict[int, int] = {}
    for rounds in prices.schedule.rounds:
        for each in rounds:
            for send in each.sends:
                nbytes = nbytes_of(send.chunks, bounds)
                found[each.number] = max(found.get(each.number, 0), nbytes)
    return found


def _parameters(prices: Prices) -> str:
    topology = prices.schedule.problem.topology
    parts = []
    if topology.host_count < topology.ranks:
        parts.append(("inside a host", prices.parameters.inside))
    if topology.host_count > 1:
        parts.append(("between hosts", prices.parameters.between))
    told = [
        f"{name} α {format_seconds(link.alpha_s)}, 1/β {format_rate(1 / link.beta_s_per_byte)}"
        for name, link in parts
        if link.beta_s_per_byte
    ]
    gamma = prices.parameters.gamma_s_per_byte
    if gamma:
        told.append(f"1/γ {format_rate(1 / gamma)}")
    return "; ".join(told)
