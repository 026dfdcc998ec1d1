"""Folders and files that all hosts must see alike, and room for checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator

from doubletime.cluster.doctor.facts import NFS, HostFacts, Survey
from doubletime.cluster.doctor.finding import Finding, Severity
from doubletime.units import format_nbytes, format_seconds

_LITTLE_NBYTES = 2 << 30
_LITTLE_FILES = 1000
_LATE_S = 0.5
_NFS_LONGEST_S = 60  # nfs(5): acdirmax and acregmax, where the mount says nothing
_FULL = re.compile(r"No space left|[Qq]uota exceeded")


def folder(survey: Survey) -> Iterator[Finding]:
    """Hosts that do not see the folder from which the job is started, or see another one."""
    path = survey.folder
    for facts in survey.hosts:
        if facts.host == survey.local:
            continue
        if not facts.record["folder"]["exists"]:
            yield Finding(
                "folder-missing",
                f"the folder {path} is not on {facts.host}",
                facts.host,
                "ranks are started in the same folder on every host",
                _mount(survey, facts),
            )
        elif facts.is_file_seen is False and not _has_script_trouble(survey, facts):
            yield Finding(
                "folder-not-shared",
                f"{path} on {facts.host} is another folder than here: what is written on one host "
                "is not seen on the other",
                facts.host,
                "a script that is changed here runs unchanged there, and checkpoints are spread "
                "over hosts",
                _mount(survey, facts),
                Severity.WARNING,
            )
        elif facts.seen_after_s is not None and facts.seen_after_s > _LATE_S:
            yield Finding(
                "folder-late",
                f"a file written into {path} was seen on {facts.host} after "
                f"{format_seconds(facts.seen_after_s)}",
                facts.host,
                "a rank that looks for another's file at once does not find it",
                f"on {facts.host}: mount with lookupcache=none or actimeo=1, or wait for files "
                "after a barrier",
                Severity.WARNING,
            )


def script(survey: Survey) -> Iterator[Finding]:
    """Hosts without the script, or with another file in its place."""
    here = survey.here.record.get("script")
    if survey.script is None or here is None:
        return
    if "error" in here:
        yield Finding(
            "script-missing",
            f"{survey.script} cannot be read here: {here['error']}",
            survey.here.host,
            "there is nothing to start",
            "name a script that exists",
        )
        return
    for facts in survey.hosts:
        there = facts.record["script"]
        copy = f"rsync -a {survey.script} {facts.host}:{survey.script}"
        if "error" in there:
            if facts.record["folder"]["exists"]:
                yield Finding(
                    "script-missing",
                    f"{survey.script} cannot be read on {facts.host}: {there['error']}",
                    facts.host,
                    "its ranks end before they begin",
                    f"{copy}   (or a shared folder: docs/clusters.md)",
                )
        elif there["sha256"] != here["sha256"]:
            yield Finding(
                "script-differs",
                f"{survey.script} is another file on {facts.host} than here "
                f"(sha256 {there['sha256'][:8]}…, here {here['sha256'][:8]}…)",
                facts.host,
                "ranks that run different programs hang in their first collective, or worse, do not",
                f"{copy}   (or a shared folder: docs/clusters.md)",
            )


def nfs(survey: Survey) -> Iterator[Finding]:
    """How long the shared folder may show what is old."""
    for facts in survey.hosts:
        found = facts.record["folder"]
        if found.get("type") not in NFS:
            continue
        longest_s = attribute_delay_s(found["options"])
        if longest_s > 0:
            yield Finding(
                "nfs-delay",
                f"{survey.folder} on {facts.host} is NFS ({found['source']}), which may show "
                f"another host's change up to {longest_s} s late",
                facts.host,
                "a rank that looks for a file, or its length, without waiting may see old ones; "
                "doubletime's checkpoints wait",
                f"sudo mount -o remount,actimeo=1 {found['mount']}   (on {facts.host}; costs "
                "requests), or leave it",
                Severity.NOTE,
            )


def disk(survey: Survey) -> Iterator[Finding]:
    """Hosts that cannot write checkpoints, or not many more."""
    seen: set[tuple[str, str]] = set()
    for facts in survey.everywhere:
        found = facts.record["checkpoints"]
        if not found["exists"]:
            if str(survey.checkpoints) != str(survey.folder):
                yield Finding(
                    "checkpoints-missing",
                    f"the folder for checkpoints {survey.checkpoints} is not on {facts.host}",
                    facts.host,
                    "saving fails there, and resuming finds nothing",
                    survey.at(facts.host, f"mkdir -p {survey.checkpoints}") + "   (or share it)",
                )
            continue
        where = f"{survey.checkpoints} on {facts.host}"
        free = (found["space"] or {}).get("free_nbytes", 0)
        if found["error"] is not None:
            is_full = _FULL.search(found["error"]) is not None
            yield Finding(
                "disk-full" if is_full else "checkpoints-not-writable",
                f"nothing can be written to {where}, where checkpoints go: {found['error']}",
                facts.host,
                "the job runs until its first checkpoint and ends there",
                f"on {facts.host}: du -xh {found['mount']} | sort -h | tail, and remove what is "
                "not needed"
                if is_full
                else f"on {facts.host}: sudo chown {facts.record['user']} {survey.checkpoints}; "
                f"mount | grep {found['mount']}   (ro?)",
            )
        elif free < _LITTLE_NBYTES or 0 <= found["space"]["free_files"] < _LITTLE_FILES:
            shared = (found["source"], found["mount"])
            if found["type"] in NFS and shared in seen:
                continue  # the same disk, told once
            seen.add(shared)
            yield Finding(
                "disk-nearly-full",
                f"{format_nbytes(free)} are left in {where}, where checkpoints go",
                facts.host,
                "a checkpoint holds the model and two or three times as much of the optimizer's",
                f"on {facts.host}: du -xh {found['mount']} | sort -h | tail, or --checkpoints DIR",
                Severity.WARNING,
            )


def attribute_delay_s(options: str) -> int:
    """How long, in seconds, an NFS mount with these options may show old attributes; see nfs(5)."""
    words = dict(each.partition("=")[::2] for each in options.split(","))
    if "noac" in words:
        return 0
    if words.get("actimeo", "").isdigit():
        return int(words["actimeo"])
    longest = [words.get(name, "") for name in ("acregmax", "acdirmax")]
    return max(int(each) if each.isdigit() else _NFS_LONGEST_S for each in longest)


def _has_script_trouble(survey: Survey, facts: HostFacts) -> bool:
    """Whether a missing or different script tells of it already."""
    here, there = survey.here.record.get("script"), facts.record.get("script")
    return bool(here and there and here.get("sha256") != there.get("sha256"))


def _mount(survey: Survey, facts: HostFacts) -> str:
    here = survey.here.record["folder"]
    if here.get("type") in NFS:
        command = f"sudo mount -t {here['type']} {here['source']} {here['mount']}"
        return survey.at(facts.host, command) + "   (and into its /etc/fstab)"
    name = survey.local or survey.here.record["hostname"]
    path = survey.folder
    mount = survey.at(facts.host, f"sudo mkdir -p {path} && sudo mount -t nfs {name}:{path} {path}")
    return (
        f"here: echo '{path} *(rw,no_subtree_check)' | sudo tee -a /etc/exports && "
        f"sudo exportfs -ra; then: {mount}"
    )
