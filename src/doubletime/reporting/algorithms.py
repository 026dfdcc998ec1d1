"""The list of reduction algorithms: what each costs, what it defines, and who published it."""

from __future__ import annotations

from collections.abc import Iterable

from doubletime.collectives.algorithm import Algorithm
from doubletime.reporting.schedule_view import Page


def show_algorithms(page: Page, algorithms: Iterable[Algorithm]) -> None:
    """Show what there is to choose from.

    Args:
        page: where.
        algorithms: what to list.
    """
    page.line(f"{'all_reduce by':<22}{'rounds':<22}bytes that a rank sends")
    for each in algorithms:
        page.line()
        page.line(
            (f"{each.name:<22}", "bold"),
            (f"{each.rounds_formula:<22}", "green"),
            (each.nbytes_formula, "green"),
        )
        page.prose(", ".join(each.collectives), indent=2)
        page.prose((each.source, "dim"), indent=2)
    page.line()
    page.prose("p ranks, n bytes, S segments; (+…) where p is no power of two.")
    page.prose(
        "two_level:INSIDE+BETWEEN joins any two of the others, such as two_level:linear+ring."
    )
