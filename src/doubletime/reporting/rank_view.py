"""One rank's rounds as a list: how to look at an algorithm over more ranks than a page holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from doubletime.collectives import labels
from doubletime.collectives.chunks import Ranges
from doubletime.collectives.schedule import Combine, Problem, Round
from doubletime.reporting.schedule_view import FIRST_ROUNDS, LAST_ROUNDS, Page


def show_rank(
    page: Page, problem: Problem, rank: int, rounds: Sequence[Round], *, shows_all: bool = False
) -> None:
    """Show what one rank does in each of its rounds.

    Args:
        page: where.
        problem: what the schedule solves; the parts of the message are its chunks.
        rank: whose rounds they are.
        rounds: that rank's.
        shows_all: leave nothing out, however many there are.
    """
    page.line()
    page.line((f"what rank {rank} does", "bold"), f" in {len(rounds)} rounds")
    digits = len(str(rounds[-1].number + 1)) if rounds else 1
    sends = max((len(_sends(problem, each)) for each in rounds), default=0)
    is_long = not shows_all and len(rounds) > FIRST_ROUNDS + LAST_ROUNDS + 1
    for at, each in enumerate(rounds):
        if is_long and FIRST_ROUNDS <= at < len(rounds) - LAST_ROUNDS:
            if at == FIRST_ROUNDS:
                left_out = len(rounds) - FIRST_ROUNDS - LAST_ROUNDS
                page.line((f"  … {left_out} rounds more: --all shows them", "italic dim"))
            continue
        page.line(
            f"  round {each.number + 1:<{digits}}  ",
            (f"{_sends(problem, each):<{sends}}  ", "magenta"),
            *_receives(problem, each),
        )


def _sends(problem: Problem, each: Round) -> str:
    return "  ".join(f"{_chunks(problem, send.chunks)}→{send.peer}" for send in each.sends)


def _receives(problem: Problem, each: Round) -> Iterable[tuple[str, str]]:
    for receive in each.receives:
        is_copy = receive.combine is Combine.COPY
        text = f"{'=' if is_copy else '+'}{_chunks(problem, receive.chunks)}←{receive.peer}  "
        yield text, "cyan" if is_copy else "yellow"


def _chunks(problem: Problem, chunks: Ranges) -> str:
    return labels.columns(chunks, problem.chunks)
