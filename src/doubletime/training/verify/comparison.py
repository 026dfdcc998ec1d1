"""A step compared with the reference's: pure."""

from __future__ import annotations

from doubletime.training.verify.distance import distances, number_distance
from doubletime.training.verify.records import (
    BUFFERS,
    GRADIENTS,
    LOSS,
    PARAMETERS,
    Difference,
    Step,
)


def compare(number: int, found: Step, reference: Step) -> tuple[Difference, ...]:
    """Each tensor's distance, the loss's too.

    Args:
        number: of the step, from 1.
        found: the step.
        reference: the same of the reference.
    """
    result = [
        Difference(number, kind, name, distance)
        for kind, one, other in (
            (GRADIENTS, found.gradients, reference.gradients),
            (PARAMETERS, found.parameters, reference.parameters),
            (BUFFERS, found.buffers, reference.buffers),
        )
        for name, distance in distances(one, other).items()
    ]
    return (*result, Difference(number, LOSS, "", number_distance(found.loss, reference.loss)))
