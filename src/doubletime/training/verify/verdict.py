"""Both sides' records in, a verdict out: pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from doubletime.training.mesh import Mesh
from doubletime.training.verify import distance
from doubletime.training.verify.cause import Cause
from doubletime.training.verify.causes import find
from doubletime.training.verify.evidence import Evidence, listed
from doubletime.training.verify.records import KINDS, Account, Difference, Reference
from doubletime.units import plural

DOUBLE = "float64"


@dataclass(frozen=True)
class Row:
    """The largest difference of each kind in one step.

    Attributes:
        step: from 1.
        own: by kind, in the task's own precision.
        double: by kind, in float64; None where the task was not carried out in it.
    """

    step: int
    own: Mapping[str, Difference]
    double: Mapping[str, Difference] | None


@dataclass(frozen=True)
class Verdict:
    """Whether N ranks compute what one process computes.

    Attributes:
        task: its name.
        ranks: N.
        mesh: that they form.
        precision: the task's own.
        is_equal: the answer.
        distance: the largest relative difference found, in `precision`.
        double_distance: the same in float64; None where that was not tried.
        rounding: the largest difference, of one process, between `precision` and float64.
        tolerance: up to which differences are called equal, in the precision `judged_in`.
        rows: of each step that was compared.
        first: the first difference beyond the tolerance, gradients before parameters.
        causes: what explains it, or what stands against calling it equal.
        notes: what one should know about the comparison.
    """

    task: str
    ranks: int
    mesh: str
    precision: str
    is_equal: bool
    distance: float
    double_distance: float | None
    rounding: float | None
    tolerance: float
    judged_in: str
    rows: tuple[Row, ...]
    first: Difference | None
    causes: tuple[Cause, ...]
    notes: tuple[str, ...]


def judge(
    task: str,
    mesh: Mesh,
    one: Reference,
    many: Account,
    own: Sequence[Difference],
    double: Sequence[Difference] | None,
    tolerance: float | None,
) -> Verdict:
    """Find the verdict.

    Args:
        task: its name.
        mesh: that the ranks form.
        one: of one process.
        many: of the ranks, in the task's own precision.
        own: all differences, in the task's own precision.
        double: the same in float64; None where the ranks were not asked for it.
        tolerance: up to which differences in the task's own precision are equal; None for √ε of the
            highest precision that there is, see `distance`.
    """
    dtype = getattr(torch, one.precision)
    is_double = tolerance is None and double is not None
    judged = double if is_double and double is not None else own
    judged_in = DOUBLE if is_double else one.precision
    if tolerance is None:
        tolerance = distance.tolerance(torch.float64 if is_double else dtype)
    beyond = tuple(each for each in judged if not each.distance <= tolerance)
    bound = distance.averaging_bound(mesh.data_size, dtype)
    causes = find(Evidence(mesh.data_size, one, many, beyond, tolerance, bound))
    return Verdict(
        task=task,
        ranks=mesh.size,
        mesh=str(mesh),
        precision=one.precision,
        is_equal=not causes,
        distance=largest(own),
        double_distance=None if double is None else largest(double),
        rounding=max(one.rounding.values(), default=None) if one.double else None,
        tolerance=tolerance,
        judged_in=judged_in,
        rows=rows_of(own, double),
        first=first_of(beyond),
        causes=causes,
        notes=tuple(_notes(mesh, one, many, own, double, is_double=is_double)),
    )


def largest(differences: Sequence[Difference]) -> float:
    """The largest distance; 0 of none."""
    return max((each.distance for each in differences), default=0.0)


def first_of(beyond: Sequence[Difference]) -> Difference | None:
    """The largest of the first step, of gradients where there are some, then of what follows from them."""
    if not beyond:
        return None
    step = min(each.step for each in beyond)
    here = [each for each in beyond if each.step == step]
    kind = min((each.kind for each in here), key=KINDS.index)
    return max((each for each in here if each.kind == kind), key=lambda each: each.distance)


def rows_of(own: Sequence[Difference], double: Sequence[Difference] | None) -> tuple[Row, ...]:
    """The largest difference of each kind, step by step."""
    return tuple(
        Row(step, _by_kind(own, step), None if double is None else _by_kind(double, step))
        for step in sorted({each.step for each in own})
    )


def _by_kind(differences: Sequence[Difference], step: int) -> dict[str, Difference]:
    largest: dict[str, Difference] = {}
    for each in differences:
        if each.step == step and (
            each.kind not in largest or each.distance > largest[each.kind].distance
        ):
            largest[each.kind] = each
    return largest


def _notes(
    mesh: Mesh,
    one: Reference,
    many: Account,
    own: Sequence[Difference],
    double: Sequence[Difference] | None,
    *,
    is_double: bool,
) -> list[str]:
    notes = []
    if not mesh.is_data_parallel and mesh.data_size < mesh.size:
        notes.append(
            f"{plural(mesh.size // mesh.data_size, 'rank')} of mesh {mesh} work on the same samples each time: "
            "of what concerns samples and the loss, ranks are numbered by their shares"
        )
    drawn = sorted({name for step in many.before for each in step for name in each.replaced})
    if drawn:
        notes.append(
            f"the loss draws random numbers ({listed(drawn)}), other ones on each rank, as it must be; "
            "compared with each draw replaced by its mean (a dropout keeps every unit)"
        )
    if one.still and not one.dead_steps:
        notes.append(
            f"nothing is shown about {listed(one.still)}: zero gradients in all of these steps"
        )
    if one.why_not_double is not None:
        notes.append(
            f"judged in {one.precision}, as the task cannot be carried out in float64: {one.why_not_double}"
        )
    amplified = [
        each
        for each in own
        if not each.distance <= distance.tolerance(getattr(torch, one.precision))
    ]
    if is_double and double is not None and amplified:
        first = first_of(amplified)
        if first is not None and not any(
            not each.distance <= distance.tolerance(torch.float64) for each in double
        ):
            notes.append(
                f"from step {first.step} on, {one.precision} differs by up to {largest(own):.0e}: rounding, "
                "which a unit that is about to turn on or off makes large; float64 does not differ"
            )
    if 0 < len(many.after) < len(one.account.after):
        notes.append(f"ranks went no further than {plural(len(many.after), 'step')}")
    if math.isinf(largest(own)):
        notes.append("inf: a tensor that is missing, has another shape, or holds nan or infinity")
    return notes
