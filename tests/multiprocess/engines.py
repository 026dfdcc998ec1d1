"""Every comparison of an engine over several ranks with a single process, by name."""

from __future__ import annotations

from collections.abc import Callable

from multiprocess import data_parallel, hooks, one_copy, pipeline, sharded, stages, surroundings

ENGINES: dict[str, Callable[[int, int], None]] = {
    f"{module.__name__.rpartition('.')[2]}.{check.__name__}": check
    for module in (data_parallel, one_copy, sharded, pipeline, stages, surroundings, hooks)
    for check in module.CHECKS
}
