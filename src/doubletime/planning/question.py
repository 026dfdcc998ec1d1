"""What a benchmark is asked: which message sizes and algorithms, and against whom."""

from __future__ import annotations

from doubletime.collectives.catalogue import ALGORITHMS, AUTO, find
from doubletime.errors import LaunchError, UnitError
from doubletime.units import parse_sizes

MPI, GLOO, RAW = "mpi", "gloo", "raw"
RIVALS = (GLOO, RAW)
ALL = "all"


def parse_rivals(text: str) -> tuple[str, ...]:
    """Read whom to compare the mpi backend with: `gloo,raw`, `raw`, or nothing for nobody.

    Raises:
        LaunchError: if a name is not one of `RIVALS`.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in RIVALS:
            raise LaunchError(
                f"nothing called {name!r} can carry out a collective here",
                f"choose among {', '.join(RIVALS)}: --against {','.join(RIVALS)}",
            )
    return tuple(dict.fromkeys(names))


def parse_algorithms(text: str) -> tuple[str, ...]:
    """Read which reduction algorithms to time besides the backend's own: names, `auto`, `all`, or nothing.

    Raises:
        ScheduleError: if there is none of a name.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == [ALL]:
        return tuple(ALGORITHMS)
    for name in names:
        if name != AUTO:
            find(name)
    return tuple(dict.fromkeys(names))


def parse_float32_sizes(text: str) -> list[int]:
    """Read message sizes in bytes, as `units.parse_sizes` does, for tensors of float32.

    Raises:
        UnitError: if one is not a size, or not a multiple of 4 bytes.
    """
    sizes = parse_sizes(text)
    for nbytes in sizes:
        if nbytes % 4:
            raise UnitError(
                f"a message of {nbytes} bytes does not hold whole float32 values",
                "give sizes that are multiples of 4, such as 4:64M",
            )
    return sizes
