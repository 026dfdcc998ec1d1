"""Whether a job across hosts may begin: what each host sees of its program, compared before a line of it runs."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from doubletime import environment

FOLDER_VARIABLE = "DOUBLETIME_FOLDER"  # in which ranks on all hosts are to start
# How long hosts are waited for that have not come, after the last one that has: launchers have
# limits of their own. Where the job fails anyway, only so that one error names all hosts.
_OTHERS_S = 60.0
_OTHERS_IN_TROUBLE_S = 3.0
_SHARED_FOLDER = "start the job from a folder that all hosts share, under the same path"
_SHARED = "put it into a folder that all hosts share (doubletime doctor --script tells)"


class Sight(NamedTuple):
    """What a host sees of a job's program.

    Attributes:
        what: how it is named: "script train.py", "program ./train", "module train".
        folder: in which it was looked for.
        is_there: whether it was found.
        content: of a script, its length in bytes and a checksum; else None.
        lacks_folder: whether this is not the folder in which the job was to start.
        machine: what no other machine or container is, whatever it is called; empty where not known.
    """

    what: str
    folder: str
    is_there: bool
    content: tuple[int, int] | None = None
    lacks_folder: bool = False
    machine: str = ""


def look(program: Sequence[str]) -> Sight:
    """Look for `script.py`, `-m module` or `-- executable` from this folder, as the rank will."""
    processes = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    return _look(program)._replace(machine=f"{environment.machine().identity} {processes}")


def _look(program: Sequence[str]) -> Sight:
    # Without pathlib: each rank pays for what it loads.
    folder, wanted = os.getcwd(), os.environ.get(FOLDER_VARIABLE)  # noqa: PTH109
    try:
        if wanted and not os.path.samefile(wanted, folder):  # noqa: PTH121
            return Sight("folder", wanted, is_there=False, lacks_folder=True)
    except OSError:
        return Sight("folder", wanted or folder, is_there=False, lacks_folder=True)
    kind, *rest = program
    if kind == "-m":
        return Sight(f"module {rest[0]}", folder, _is_module(rest[0].partition(".")[0]))
    if kind == "--":
        from shutil import which

        return Sight(f"program {rest[0]}", folder, which(rest[0]) is not None)
    try:
        with open(kind, "rb") as file:  # noqa: PTH123
            text = file.read()
    except OSError:
        return Sight(f"script {kind}", folder, is_there=False)
    return Sight(f"script {kind}", folder, is_there=True, content=(len(text), zlib.crc32(text)))


def _is_module(name: str) -> bool:
    """Whether there is one of this name; what lies within a package would have to run the package."""
    from importlib.util import find_spec

    if name == "__main__":  # is found in whatever looks for it, and is not that in the rank
        return False
    try:
        return find_spec(name) is not None
    except ValueError:  # no name, or one that is not a module's
        return False


def trouble(seen: Mapping[str, Sight], own: Sight) -> str | None:
    """Why a job must not begin, with a remedy; None where it may. Pure.

    Args:
        seen: what each host sees, by its name.
        own: what the launcher sees.
    """
    told = []
    elsewhere = [host for host, sight in seen.items() if sight.lacks_folder]
    if elsewhere:
        told.append(no_folder(elsewhere, seen[elsewhere[0]].folder))
    machines: dict[str, list[str]] = {}
    for host, sight in sorted(seen.items()):
        machines.setdefault(sight.machine, []).append(host)
    told += [
        f"{_hosts(names)} are one machine: ranks on both would take its cores and GPUs twice\n"
        f"  remedy: name it once, with all its slots: {names[0]}:{len(names)}, say\n"
        for machine, names in machines.items()
        if machine and len(names) > 1
    ]
    lacking = [host for host, sight in seen.items() if not (sight.is_there or sight.lacks_folder)]
    if lacking:
        sight = seen[lacking[0]]
        remedy = _SHARED if sight.what.startswith("script ") else "install it there"
        told.append(
            f"there is no {sight.what} on {_hosts(lacking)} (looked in {sight.folder})\n"
            f"  remedy: {remedy}\n"
        )
    contents = {host: sight.content for host, sight in seen.items() if sight.content is not None}
    wanted, whose = own.content, "here"
    if wanted is None and contents:
        wanted, _ = Counter(contents.values()).most_common(1)[0]
        whose = f"on host {next(host for host in contents if contents[host] == wanted)}"
    others = [host for host, content in contents.items() if content != wanted]
    if others:
        sight = seen[others[0]]
        told.append(
            f"{sight.what} on {_hosts(others)} is another file than {whose} "
            f"(looked in {sight.folder})\n"
            f"  remedy: {_SHARED}; a shared folder may show a change some seconds late\n"
        )
    return "".join(told) or None


def no_folder(hosts: Sequence[str], folder: str) -> str:
    """That some hosts do not have the folder in which the job was to start, and what to do."""
    return f"there is no folder {folder} on {_hosts(hosts)}\n  remedy: {_SHARED_FOLDER}\n"


class Roll:
    """The watches that have come, of those that are to come.

    Args:
        hosts: the host of each rank.
        own: what the launcher sees of the program.
    """

    def __init__(self, hosts: Sequence[str], own: Sight) -> None:
        self._hosts = tuple(hosts)
        self._own = own
        self._seen: dict[str, Sight] = {}
        self._here: set[int] = set()
        self._came_s = 0.0

    def enter(self, rank: int, seen: Mapping[str, Any], now: float) -> None:
        """A watch has come, and tells what it sees.

        Raises:
            TypeError, ValueError: if that is not what a watch tells.
        """
        sight = Sight(**seen)
        if sight.content is not None:
            length, checksum = sight.content  # a list, in JSON
            sight = sight._replace(content=(length, checksum))
        if not 0 <= rank < len(self._hosts):
            raise ValueError(f"no rank {rank}")
        self._seen.setdefault(self._hosts[rank], sight)
        self._here.add(rank)
        self._came_s = now

    @property
    def missing(self) -> tuple[str, ...]:
        """The hosts of ranks that have not come."""
        late = (host for rank, host in enumerate(self._hosts) if rank not in self._here)
        return tuple(dict.fromkeys(late))

    def may_begin(self) -> bool:
        """Whether all have come, and see the same."""
        return len(self._here) == len(self._hosts) and trouble(self._seen, self._own) is None

    def refusal(self, now: float) -> str | None:
        """Why the job is not to begin; None while it may yet."""
        if not self._here:
            return None  # the launcher's own affair so far
        found = trouble(self._seen, self._own)
        missing = [rank for rank in range(len(self._hosts)) if rank not in self._here]
        waited_s = now - self._came_s
        if found is not None:
            return found if not missing or waited_s > _OTHERS_IN_TROUBLE_S else None
        if not missing or waited_s < _OTHERS_S:
            return None
        late = _hosts(self.missing)
        ranks = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        return (
            f"{ranks} on {late} did not start within {waited_s:.0f} s of the others\n"
            "  remedy: doubletime doctor --hosts with these hosts finds what keeps them\n"
        )


def _hosts(names: Iterable[str]) -> str:
    """The hosts, in words."""
    listed = list(names)
    return f"host{'s' if len(listed) > 1 else ''} {', '.join(listed)}"
