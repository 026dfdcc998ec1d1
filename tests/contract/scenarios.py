"""Every check that is more than one call of one collective, by name."""

from __future__ import annotations

from collections.abc import Callable

from contract import asynchronous, bundles, groups, point_to_point, precision, refusals

# `groups` last: its last check leaves a group behind that a rank never entered.
SCENARIOS: dict[str, Callable[[int, int], None]] = {
    f"{module.__name__.rpartition('.')[2]}.{check.__name__}": check
    for module in (point_to_point, asynchronous, bundles, precision, refusals, groups)
    for check in module.CHECKS
}
