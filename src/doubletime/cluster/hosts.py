"""Hosts and their slots, as people write them: on a command line and in hostfiles."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from doubletime.errors import LaunchError

EXPECTED = (
    "a host a line: `node1`, `node1:2`, `node1 slots=2` or `node[01-16]:2`; # begins a comment"
)
_LARGEST = 65536  # hosts; a range that names more is a slip
_MOST_SLOTS = 4096  # no machine has more cores
_MOST_NBYTES = 4 << 20  # of a hostfile; what is longer is another file
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_RANGES = re.compile(r"\[([^\[\]]*)\]")
_NUMBERS = re.compile(r"(\d+)(?:-(\d+))?")
# Open MPI's words after a host; only the slots matter here.
_SLOTS = re.compile(r"slots\s*=\s*(\S+)")
_IGNORED = re.compile(r"max[_-]slots\s*=\s*\d+")


@dataclass(frozen=True)
class Host:
    """One machine.

    Attributes:
        name: by which the others reach it: a host name or an address.
        slots: how many ranks it takes; None where that is not said.
    """

    name: str
    slots: int | None = None

    def __str__(self) -> str:
        return self.name if self.slots is None else f"{self.name}:{self.slots}"


def parse(text: str) -> tuple[Host, ...]:
    """Read a list such as `node1:2,node[03-16,20]:4`, in its order.

    Raises:
        LaunchError: if an entry is none, or a host is listed twice.
    """
    try:
        found = [host for entry in _split(text) for host in _entry(entry)]
    except ValueError as error:
        raise LaunchError(f"hosts {text!r}: {error}", "--hosts node1:2,node[02-16]:2") from error
    _refuse_repeated(found)
    return tuple(found)


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Read a hostfile in the dialect of Open MPI (`host slots=2`) or of MPICH and Intel (`host:2`).

    Raises:
        LaunchError: if it cannot be read, names no host, names one twice or holds a line that is
            none: with file, line number and what is expected.
    """
    try:
        with path.open("rb") as file:
            whole = file.read(_MOST_NBYTES + 1)
    except OSError as error:
        raise LaunchError(
            f"hostfile {path} cannot be read: {error.strerror}",
            "--hostfile FILE, or --hosts a:2,b:2",
        ) from error
    if len(whole) > _MOST_NBYTES:
        raise LaunchError(f"hostfile {path} is larger than 4 MiB", EXPECTED)
    try:
        lines = whole.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise LaunchError(f"hostfile {path} is no text", EXPECTED) from error
    found: list[Host] = []
    at: list[str] = []
    for number, line in enumerate(lines, 1):
        try:
            here = _line(line.partition("#")[0].strip())
        except ValueError as error:
            raise LaunchError(
                f"{path}, line {number}: {line.strip()!r}: {error}", f"write {EXPECTED}"
            ) from error
        found += here
        at += [f"{path}, line {number}"] * len(here)
    if not found:
        raise LaunchError(f"hostfile {path} names no host", f"write {EXPECTED}")
    _refuse_repeated(found, at)
    return tuple(found)


def expand(text: str) -> tuple[str, ...]:
    """The names behind a list with ranges, such as Slurm's `rack[1-2]n[001-016,20],login`.

    Raises:
        ValueError: if it is none; says why.
    """
    return tuple(name for entry in _split(text) for name in _expand(entry))


def _line(text: str) -> list[Host]:
    if not text:
        return []
    name, *rest = text.split(None, 1)
    if not rest:
        return _entry(name)
    words = _IGNORED.sub("", rest[0])
    slots = _SLOTS.fullmatch(words.strip())
    if slots is None and words.strip():
        raise ValueError(f"{words.strip()!r} says nothing that is known after a host")
    if slots is None:
        return _entry(name)
    if ":" in name:
        raise ValueError("its slots are said twice")
    return _entry(f"{name}:{slots[1]}")


def _entry(text: str) -> list[Host]:
    if "@" in text:
        raise ValueError("the user's name belongs into ~/.ssh/config (Host …, User …)")
    if "::" in text or text.count(":") > 3:
        raise ValueError("an IPv6 address is none; give it a name, in /etc/hosts say")
    name, colon, slots = text.partition(":")
    if colon and not (slots.isascii() and slots.isdigit() and int(slots) > 0):
        raise ValueError(f"{slots!r} is no number of slots (1, 2, …)")
    if colon and int(slots) > _MOST_SLOTS:
        raise ValueError(f"no host has {slots} slots; {_MOST_SLOTS} are the most")
    return [Host(each, int(slots) if colon else None) for each in _expand(name)]


def _split(text: str) -> Iterator[str]:
    """The entries between commas, but for commas within brackets."""
    start = depth = 0
    for position, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield text[start:position].strip()
            start = position + 1
    yield text[start:].strip()


def _expand(text: str) -> list[str]:
    """One entry's names: `node[01-03]` is node01, node02, node03."""
    pieces = _RANGES.split(text)  # what stands between brackets at odd positions
    if "[" in "".join(pieces[::2]) or "]" in "".join(pieces[::2]):
        raise ValueError("its brackets do not match")
    choices = [
        [piece] if index % 2 == 0 else list(_numbers(piece)) for index, piece in enumerate(pieces)
    ]
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > _LARGEST:
        raise ValueError(f"it names {total} hosts; {_LARGEST} are the most")
    names = ["".join(parts) for parts in itertools.product(*choices)]
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no host name" if name else "a name is missing")
    return names


def _numbers(text: str) -> Iterable[str]:
    """The numbers in brackets, as wide as their first: `08-10,12` is 08, 09, 10, 12."""
    found: list[str] = []
    for part in text.split(","):
        match = _NUMBERS.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"[{text}] is no range such as [01-16,20]")
        first, last = match[1], match[2] or match[1]
        count = int(last) - int(first) + 1
        if count < 1:
            raise ValueError(f"the range {part.strip()} runs backwards")
        if count > _LARGEST:
            raise ValueError(f"it names {count} hosts; {_LARGEST} are the most")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def _refuse_repeated(hosts: Sequence[Host], at: Sequence[str] = ()) -> None:
    seen: dict[str, int] = {}
    for index, host in enumerate(hosts):
        first = seen.setdefault(host.name.lower(), index)  # names know no case
        if first == index:
            continue
        where = f" ({at[first]} and {at[index].rpartition(', ')[2]})" if at else ""
        slots = (hosts[first].slots or 1) + (host.slots or 1)
        raise LaunchError(
            f"host {host.name} is listed twice{where}",
            f"list it once, as {hosts[first].name}:{slots}",
        )
