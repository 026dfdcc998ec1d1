"""Sizes, times, rates and counts as people write and read them."""

from __future__ import annotations

import re

from doubletime.errors import UnitError

_BINARY = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)


def parse_nbytes(text: str) -> int:
    """Read a message size such as `64`, `4K`, `1.5MiB` (powers of 1,024).

    Returns:
        The size in bytes.

    Raises:
        UnitError: if the text is not a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UnitError(f"{text!r} is not a size", "write 64, 4K, 16M or 1G (bytes, by 1024)")
    return int(float(match[1]) * _BINARY[match[2].upper()])


def parse_sizes(text: str) -> list[int]:
    """Read sizes in bytes: a list `4,64K,1M`, or a range of powers of two `1K:64M`.

    Raises:
        UnitError: if a part is not a size, or a range runs backwards.
    """
    sizes: list[int] = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        start = parse_nbytes(first)
        stop = parse_nbytes(last) if colon else start
        if start < 1:
            raise UnitError(f"{part!r}: a message of no bytes", "begin at 4: 4:64M, or 4,64K")
        if stop < start:
            raise UnitError(f"{part!r} is not a range of sizes", "write 1K:64M, smallest first")
        while start <= stop:
            sizes.append(start)
            start *= 2
    return sizes


def format_nbytes(nbytes: float) -> str:
    """Show a size in bytes with a binary prefix: `16 MiB`."""
    for prefix in ("", "Ki", "Mi", "Gi"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.4g} {prefix}B"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"


def format_seconds(time_s: float) -> str:
    """Show a time in seconds with the prefix that fits: `3.2 ms`, `2 min 5 s`."""
    # 999.5 and more would round to 1e+03: it goes to the next unit.
    if time_s < 999.5e-6:
        return f"{time_s * 1e6:.3g} µs"
    if time_s < 999.5e-3:
        return f"{time_s * 1e3:.3g} ms"
    if time_s < 100:
        return f"{time_s:.3g} s"
    minutes, seconds = divmod(round(time_s), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"


def format_rate(bytes_per_s: float) -> str:
    """Show a bandwidth in bytes per second, decimal as NCCL does: `1.2 GB/s`."""
    for scale, unit in ((1, "B/s"), (1e3, "kB/s"), (1e6, "MB/s")):
        if bytes_per_s < 999.5 * scale:
            return f"{bytes_per_s / scale:.3g} {unit}"
    digits = ".0f" if bytes_per_s >= 1e11 else ".3g"
    return f"{bytes_per_s / 1e9:{digits}} GB/s"


def plural(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
