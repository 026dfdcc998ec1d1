"""`doubletime explain`: a reduction algorithm round by round, as text, as a drawing, and priced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from doubletime.errors import ScheduleError

if TYPE_CHECKING:
    from doubletime.collectives.algorithm import Algorithm
    from doubletime.collectives.model import Parameters
    from doubletime.collectives.schedule import Collective, Problem, Schedule
    from doubletime.collectives.topology import Topology
    from doubletime.reporting.schedule_cost import Prices
    from doubletime.reporting.schedule_view import Page

# Beyond this many cells of all frames only one rank's rounds are shown; beyond this many ranks
# nothing is built of the others, and nothing proved.
_MOST_CELLS = 4_000_000
_MOST_RANKS = 128
_MOST_DRAWN = 32
_MOST = 65_536  # no cluster has more; a rank of them is shown in seconds
# How many rounds a rank of an mpi group has open while it carries a schedule out.
_IN_FLIGHT = 6


@dataclass(frozen=True)
class _Pricing:
    """For what size and cluster to price: see `--cost`."""

    nbytes: int
    parameters: Parameters
    origin: str


def explain(
    algorithm: Annotated[
        str | None,
        typer.Argument(help="Such as ring; --list shows all. Also two_level:INSIDE+BETWEEN."),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", min=1, help="How many ranks.  [default: 4]")
    ] = None,
    hosts: Annotated[
        int | None,
        typer.Option(min=1, help="On how many hosts.  [default: one a rank; two_level: 2]"),
    ] = None,
    ranks_per_host: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Ranks of each host, such as 3,1.")
    ] = None,
    collective: Annotated[
        str | None,
        typer.Option(help="What to explain.  [default: all_reduce, or what the algorithm defines]"),
    ] = None,
    root: Annotated[int, typer.Option(min=0, help="Of reduce and broadcast.")] = 0,
    segments: Annotated[
        int | None,
        typer.Option(
            min=1, help="Pipelined parts of what is sent.  [default: 2 where that is the point]"
        ),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Show this rank's rounds only; for any -n.")
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Leave no round, rank or part out, however many.")
    ] = False,
    draw: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it as well: .svg, .png or .pdf.")
    ] = None,
    cost: Annotated[bool, typer.Option("--cost", help="Add the predicted time.")] = False,
    size: Annotated[str, typer.Option(help="Of the message that --cost is for.")] = "16M",
    profile: Annotated[
        Path | None, typer.Option(help="The cluster that --cost is for, from bench links.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show all algorithms.")] = False,
) -> None:
    """Show a reduction algorithm: who sends what to whom, and what each rank then holds."""
    from rich.console import Console

    from doubletime.collectives.catalogue import find
    from doubletime.reporting.schedule_view import Page

    page = Page(Console(highlight=False))
    if show_list:
        _show_list(page)
        return
    if algorithm is None:
        raise typer.BadParameter("name an algorithm, or --list", param_hint="ALGORITHM")
    chosen = find(algorithm)
    if draw is not None:
        _check_drawing(draw)
    topology = _topology(ranks, hosts, ranks_per_host, is_two_level=chosen.name.startswith("two_"))
    if segments is None:
        segments = 2 if chosen.is_pipelined and topology.host_count == topology.ranks else 1
    wanted = cast("Collective", collective or _first_collective(chosen))
    problem = chosen.problem(wanted, topology, root=root, segments=segments)
    pricing = _pricing(size, profile) if cost or profile is not None else None
    if draw is not None and problem.ranks > _MOST_DRAWN:
        raise ScheduleError(
            f"a drawing of {problem.ranks} ranks cannot be read", f"-n {_MOST_DRAWN} or fewer"
        )
    if rank is not None and rank >= problem.ranks:
        raise ScheduleError(f"there is no rank {rank}", f"--rank 0 to {problem.ranks - 1}")
    _show_title(page, chosen, problem)
    if rank is not None or problem.ranks > _MOST_RANKS:
        _show_rank(page, chosen, problem, rank, shows_all=show_all, pricing=pricing)
        if draw is None:
            return
    schedule = chosen.schedule(problem)
    if rank is None:
        _show_whole(page, chosen, schedule, shows_all=show_all, pricing=pricing)
    if draw is not None:
        from doubletime.reporting.schedule_plot import draw_schedule

        draw_schedule(schedule, draw, shows_all=show_all)
        page.line()
        page.line(f"drawn in {draw}")


def _show_list(page: Page) -> None:
    from doubletime.collectives.catalogue import ALGORITHMS
    from doubletime.reporting.algorithms import show_algorithms

    show_algorithms(page, ALGORITHMS.values())


def _check_drawing(file: Path) -> None:
    """Before anything is computed.

    Raises:
        ScheduleError: if the drawing cannot be written there.
    """
    if file.suffix.lower() not in (".svg", ".png", ".pdf"):
        raise ScheduleError(f"cannot draw {file.name}", "a name that ends in .svg, .png or .pdf")
    if not file.absolute().parent.is_dir():
        folder = file.absolute().parent
        raise ScheduleError(f"there is no folder {folder} for {file.name}", f"mkdir -p {folder}")


def _topology(
    ranks: int | None, hosts: int | None, per_host: str | None, *, is_two_level: bool
) -> Topology:
    """The ranks' places.

    Raises:
        ScheduleError: if the options contradict each other.
    """
    from doubletime.collectives.topology import Topology

    if per_host is not None:
        sizes = [
            int(part) if part.isascii() and part.strip().isdigit() else 0
            for part in per_host.split(",")
        ]
        if not all(sizes):
            raise ScheduleError(
                f"--ranks-per-host {per_host} is not a list of counts", "such as 3,1 for two hosts"
            )
        if hosts is not None and len(sizes) == 1:
            _refuse_many(sum(sizes) * hosts)
            sizes *= hosts
        if ranks not in (None, sum(sizes)) or hosts not in (None, len(sizes)):
            raise ScheduleError(
                f"--ranks-per-host {per_host} is {sum(sizes)} ranks on {len(sizes)} hosts",
                "leave out -n and --hosts",
            )
        _refuse_many(sum(sizes))
    else:
        count = 4 if ranks is None else ranks
        _refuse_many(count)
        if hosts is None:
            hosts = min(2, count) if is_two_level else count
        if hosts > count:
            raise ScheduleError(
                f"{count} ranks on {hosts} hosts leave hosts without a rank", f"-n {hosts} or more"
            )
        each, longer = divmod(count, hosts)
        sizes = [each + (host < longer) for host in range(hosts)]
    return Topology(tuple(host for host, size in enumerate(sizes) for _ in range(size)))


def _refuse_many(ranks: int) -> None:
    if ranks > _MOST:
        raise ScheduleError(f"{ranks} ranks are more than any cluster has", f"-n {_MOST} or fewer")


def _first_collective(algorithm: Algorithm) -> str:
    """What is explained unless asked for: all_reduce where it is defined.

    Raises:
        ScheduleError: if the algorithm, being of two that do not go together, defines none.
    """
    if not algorithm.collectives:
        raise ScheduleError(
            f"{algorithm.name} defines no collective: its two levels do not go together",
            "such as two_level:ring+halving_doubling",
        )
    return (
        "all_reduce" if "all_reduce" in algorithm.collectives else next(iter(algorithm.collectives))
    )


def _pricing(size: str, profile: Path | None) -> _Pricing:
    from doubletime.units import parse_nbytes

    nbytes = parse_nbytes(size)
    from doubletime.collectives.knowledge import ASSUMED
    from doubletime.collectives.profile import read

    if profile is None:
        origin = "assumed, not measured (--profile takes a measured cluster)"
        return _Pricing(nbytes, ASSUMED, origin)
    measured = read(profile)
    missing = [name for name in ("inside", "between") if getattr(measured, name) is None]
    origin = f"measured, {profile}"
    if missing:
        origin += f" (assumed: {missing[0]})"
    return _Pricing(nbytes, measured.parameters(ASSUMED), origin)


def _show_title(page: Page, algorithm: Algorithm, problem: Problem) -> None:
    from doubletime.collectives.schedule import ROOTED
    from doubletime.reporting.schedule_view import place_name

    root = f" with root {problem.root}" if problem.collective in ROOTED else ""
    segments = f", {problem.segments} segments" if problem.segments > 1 else ""
    page.prose(
        (algorithm.name, "bold"),
        f" {problem.collective}{root} over {place_name(problem.topology)}{segments}",
    )
    page.prose((algorithm.source, "dim"))


def _show_whole(
    page: Page,
    algorithm: Algorithm,
    schedule: Schedule,
    *,
    shows_all: bool,
    pricing: _Pricing | None,
) -> None:
    """All ranks, round by round, and what they prove; of too many cells one rank."""
    from doubletime.collectives.holdings import columns
    from doubletime.collectives.proof import prove
    from doubletime.reporting.schedule_cost import show_prices
    from doubletime.reporting.schedule_view import show_evidence, show_schedule

    problem = schedule.problem
    count = len(columns(schedule))
    evidence = prove(schedule)
    prices = _price(algorithm, schedule, pricing) if pricing is not None else None
    if not shows_all and problem.ranks * count * schedule.length > _MOST_CELLS:
        _show_rank(page, algorithm, problem, None, shows_all=False, pricing=None)
    else:
        times = prices.times if prices is not None else None
        show_schedule(page, schedule, shows_all=shows_all, times=times)
    show_evidence(page, schedule, evidence)
    if prices is not None and pricing is not None:
        show_prices(page, prices, pricing.origin, shows_all=shows_all)


def _price(algorithm: Algorithm, schedule: Schedule, pricing: _Pricing) -> Prices:
    from doubletime.reporting.schedule_cost import price

    terms = algorithm.formula(schedule.problem, pricing.nbytes)
    return price(schedule, terms, pricing.nbytes, pricing.parameters, _IN_FLIGHT)


def _show_rank(
    page: Page,
    algorithm: Algorithm,
    problem: Problem,
    rank: int | None,
    *,
    shows_all: bool,
    pricing: _Pricing | None,
) -> None:
    """One rank's rounds, built without those of the others."""
    from doubletime.collectives.cost import in_step
    from doubletime.reporting.rank_view import show_rank
    from doubletime.units import format_nbytes, format_seconds

    if rank is None:
        page.prose((f"{problem.ranks} ranks fill no page: one of them (--rank chooses)", "dim"))
    which = problem.root if rank is None else rank
    rounds = algorithm.rounds(problem, which)
    show_rank(page, problem, which, rounds, shows_all=shows_all)
    if pricing is not None:
        bounds = problem.bounds(pricing.nbytes)
        time_s = in_step(rounds, which, problem.topology, bounds, pricing.parameters)
        page.line()
        page.line(
            ("predicted", "bold"),
            f" for {format_nbytes(pricing.nbytes)}: {format_seconds(time_s)}"
            " for this rank's rounds, if no partner is late",
        )
        page.prose((pricing.origin, "dim"), indent=2)
