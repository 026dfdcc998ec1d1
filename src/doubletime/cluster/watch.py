"""The watch of one rank: wait for its end, tell the launcher, and end it where the launcher is lost."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING

from doubletime import failure
from doubletime.cluster import program
from doubletime.cluster.contact import Contact
from doubletime.cluster.front import FORWARDED
from doubletime.cluster.orphans import has_children
from doubletime.cluster.output import Output
from doubletime.cluster.proxies import Proxies
from doubletime.cluster.reports import Reports
from doubletime.failure import Failure

if TYPE_CHECKING:
    from doubletime.cluster.processes import Descendants

_TURN_S = 0.25  # how late an orphan may be reaped, or a heartbeat sent
# What a rank's own processes get once it has ended: to end by themselves, and after SIGTERM.
_GOOD_END_S, _BAD_END_S = (0.3, 0.3), (0.0, 0.0)
_SLACK_S = 1.0  # what the clock of a file system may differ from the host's
_TERMINATION_S = 0.5  # between SIGTERM and SIGKILL to a rank whose launcher is lost
_LAST_WORDS_S = 1.0
_START_S = 2.0  # what a program may take to start, for which it has the cores to itself
_READER_S = 5.0  # what a reader may take for a rank's last output


def watch(
    child: int,
    contact: Contact | None,
    reports: Reports | None,
    output: Output | None,
    gate: tuple[int, int] | None = None,
) -> int:
    """Wait for the rank's end; returns what this process is to exit with.

    Args:
        child: the rank's process.
        contact: the line to the launcher, if there is one; then `reports` is there too.
        reports: where the rank tells how it fares.
        output: what goes through this process of what the rank writes.
        gate: a pipe at which the rank waits until the launcher lets it begin; None where it does not.
    """
    return _Watch(child, contact, reports, output, gate).run()


class _Watch:
    """See `watch`."""

    def __init__(
        self,
        child: int,
        contact: Contact | None,
        reports: Reports | None,
        output: Output | None,
        gate: tuple[int, int] | None,
    ) -> None:
        self._child = child
        self._contact = contact
        self._reports = reports
        self._output = output
        self._gate = gate
        self._is_paused = False
        self._known_descendants: Descendants | None = None
        self._began_s = time.monotonic()
        self._status: int | None = None
        self._was_told_to_end = False
        self._was_killed = False  # by this watch
        self._is_to_be_gone = False  # the launcher is lost, or has said SIGKILL
        self._kill_s: float | None = None
        age_s = 0.0 if contact is None else contact.welcome["age_s"] + _SLACK_S
        self._job_began_s = time.time() - age_s
        self._told = False
        # Of the process that the launcher knows; without a launcher it is this one.
        self._front = os.getppid() if contact is not None else None
        self._proxies = None if self._front is None else Proxies(self._front)

    @property
    def _descendants(self) -> Descendants:
        """All that the rank has started, and the rank itself until it is reaped."""
        if self._known_descendants is None:
            from doubletime.cluster.processes import Descendants

            spared = self._child if self._status is None else None
            self._known_descendants = Descendants(before=(), spared=spared)
        return self._known_descendants

    def run(self) -> int:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in FORWARDED:
            signal.signal(number, self._forward)
        if self._output is not None:
            self._output.watch()
        ended = os.pidfd_open(self._child)
        while self._reap() is None:
            self._turn(ended)
            if time.monotonic() - self._began_s > _START_S:
                # Loaded by now, not when it is needed: the folder that it lies in may be cut off then.
                _ = self._descendants
        os.close(ended)
        if self._known_descendants is not None:
            self._known_descendants.spared = None
        exit_code = self._tell_end()
        if has_children():  # a launcher waits as long as they hold the rank's output
            self._descendants.end(_GOOD_END_S if exit_code == 0 else _BAD_END_S)
        if exit_code != 0 and self._contact is not None:
            from doubletime.cluster.leftovers import remove_shared_memory

            remove_shared_memory(self._contact.welcome["shm_prefixes"], self._job_began_s)
        self._finish_output()
        if self._contact is not None:
            if not self._contact.is_lost:
                self._contact.say({"end": exit_code})
            if self._is_to_be_gone:
                self._end_proxies()
            self._contact.part(_LAST_WORDS_S)
        return exit_code

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        if number in (signal.SIGTERM, signal.SIGHUP):
            self._was_told_to_end = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, number)

    def _reap(self) -> int | None:
        """Reap whatever has ended; the rank's status once it has."""
        while self._status is None:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if not ended:
                break
            if ended == self._child:
                self._status = status
        return self._status

    def _turn(self, *others: int) -> None:
        """Wait until something happens, and serve it."""
        awaited = list(others)
        timeout_s = _TURN_S
        if self._reports is not None:
            awaited.append(self._reports.fileno())
        if self._output is not None:
            awaited += self._output.readable
            if self._output.is_pending:
                timeout_s = 0.02
        if self._contact is not None:
            self._contact.wait(timeout_s, *awaited)
        else:
            select.select(awaited, [], [], timeout_s)
        if self._output is not None:
            self._output.turn()
        if self._reports is not None:
            self._hear(self._reports)
        if self._contact is not None:
            self._obey(self._contact)

    def _hear(self, reports: Reports) -> None:
        reports.listen()
        if reports.record is not None:
            self._pass_on(reports.record)

    def _pass_on(self, record: Failure) -> None:
        """Hand a record to the launcher, the first one; where there is none, show it here."""
        if self._told:
            return
        self._told = True
        if self._contact is None:
            sys.stderr.write(record.show())
            sys.stderr.flush()
            return
        self._contact.tell_failure(record)

    def _obey(self, contact: Contact) -> None:
        if contact.may_begin and self._gate is not None:
            gate, opened = self._gate
            self._gate = None
            with contextlib.suppress(BrokenPipeError):  # it has been killed
                os.write(opened, b"\0")
            os.close(gate)
            os.close(opened)
        if contact.is_paused != self._is_paused:
            self._pause(is_on=contact.is_paused)
        if (contact.is_lost or self._front_is_gone) and self._kill_s is None:
            self._is_to_be_gone = contact.is_lost
            self._was_told_to_end = True
            self._descendants.signal(signal.SIGTERM)
            self._pause(is_on=False)
            self._kill_s = time.monotonic() + _TERMINATION_S
        for number in contact.orders:
            self._was_told_to_end = True
            self._is_to_be_gone = self._is_to_be_gone or number == signal.SIGKILL
            self._was_killed = self._was_killed or number == signal.SIGKILL
            self._descendants.signal(number)
            self._pause(is_on=False)  # who stands still hears of nothing but SIGKILL
        contact.orders.clear()
        if self._kill_s is not None and time.monotonic() > self._kill_s:
            self._was_killed = True
            self._descendants.signal(signal.SIGKILL)

    def _pause(self, *, is_on: bool) -> None:
        """Let the rank stand still, with all that it has started, or go on."""
        if is_on:
            self._descendants.signal(signal.SIGSTOP)
            self._descendants.signal(signal.SIGSTOP)  # one may have been forking
        elif self._is_paused:
            self._descendants.signal(signal.SIGCONT)
        self._is_paused = is_on

    @property
    def _front_is_gone(self) -> bool:
        """Whether the launcher has killed what it takes for the rank."""
        return self._front is not None and os.getppid() != self._front

    def _tell_end(self) -> int:
        """Record how the rank has ended, unless it has told its own story; returns its exit code."""
        if self._reports is not None:
            self._hear(self._reports)
        code = os.waitstatus_to_exitcode(self._status or 0)
        exit_code = 128 - code if code < 0 else code
        # Who was told to end is not the cause, unless it died of what nobody has told it: it may have been
        # dead when word came. Who has told its own story needs no second one.
        is_no_cause = self._was_told_to_end and (self._was_killed or code != -signal.SIGKILL)
        if is_no_cause or self._told or code == 128 + signal.SIGINT:
            return exit_code
        if code == 0 and self._reports is not None and self._reports.is_inside:
            exit_code = 1
            self._record(
                exit_code,
                "left with exit code 0 in the midst of its MPI job, as by os._exit(0): "
                "other ranks may wait\n",
            )
        elif code < 0:
            text = f"died by signal {-code} ({_signal_name(-code)})\n"
            self._record(exit_code, text, signal=-code)
        elif code > 0 and self._contact is not None:
            self._record(exit_code, f"exited with code {code}\n", is_bare=True)
        return exit_code

    def _record(
        self, exit_code: int, text: str, *, signal: int | None = None, is_bare: bool = False
    ) -> None:
        record = failure.now(program.rank(), exit_code, text, signal=signal, is_bare=is_bare)
        self._pass_on(record)

    def _finish_output(self) -> None:
        if self._output is None:
            return
        end_s = time.monotonic() + _READER_S
        while not self._output.drain() and time.monotonic() < end_s:
            if self._contact is not None and not self._contact.is_lost:
                self._contact.wait(0.02)
            else:
                time.sleep(0.02)

    def _end_proxies(self) -> None:
        """End what the launcher has started on this host, as it cannot any more."""
        for stream in (1, 2):  # whose end some of them await
            with contextlib.suppress(OSError):
                os.close(stream)
        if self._proxies is not None:
            self._proxies.end()
            from doubletime.cluster.leftovers import remove_topologies

            remove_topologies(self._job_began_s)
            if self._contact is not None and self._contact.is_lost:
                self._proxies.end_login()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
