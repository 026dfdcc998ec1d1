"""Short names for what a schedule moves: parts of the message as letters, sets of ranks as digits."""

from __future__ import annotations

from collections.abc import Iterable

from doubletime.collectives.chunks import Ranges

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# Up to so many ranks a set is shown with a place for each: `01·3`.
PLACES = 10


def column(index: int, count: int) -> str:
    """The name of one of `count` columns: a letter, or its number where letters do not suffice."""
    return _LETTERS[index] if count <= len(_LETTERS) else f"#{index}"


def columns(ranges: Ranges, count: int) -> str:
    """The name of some columns: `A`, `B-D`, `A,C`; numbers after one `#`: `#3-7,9`."""
    if count <= len(_LETTERS):
        return _spans(((_LETTERS[first], _LETTERS[end - 1]) for first, end in ranges), ranges)
    return "#" + _spans(((str(first), str(end - 1)) for first, end in ranges), ranges)


def ranks(mask: int, count: int, *, gap: str = "·", width: int = 9) -> str:
    """Whose contributions a value holds.

    Args:
        mask: bit r is rank r.
        count: how many ranks there are.
        gap: stands for a rank whose contribution is not there.
        width: the longest text for more than `PLACES` ranks.

    Returns:
        A place for each rank, `01·3`, up to `PLACES` ranks; else ranges, `0-7,12`, and where these
        do not fit how many there are, `12 of 64`.
    """
    if count <= PLACES:
        return "".join(str(rank) if mask >> rank & 1 else gap for rank in range(count))
    if not mask:
        return gap
    found: list[tuple[int, int]] = []
    for rank in range(count):
        if mask >> rank & 1:
            if found and found[-1][1] == rank:
                found[-1] = (found[-1][0], rank + 1)
            else:
                found.append((rank, rank + 1))
    text = _spans(((str(first), str(end - 1)) for first, end in found), found)
    return text if len(text) <= width else f"{mask.bit_count()} of {count}"


def _spans(names: Iterable[tuple[str, str]], ranges: Iterable[tuple[int, int]]) -> str:
    parts = []
    for (first, last), (begin, end) in zip(names, ranges, strict=True):
        size = end - begin
        parts.append(first if size == 1 else f"{first}{',' if size == 2 else '-'}{last}")
    return ",".join(parts)
