"""What a host tells the launcher over ssh: the output of its ranks, and how each ended. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass

# Before it comes what a login shell prints.
MAGIC = b"\0doubletime ranks\0"
STDOUT, STDERR, EXIT, MEETING, REFUSAL, BEAT = b"o", b"e", b"x", b"m", b"r", b"b"
_HEADER = struct.Struct(">cII")


@dataclass(frozen=True)
class Frame:
    """One message of a host.

    Attributes:
        kind: STDOUT or STDERR of a rank, its EXIT (the code in digits), the host's address and a
            free port for ranks to meet at (MEETING), why it starts none (REFUSAL), or a BEAT.
        rank: whose; 0 where it is no rank's.
        payload: bytes.
    """

    kind: bytes
    rank: int = 0
    payload: bytes = b""

    def encode(self) -> bytes:
        """The bytes that stand for it."""
        return _HEADER.pack(self.kind, self.rank, len(self.payload)) + self.payload


class Decoder:
    """Reads frames from a stream, as it comes.

    Attributes:
        has_begun: whether the stream has got past what a login shell prints.
        noise: what that was, its first 64 KiB.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.noise = b""
        self._data = bytearray()

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that are whole now."""
        self._data += chunk
        if not self.has_begun and not self._skip_noise():
            return []
        found = []
        while len(self._data) >= _HEADER.size:
            kind, rank, length = _HEADER.unpack_from(self._data)
            end = _HEADER.size + length
            if len(self._data) < end:
                break
            found.append(Frame(kind, rank, bytes(self._data[_HEADER.size : end])))
            del self._data[:end]
        return found

    def _skip_noise(self) -> bool:
        before, magic, after = self._data.partition(MAGIC)
        self.noise = bytes(before[: 1 << 16])
        if not magic:
            del self._data[1 << 16 : -len(MAGIC)]  # endless noise fills no memory
            return False
        self.has_begun = True
        self._data = after
        return True
