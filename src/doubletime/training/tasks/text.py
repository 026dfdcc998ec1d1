"""Texts to learn from: the Jargon File, or Python's own documentation; bytes in rows.

The Jargon File, version 4.4.7, 29 Dec 2003, edited by Eric S. Raymond; in the public domain. Debian's
text of it, which is UTF-8.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from doubletime.training.tasks.fetching import DataSet

JARGON = DataSet(
    name="jargon-file",
    title="The Jargon File",
    digests={"jargon.txt.gz": "40dfb4b98191a670a09a183d5798d50f243d23fdbd1495dcc0aca2ce5895ba97"},
    package="jargon-text",
    package_folder=Path("/usr/share/doc/jargon-text"),
    # Debian's archive of every file that it ever published, each by its SHA-1.
    package_at="https://snapshot.debian.org/file/e4bab7464448b63fcd7207e41f601a11ca0880de",
)
SYMBOLS = 256  # values of a byte
LENGTH = 128  # bytes that are read, one after the other, to guess as many next ones
_EVERY = 16  # one row of so many is for testing


def jargon(folder: Path) -> bytes:
    """The Jargon File, 1.7 MB.

    Args:
        folder: as `JARGON.fetch` returned it.

    Raises:
        DataError: if the file is missing or damaged.
    """
    return JARGON.content(folder, "jargon.txt.gz")


def python_documentation() -> bytes:
    """What `help()` tells of Python's language, about 0.7 MB; comes with Python, differs by version."""
    from pydoc_data import topics  # a text of that size is loaded only where it is needed

    return "\n".join(topics.topics[name] for name in sorted(topics.topics)).encode()


def rows(text: bytes, *, is_test: bool) -> tuple[Tensor, Tensor]:
    """The text as samples that overlap nowhere; every sixteenth is for testing.

    Args:
        text: of any length; what does not fill a last row is left out.
        is_test: which of the two parts.

    Returns:
        What is read and what follows each byte of it, both int64 (samples, 128), 0 to 255.
    """
    width = LENGTH + 1  # the last byte is only guessed
    count = len(text) // width
    values = np.frombuffer(text, np.uint8, count * width).reshape(count, width)
    tested = np.arange(count) % _EVERY == _EVERY - 1
    chosen = torch.from_numpy(values[tested == is_test].astype(np.int64))
    return chosen[:, :-1].contiguous(), chosen[:, 1:].contiguous()
