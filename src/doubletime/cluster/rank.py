"""One rank under watch: run its program, and tell how it failed.

`python -m doubletime.cluster.rank (script.py | -m module | -- executable) args…` splits in two:
the child runs the program, the parent waits for it. Only so is a rank's end known under every
launcher. A rank that fails before MPI_Init does not end a job of MPICH's or Intel MPI's launcher;
one that calls sys.exit(3) would first wait in MPI_Finalize for ranks that wait for it; and no
launcher tells reliably which rank a signal killed first.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from doubletime import environment, failure
from doubletime.cluster import program

if TYPE_CHECKING:
    from doubletime.cluster.contact import Contact
    from doubletime.cluster.output import Output
    from doubletime.cluster.reports import Reports

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LAST_WORDS_S = 1.0
_CONTROL_VARIABLE = "DOUBLETIME_CONTROL"  # as in `cluster.channel`, which is loaded where it is set


def main(arguments: Sequence[str]) -> None:
    """Split; the child returns from here only when its program has ended well."""
    # Empty, as promised: some launchers leave ranks a pipe that never ends.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _prepare()
    contact = _contact(os.environ.pop(_CONTROL_VARIABLE, ""), arguments)
    output = None if contact is None else _output(contact)
    if contact is None:
        os.environ.pop(failure.VARIABLE, None)  # a watch above this one hears of its own rank
        reports = None
    else:
        from doubletime.cluster.reports import Reports

        reports = Reports(program.rank())
        os.environ[failure.VARIABLE] = reports.name
        _split_off(contact, reports, output)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans come to the parent
    gate = None if contact is None or contact.may_begin else os.pipe()
    child = os.fork()
    if child:
        from doubletime.cluster import watch  # the child has started without it

        os._exit(watch.watch(child, contact, reports, output, gate))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for each in (contact, reports):
        if each is not None:
            each.close()
    if gate is not None:
        _wait_at(*gate)
    if output is not None:
        output.enter()
    program.run(arguments)


def _split_off(contact: Contact, reports: Reports, output: Output | None) -> None:
    """Go on in a process that the launcher does not know, and so cannot kill.

    What it knows stays and waits. Some launchers end ranks by SIGKILL, their process groups with
    them: who is to end all that a rank has started must not be among these.
    """
    inner = os.fork()
    if inner:
        from doubletime.cluster.front import stand_for

        contact.close()
        reports.close()
        if output is not None:
            output.close()
        os._exit(stand_for(inner))
    os.setsid()


def _wait_at(gate: int, opened: int) -> None:
    """Until the watch opens: in a job across hosts, when all are there and see the same program."""
    os.close(opened)
    if not os.read(gate, 1):
        os._exit(1)
    os.close(gate)


def _prepare() -> None:
    """Of a job across hosts, what only this host knows: its interface and cores."""
    hosts = os.environ.get(environment.HOSTS_VARIABLE)
    if hosts:
        from doubletime.cluster import cores, network

        os.environ.update(network.settings(hosts.split(",")))
        os.environ.update(cores.take_share())


def _contact(text: str, arguments: Sequence[str]) -> Contact | None:
    """The line to the launcher; None where none asks for it, as under a bare `mpiexec`."""
    if not text:
        return None
    from doubletime.cluster.channel import Address
    from doubletime.cluster.contact import Contact
    from doubletime.errors import LaunchError

    try:
        return Contact(Address.parse(text), program.rank(), _seen(arguments))
    except (ConnectionError, LaunchError) as error:
        _end_unheard(
            f"{error}\n  remedy: let the hosts of the job connect to each other on every port "
            "(doubletime doctor finds a firewall)\n"
        )


def _seen(arguments: Sequence[str]) -> dict[str, object] | None:
    """What this host sees of the program; None where all ranks are on one."""
    if not os.environ.get(environment.HOSTS_VARIABLE):
        return None
    from doubletime.cluster import beginning

    return beginning.look(arguments)._asdict()


def _output(contact: Contact) -> Output | None:
    if not (contact.welcome["tag"] or contact.welcome["log_folder"]):
        return None
    from doubletime.cluster.output import Output

    try:
        return Output(
            program.rank(),
            is_tagged=contact.welcome["tag"],
            log_folder=contact.welcome["log_folder"],
        )
    except OSError as error:
        text = f"no log can be written: {error}\n  remedy: --log-folder FOLDER\n"
        contact.tell_failure(failure.now(program.rank(), 1, text))
        contact.part(_LAST_WORDS_S)
        os._exit(1)


def _end_unheard(text: str) -> NoReturn:
    sys.stderr.write(failure.now(program.rank(), 1, text).show())
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
