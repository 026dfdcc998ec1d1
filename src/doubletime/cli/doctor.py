"""`doubletime doctor`: is this cluster fit to train on, and if not, what is to be mended."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doubletime.cli.where import (
    HostfileOption,
    HostsOption,
    SshCommandOption,
    SshConfigOption,
    where,
)
from doubletime.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console

    from doubletime.cluster.doctor.diagnosis import Diagnosis
    from doubletime.cluster.doctor.question import Question


def doctor(
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    script: Annotated[
        Path | None, typer.Option(help="What is to be run: the same file on every host?")
    ] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="Where checkpoints go.  [default: the current folder]")
    ] = None,
    bandwidth: Annotated[
        bool, typer.Option(help="Measure what the link between every two hosts carries.")
    ] = True,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Mend what is safe: host keys that your ssh does not know yet."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all findings and facts as JSON.")
    ] = False,
    ssh_config: SshConfigOption = None,
    ssh_command: SshCommandOption = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for each login.")] = 10.0,
    save: Annotated[
        bool,
        typer.Option(
            help="Keep what was found of the hosts beside the cluster's profile "
            "(~/.config/doubletime/profile.hosts.toml)."
        ),
    ] = True,
) -> None:
    """Check this machine, or all hosts and every pair of them, at once, and tell what to mend.

    Hosts are those that are named, else those that Slurm has allotted, else this machine alone.
    Each finding says what is wrong, on which host, why it matters for training, and the command that
    mends it. The exit code is 1 where something stands in the way of a job.
    """
    from rich.console import Console

    from doubletime.cluster import allocation
    from doubletime.cluster.doctor import fixes
    from doubletime.cluster.doctor.question import Question
    from doubletime.cluster.ssh import Ssh

    # Not `reporting.console`, which knows training and with it torch: here that may be missing.
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    asked = where(hosts, hostfile, ssh_config, ssh_command)
    # What a whole number of seconds cannot say, the visit's own timeout does.
    ssh = replace(asked.ssh or Ssh(), connect_timeout_s=max(1, int(timeout)))
    wanted = asked.hosts
    if wanted is None:
        wanted = allocation.from_slurm(os.environ) or ()
    question = Question(
        hosts=wanted,
        # Links are not followed: on other hosts they may lead elsewhere.
        folder=Path.cwd() if script is None else script.absolute().parent,
        checkpoints=Path.cwd() if checkpoints is None else checkpoints.absolute(),
        script=None if script is None else script.absolute(),
        ssh=ssh,
        timeout_s=timeout,
        has_bandwidth=bandwidth,
    )
    found = _diagnose(console, question, is_quiet=as_json)
    mended: list[str] = []
    if fix:
        mended = fixes.mend(found.findings, question.ssh)
        for line in mended:
            typer.echo(f"--fix: {line}", err=as_json)
        if mended:
            found = _diagnose(console, question, is_quiet=as_json)
        elif not as_json:
            console.print("--fix: nothing that is safe to mend by itself", markup=False)
    if as_json:
        typer.echo(json.dumps(_record(found, mended), indent=1))
    else:
        from doubletime.reporting.findings import show_diagnosis

        show_diagnosis(console, found)
    if save:
        _save(console, found, is_quiet=as_json)
    raise typer.Exit(0 if found.is_fit else 1)


def _diagnose(console: Console, question: Question, *, is_quiet: bool) -> Diagnosis:
    from doubletime.cluster.doctor.diagnosis import diagnose
    from doubletime.cluster.doctor.question import HERE, STEPS

    if is_quiet or not console.is_terminal:
        return diagnose(question)
    from doubletime.reporting.findings import VisitTable

    names = [host.name for host in question.hosts] or [HERE]
    steps = STEPS if question.has_bandwidth else STEPS[:-1]
    with VisitTable(console, names, steps if len(names) > 1 else STEPS[:2]) as table:
        return diagnose(question, table.observe)


def _record(found: Diagnosis, mended: list[str]) -> dict[str, Any]:
    survey = found.survey
    return {
        "is_fit": found.is_fit,
        "findings": [finding.record() for finding in found.findings],
        "hosts": {facts.host: dict(facts.record) for facts in survey.everywhere},
        "connections": [vars(each) for each in survey.connections],
        "rates": [vars(each) for each in survey.rates],
        "mended": mended,
        "time_s": found.time_s,
        "bandwidth_s": found.bandwidth_s,
    }


def _save(console: Console, found: Diagnosis, *, is_quiet: bool) -> None:
    """Keep what was found, and what is known of other hosts."""
    from doubletime.cluster.doctor import record
    from doubletime.collectives.places import hosts_path, profile_path

    file = hosts_path(profile_path().absolute())
    new = record.of(found)
    if file.exists():
        try:
            new = new.with_before(record.read(file))
        except DataError as error:
            typer.echo(f"note: what {file} held is replaced: {error.what}", err=True)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.partial")
        partial.write_text(new.text(), encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        typer.echo(f"note: {file} could not be written: {error.strerror}; --no-save", err=True)
        return
    if not is_quiet:
        console.print(f"hosts written to {file}", style="dim", markup=False)
