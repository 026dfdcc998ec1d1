"""A matplotlib figure as a file; the same figure gives the same SVG, byte by byte."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

_NO_DATE = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def save(figure: Figure, file: Path, dots_per_inch: int) -> None:
    """Write a figure; the name's end says of which kind.

    Raises:
        OSError: if the file cannot be written.
    """
    with mpl.rc_context({"svg.hashsalt": "doubletime"}):
        figure.savefig(file, dpi=dots_per_inch, metadata=_NO_DATE.get(file.suffix.lower(), {}))
