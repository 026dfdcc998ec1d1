"""What a launcher prints when it ends a job, told apart from what the ranks print.

Launchers write a block of their own: after it nobody sees the rank's traceback any more, and it
names what the launcher killed rather than what failed.
"""

from __future__ import annotations

import re

# Blocks begin and end with such a line. The line after it tells whose it is.
_RULE = re.compile(rb"(?:={60,}|-{60,})\s*")
_HYDRA_FIRST = re.compile(rb"=   BAD TERMINATION")
_HYDRA_BODY = re.compile(rb"=   |={60,}")
_HYDRA_AFTER = re.compile(
    rb"YOUR APPLICATION TERMINATED|This typically refers to a problem|Please see the FAQ page"
)
_PRRTE_FIRST = re.compile(
    rb"(?:prterun|prte|PRTE|mpirun|mpiexec|orterun) |Primary job |MPI_ABORT was invoked"
    rb"|A daemon failed to report back|ORTE |An ORTE daemon|A PRTE daemon"
)
_SINGLE = re.compile(
    rb"\[(?:mpiexec|proxy)[:@].*|Abort is in progress\.\.\.hit ctrl-c again.*"
    rb"|(?:prterun|mpirun): Forwarding signal .*"
    # Open MPI's library in a rank whose launcher is gone: it no longer knows its own process id.
    rb"|\[[^\]\s]+:00000\] \*\*\* .*|\0+\s*"
    rb"|\[[^\]\s]+\] plm:ssh: Warning: setpgid.*"
    # Our own launcher over ssh, which knows less than who supervises it.
    rb"|doubletime: host \S+: .*"
    # ssh, of a login that ends with the job.
    rb"|Connection to \S+ closed by remote host\.\s*|client_loop: send disconnect: .*"
)
_WITH_EMPTY_LINE = b"Abort is in progress"
_SINGLE_BEGINNINGS = (
    b"[mpiexec@",
    b"[proxy:",
    _WITH_EMPTY_LINE,
    b"prterun: F",
    b"mpirun: F",
    b"Connection to ",
    b"client_loop: s",
    b"doubletime: host ",
    b"\0",
)
_MAY_BEGIN = re.compile(
    rb"(?m)^(?:={60}|-{60}|\[mpiexec@|\[proxy:|Abort is in |(?:prte|mpi)run: F"
    rb"|\[[^\]\s]+:00000\]|\[[^\]\s]+\] plm:|\0|Connection to |client_loop: |doubletime: host )"
)
_SIGNAL = re.compile(rb"(?i)signal:?\s+(\d+)")


def signal_in(said: bytes) -> int | None:
    """The signal that a launcher says a rank died by."""
    match = _SIGNAL.search(said)
    return int(match[1]) if match else None


class BannerFilter:
    """Splits a launcher's output, as it comes, into the ranks' part and the launcher's own.

    The ranks' part is handed on at once, unfinished lines too (a progress bar has no others);
    only what may be the beginning of a banner waits for its next line.

    Attributes:
        said: the launcher's own part so far.
    """

    def __init__(self) -> None:
        self.said = b""
        self._held = b""  # may become a banner
        self._is_at_line_start = True
        self._inside: bytes | None = None  # b"=" or b"-": within such a banner
        self._is_after_hydra = False
        self._is_before_empty_line = False  # of the launcher's

    @property
    def is_holding(self) -> bool:
        """Whether something waits for its next line."""
        return bool(self._held)

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes; returns what of them, and of earlier ones, the ranks wrote."""
        data = self._held + chunk
        self._held = b""
        last = data[data.rfind(b"\n") + 1 :]
        if (
            self._inside is None
            and not self._is_after_hydra
            and not self._is_before_empty_line
            and not _MAY_BEGIN.search(data)
            and not (last and self._may_become_banner(last))
        ):
            if data:
                self._is_at_line_start = not last
            return data
        return self._split(data)

    def flush(self) -> bytes:
        """What was held back and has not become a banner: for when nothing more comes."""
        held, self._held = self._held, b""
        if self._inside is not None or not held.strip(b"\0"):
            self.said += held
            return b""
        if held:
            self._is_at_line_start = held.endswith(b"\n")
        return held

    def _split(self, data: bytes) -> bytes:
        ranks = bytearray()
        lines = re.findall(rb"[^\n]*\n|[^\n]+", data)  # a progress bar's \r ends no line
        for index, line in enumerate(lines):
            is_whole = line.endswith(b"\n")
            if not self._is_at_line_start:
                ranks += line
                self._is_at_line_start = is_whole
                continue
            following = lines[index + 1] if index + 1 < len(lines) else b""
            if is_whole:
                is_launchers = self._is_launchers(line, following)
            else:
                is_launchers = None if self._may_become_banner(line) else False
            if is_launchers is None:
                self._held = b"".join(lines[index:])
                break
            if is_launchers:
                self.said += line
            else:
                ranks += line
                self._is_at_line_start = is_whole
        return bytes(ranks)

    def _is_launchers(self, line: bytes, following: bytes) -> bool | None:
        """Whether a whole line is the launcher's; None where the next line must tell."""
        if self._is_before_empty_line:
            self._is_before_empty_line = False
            if not line.strip():
                return True
        is_rule = _RULE.fullmatch(line) is not None
        if self._inside == b"=":
            if _HYDRA_BODY.match(line):
                if is_rule:
                    self._inside, self._is_after_hydra = None, True
                return True
            self._inside = None  # torn by a rank's line
        if self._inside == b"-":
            if is_rule:
                self._inside = None
            return True
        if (self._is_after_hydra and _HYDRA_AFTER.match(line)) or _SINGLE.match(line):
            self._is_before_empty_line = line.startswith(_WITH_EMPTY_LINE)
            return True
        if not is_rule:
            return False
        if not following.endswith(b"\n"):
            return None
        first = _HYDRA_FIRST if line[:1] == b"=" else _PRRTE_FIRST
        if first.match(following):
            self._inside = line[:1]
            return True
        return False

    def _may_become_banner(self, beginning: bytes) -> bool:
        """Whether an unfinished line may become the launcher's."""
        if self._inside is not None or not beginning.strip(b"=") or not beginning.strip(b"-"):
            return True
        if self._is_after_hydra and beginning[:1] in (b"Y", b"T", b"P"):
            return True
        return any(
            whole.startswith(beginning) or beginning.startswith(whole)
            for whole in _SINGLE_BEGINNINGS
        )
