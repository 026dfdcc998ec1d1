"""Sets of chunks as ranges of chunk indices: count, split, join, and where chunks lie in a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

# Half-open ranges (first, end), ascending, apart and none empty: ((0, 2), (5, 6)) is {0, 1, 5}.
Ranges = tuple[tuple[int, int], ...]


def offset(length: int, parts: int, index: int) -> int:
    """Where part `index` begins when `length` is cut as `torch.tensor_split` does.

    The first `length % parts` parts are longer by one; part `parts` begins at `length`.
    """
    each, longer = divmod(length, parts)
    return index * each + min(index, longer)


def count(ranges: Ranges) -> int:
    """How many chunks the set holds."""
    return sum(end - first for first, end in ranges)


def members(ranges: Ranges) -> Iterator[int]:
    """Each chunk of the set, ascending."""
    for first, end in ranges:
        yield from range(first, end)


def join(sets: Iterable[Ranges]) -> Ranges:
    """The union of sets that share no chunk; neighbouring ranges become one."""
    joined: list[tuple[int, int]] = []
    for first, end in sorted(part for ranges in sets for part in ranges):
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((first, end))
    return tuple(joined)


def split(ranges: Ranges, parts: int) -> tuple[Ranges, ...]:
    """Cut a set into `parts` sets as `torch.tensor_split` does; the last may be empty."""
    total = count(ranges)
    if len(ranges) == 1:
        start = ranges[0][0]
        bounds = [start + offset(total, parts, index) for index in range(parts + 1)]
        return tuple(
            ((bounds[index], bounds[index + 1]),) if bounds[index] < bounds[index + 1] else ()
            for index in range(parts)
        )
    return tuple(
        _window(ranges, offset(total, parts, index), offset(total, parts, index + 1))
        for index in range(parts)
    )


def overlap(one: Ranges, other: Ranges) -> int | None:
    """A chunk that both sets hold, or None."""
    left = right = 0
    while left < len(one) and right < len(other):
        first = max(one[left][0], other[right][0])
        if first < min(one[left][1], other[right][1]):
            return first
        if one[left][1] <= other[right][1]:
            left += 1
        else:
            right += 1
    return None


def _window(ranges: Ranges, start: int, stop: int) -> Ranges:
    """The set's members number `start` to `stop`, counted from its lowest."""
    found = []
    passed = 0
    for first, end in ranges:
        begin, finish = max(first, first + start - passed), min(end, first + stop - passed)
        if begin < finish:
            found.append((begin, finish))
        passed += end - first
    return tuple(found)
