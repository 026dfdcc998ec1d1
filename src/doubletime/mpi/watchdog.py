"""Who is missing, and where: ranks answer each other's question "where are you?" while they compute.

One thread per process listens on a communicator of its own. A rank that waits in vain asks the others of
the group; each answers with what it has entered and the line its main thread executes, also when that
thread is in a long computation, in another collective, or at the end of the program.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from doubletime.mpi.calls import Call, History, place_of, worded

_LISTEN_EVERY_S = 0.1
_ANSWER_WITHIN_S = 2.0
_QUESTION, _ANSWER = 1, 2


@dataclass(frozen=True)
class Question:
    """Where are you, as to collective `number` of `group`? From world rank `asker`."""

    identity: int
    asker: int
    group: str
    number: int
    signature: str


@dataclass(frozen=True)
class Answer:
    """What one rank says of itself.

    Attributes:
        rank: in the world.
        host: where it runs.
        call: what it entered as the asked-for collective; None if it has not come to it.
        last: the newest collective it entered in this group; None if none.
        last_is_finished: whether it is through with that.
        where: what its main thread executes.
        has_left: whether its program is at its end.
    """

    rank: int
    host: str
    call: Call | None
    last: Call | None
    last_is_finished: bool
    where: str
    has_left: bool


class Inquiry:
    """A question on its way, and the answers so far.

    Attributes:
        answers: by world rank.
    """

    def __init__(self, identity: int, ranks: tuple[int, ...]) -> None:
        self.identity = identity
        self.ranks = ranks
        self.began_s = time.monotonic()
        self.answers: dict[int, Answer] = {}
        self._heard = threading.Condition()

    def hear(self, answer: Answer) -> None:
        """Note an answer."""
        with self._heard:
            self.answers[answer.rank] = answer
            self._heard.notify_all()

    def wait(self) -> dict[int, Answer | None]:
        """The answers after at most 2 seconds.

        Returns:
            By world rank; None for a rank that did not answer: it has ended, is stopped, or is in native
            code that does not release Python's lock.
        """
        with self._heard:
            self._heard.wait_for(lambda: len(self.answers) == len(self.ranks), _ANSWER_WITHIN_S)
        return {rank: self.answers.get(rank) for rank in self.ranks}

    def deserter(self) -> Answer | None:
        """A rank that has come to the end of its program."""
        return next((answer for answer in list(self.answers.values()) if answer.has_left), None)


class Watchdog:
    """Asks and answers on a communicator over all ranks of the job.

    Args:
        mpi: the mpi4py module.
        comm: a communicator that nobody else uses.
        host: the name of this host.
    """

    def __init__(self, mpi: Any, comm: Any, host: str) -> None:
        self._mpi = mpi
        self._comm = comm
        self._rank: int = comm.Get_rank()
        self._host = host
        self._histories: dict[str, History] = {}
        self._inquiries: dict[int, Inquiry] = {}
        self._sent: list[Any] = []
        self._lock = threading.Lock()
        self._identities = itertools.count()
        self._stop = threading.Event()
        self.has_left = False
        self.deserted: Question | None = None
        self._thread = threading.Thread(
            target=self._listen, name="doubletime-watchdog", daemon=True
        )
        self._thread.start()

    def history(self, group: str) -> History:
        """The record of a group's calls on this rank, made at first use."""
        return self._histories.setdefault(group, History())

    def forget(self, group: str) -> None:
        """The group has been destroyed."""
        self._histories.pop(group, None)

    def inquire(self, group: str, call: Call, ranks: Sequence[int]) -> Inquiry:
        """Ask these world ranks where they are as to a call; does not wait for their answers."""
        inquiry = Inquiry(next(self._identities), tuple(ranks))
        self._inquiries[inquiry.identity] = inquiry
        question = Question(inquiry.identity, self._rank, group, call.number, call.signature)
        for rank in ranks:
            self._send(question, rank, _QUESTION)
        return inquiry

    def close(self, inquiry: Inquiry) -> None:
        """No more answers are wanted."""
        self._inquiries.pop(inquiry.identity, None)

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def _send(self, what: Question | tuple[int, Answer], rank: int, tag: int) -> None:
        with self._lock:
            self._sent = [request for request in self._sent if not request.Test()]
            self._sent.append(self._comm.isend(what, rank, tag))

    def _listen(self) -> None:
        status = self._mpi.Status()
        while not self._stop.wait(_LISTEN_EVERY_S):
            while self._comm.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status):
                tag, source = status.Get_tag(), status.Get_source()
                received = self._comm.recv(source=source, tag=tag)
                if tag == _QUESTION:
                    self._reply(received)
                else:
                    identity, answer = received
                    inquiry = self._inquiries.get(identity)
                    if inquiry is not None:
                        inquiry.hear(answer)

    def _reply(self, question: Question) -> None:
        history = self._histories.get(question.group, History())
        call, last = history.at(question.number), history.last()
        if self.has_left and (question.number == 0 or question.number > history.entered):
            self.deserted = question
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        answer = Answer(
            self._rank, self._host, call, last, history.finished >= history.entered,
            worded(place_of(frame)), self.has_left,
        )  # fmt: skip
        self._send((question.identity, answer), question.asker, _ANSWER)


def explain(call: Call, answers: dict[int, Answer | None]) -> list[str]:
    """What each rank that keeps the others waiting does, a line each.

    Args:
        call: what the asking rank waits in.
        answers: of the group's other ranks, by world rank.
    """
    lines = []
    for rank, answer in sorted(answers.items()):
        if answer is None:
            lines.append(
                f"rank {rank} gives no answer: it is stopped, dead, or stuck in native code"
            )
            continue
        who = f"rank {rank} on host {answer.host}"
        if answer.has_left:
            lines.append(f"{who} has come to the end of its program")
        elif answer.call is None and call.number:
            came = "has entered no collective of this group"
            if answer.last is not None:
                state = "finished" if answer.last_is_finished else "is in"
                came = f"{state} {answer.last}"
            lines.append(f"{who} is missing: it {came}, and is now at {answer.where}")
        elif answer.call is not None and answer.call.signature != call.signature:
            lines.append(f"{who} is in another call: {answer.call}")
        elif not call.number:
            lines.append(f"{who} is at {answer.where}")
    return lines
