"""A rank's output on its way through its watch: whole lines with rank and host before them, and a log."""

from __future__ import annotations

import os
import re
import select
from pathlib import Path

_PIPE_BUF = select.PIPE_BUF  # a pipe that is writable takes so much without blocking
_HELD_NBYTES = 1 << 16  # a line longer than this is cut
_END = re.compile(rb"\r?\n|\r")


class Tagger:
    """Puts words before each line, as the bytes come: pure.

    A progress bar's line, which ends in a carriage return, is a line of its own.
    """

    def __init__(self, tag: bytes) -> None:
        self._tag = tag
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes; returns the lines that are whole now."""
        data = self._held + chunk
        done = bytearray()
        position = 0
        for end in _END.finditer(data):
            if end.end() == len(data) and end[0] == b"\r":
                break  # what comes next may be its newline
            done += self._tagged(data[position : end.end()])
            position = end.end()
        self._held = data[position:]
        if len(self._held) > _HELD_NBYTES:
            done += self._tagged(self._held + b"\n")
            self._held = b""
        return bytes(done)

    def flush(self) -> bytes:
        """The last line, which nothing ended."""
        held, self._held = self._held, b""
        return self._tagged(held + b"\n") if held else b""

    def _tagged(self, piece: bytes) -> bytes:
        return piece if not piece.strip(b"\r\n") else self._tag + piece


class Output:
    """The output of a rank that its watch hands on; a reader that is slow slows the rank alone.

    Args:
        rank: for the tag and the log's name.
        is_tagged: whether rank and host stand before each line.
        log_folder: where a log of all that the rank writes goes; None for nowhere.

    Raises:
        OSError: if the log cannot be opened.
    """

    def __init__(self, rank: int, *, is_tagged: bool, log_folder: str | None) -> None:
        self._log: int | None = None
        if log_folder is not None:
            path = Path(log_folder) / f"rank-{rank}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        tag = f"[{rank} {os.uname().nodename.partition('.')[0]}] ".encode() if is_tagged else None
        self._streams = []
        for number in (1, 2):
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            self._streams.append(_Stream(number, reading, writing, tag))

    def enter(self) -> None:
        """In the rank: write into the pipes."""
        for stream in self._streams:
            os.dup2(stream.writing, stream.number)
            os.close(stream.writing)
            os.close(stream.reading)
        if self._log is not None:
            os.close(self._log)

    def watch(self) -> None:
        """In the watch: only read from them."""
        for stream in self._streams:
            os.close(stream.writing)

    def close(self) -> None:
        """In any other process: neither."""
        for stream in self._streams:
            os.close(stream.reading)
            os.close(stream.writing)
        if self._log is not None:
            os.close(self._log)

    @property
    def readable(self) -> list[int]:
        """Descriptors to wait for: none of a stream whose reader lags behind."""
        return [each.reading for each in self._streams if not each.is_over and not each.pending]

    @property
    def is_pending(self) -> bool:
        """Whether something waits for its reader."""
        return any(each.pending for each in self._streams)

    def turn(self) -> None:
        """Hand on what there is, as far as it goes without waiting."""
        for stream in self._streams:
            self._write(stream)
            if not stream.pending and not stream.is_over:
                self._read(stream)
                self._write(stream)

    def drain(self) -> bool:
        """Hand on the rest, now that nobody writes any more; False where a reader still lags."""
        for stream in self._streams:
            while not stream.is_over and not stream.pending and self._read(stream):
                self._write(stream)
            if not stream.pending and not stream.is_over:
                stream.end()
            self._write(stream)
        return not self.is_pending

    def _read(self, stream: _Stream) -> bool:
        """Read once; False where there is nothing now, or no more."""
        try:
            chunk = os.read(stream.reading, 1 << 16)
        except BlockingIOError:
            return False
        if not chunk:
            stream.end()
            return False
        self._keep(chunk)
        stream.pending += chunk if stream.tagger is None else stream.tagger.feed(chunk)
        return True

    def _write(self, stream: _Stream) -> None:
        while stream.pending and select.select([], [stream.number], [], 0)[1]:
            try:
                written = os.write(stream.number, stream.head())
            except OSError:  # nobody reads any more: the rank's next words go nowhere
                stream.pending = b""
                return
            stream.pending = stream.pending[written:]

    def _keep(self, chunk: bytes) -> None:
        if self._log is None:
            return
        try:
            os.write(self._log, chunk)
        except OSError as error:  # a full disk must not end the job
            os.close(self._log)
            self._log = None
            self._streams[1].pending += f"doubletime: no more log: {error.strerror}\n".encode()


class _Stream:
    """One of a rank's two streams.

    Attributes:
        number: 1 or 2.
        reading, writing: the ends of its pipe.
        tagger: puts the tag before lines; None where there is none.
        pending: what has not been handed on.
        is_over: whether its end has come.
    """

    def __init__(self, number: int, reading: int, writing: int, tag: bytes | None) -> None:
        self.number = number
        self.reading = reading
        self.writing = writing
        self.tagger = None if tag is None else Tagger(tag)
        self.pending = b""
        self.is_over = False

    def head(self) -> bytes:
        """Whole lines that go out in one piece, where they fit: ranks share the pipe."""
        head = self.pending[:_PIPE_BUF]
        if len(head) == len(self.pending):
            return head
        return head[: head.rfind(b"\n") + 1] or head

    def end(self) -> None:
        """Nothing more comes."""
        self.is_over = True
        os.close(self.reading)
        if self.tagger is not None:
            self.pending += self.tagger.flush()
