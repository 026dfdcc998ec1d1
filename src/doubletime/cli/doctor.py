"""`doubletime doctor`: is this cluster fit to train on, and if not, what is to be mended."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doubletime.errors import LaunchError

if TYPE_CHECKING:
    from rich.console import Console

    from doubletime.cluster.doctor.diagnosis import Diagnosis
    from doubletime.cluster.doctor.question import Question


def doctor(
    hosts: Annotated[
        str | None,
        typer.Option(help="Hosts and their slots: node1:2,node[02-16]:2.  [default: this machine]"),
    ] = None,
    hostfile: Annotated[
        Path | None, typer.Option(help="A file of hosts, as mpiexec of any MPI takes it.")
    ] = None,
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
    ssh_command: Annotated[
        str | None, typer.Option(help="A command that takes ssh's options.  [default: ssh]")
    ] = None,
    ssh_config: Annotated[
        Path | None, typer.Option(help="A file to use instead of ~/.ssh/config.")
    ] = None,
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

    Each finding says what is wrong, on which host, why it matters for training, and the command that
    mends it. The exit code is 1 where something stands in the way of a job.
    """
    from rich.console import Console

    from doubletime.cluster.doctor import fixes

    # Not `reporting.console`, which knows training and with it torch: here that may be missing.
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    question = _question(
        hosts, hostfile, script, checkpoints, bandwidth, ssh_command, ssh_config, timeout
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


def _question(
    hosts: str | None,
    hostfile: Path | None,
    script: Path | None,
    checkpoints: Path | None,
    bandwidth: bool,
    ssh_command: str | None,
    ssh_config: Path | None,
    timeout: float,
) -> Question:
    from doubletime.cluster import hosts as hosts_
    from doubletime.cluster.doctor.question import Question
    from doubletime.cluster.ssh import Ssh

    if hosts is not None and hostfile is not None:
        raise LaunchError("--hosts and --hostfile both name the hosts", "leave one of them out")
    if ssh_config is not None and not ssh_config.is_file():
        raise LaunchError(f"there is no file {ssh_config}", "--ssh-config ~/.ssh/config")
    wanted: tuple[hosts_.Host, ...] = ()
    if hosts is not None:
        wanted = hosts_.parse(hosts)
    elif hostfile is not None:
        wanted = hosts_.read_hostfile(hostfile)
    command = tuple(shlex.split(ssh_command or "ssh"))
    if not command:
        raise LaunchError("--ssh-command is empty", "--ssh-command ssh")
    # What a whole number of seconds cannot say, the visit's own timeout does.
    connect_s = max(1, int(timeout))
    ssh = Ssh(command, None if ssh_config is None else ssh_config.absolute(), connect_s)
    return Question(
        hosts=wanted,
        # As the shell names it: on other hosts a link may lead elsewhere.
        folder=Path.cwd() if script is None else script.absolute().parent,
        checkpoints=Path.cwd() if checkpoints is None else checkpoints.absolute(),
        script=None if script is None else script.absolute(),
        ssh=ssh,
        timeout_s=timeout,
        has_bandwidth=bandwidth,
    )


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
    from doubletime.cluster.doctor import record
    from doubletime.collectives.knowledge import profile_path

    file = record.path_beside(profile_path().absolute())
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.partial")
        partial.write_text(record.of(found).text(), encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        typer.echo(f"note: {file} could not be written: {error.strerror}; --no-save", err=True)
        return
    if not is_quiet:
        console.print(f"hosts written to {file}", style="dim", markup=False)
