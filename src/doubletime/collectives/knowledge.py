"""What is known of the cluster that a group runs on: its profile and its decision table, where they fit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from doubletime.collectives import profile, table
from doubletime.collectives.cluster import Cluster
from doubletime.collectives.model import Link, Parameters
from doubletime.collectives.places import PROFILE_VARIABLE, profile_path, table_path
from doubletime.collectives.table import Table
from doubletime.errors import DataError

# What is assumed of a cluster that has not been measured: shared memory inside, 1 Gbit/s between.
ASSUMED = Parameters(Link(20e-6, 0.4e-9), Link(60e-6, 8e-9), 0.2e-9)

_MODEL_INSTEAD = "auto goes by what is assumed of clusters"
_NO_TABLE_INSTEAD = "auto goes by the cost model"


@dataclass(frozen=True)
class Text:
    """A file as one rank found it, to be told to the others.

    Attributes:
        path: where it is looked for.
        content: what it says; None where it is not there or cannot be read.
        error: why it cannot be read.
    """

    path: str
    content: str | None
    error: str | None = None


@dataclass(frozen=True)
class Knowledge:
    """What `auto` goes by.

    Attributes:
        parameters: of the cost model.
        table: choices that were measured on this cluster, perhaps for other numbers of ranks.
        complaints: a line for each file that is not used: which, why, and what is used instead.
    """

    parameters: Parameters
    table: Table
    complaints: tuple[str, ...] = ()


def read(environ: Mapping[str, str] = os.environ) -> tuple[Text, Text]:
    """The profile's text and the table's. A missing file is told only where one was named."""
    path = profile_path(environ)
    found = _read(path), _read(table_path(path))
    if environ.get(PROFILE_VARIABLE) and found == (Text(str(path), None), _nothing(path)):
        return Text(str(path), None, f"{PROFILE_VARIABLE} names it, and it is not there"), found[1]
    return found


def judge(texts: tuple[Text, Text], here: Cluster) -> Knowledge:
    """What two files say of this cluster; a pure function, so that ranks with the same texts agree."""
    parameters, found = ASSUMED, Table()
    complaints: list[str] = []
    for text, instead in zip(texts, (_MODEL_INSTEAD, _NO_TABLE_INSTEAD), strict=True):
        why = text.error
        if text.content is not None:
            try:
                if text is texts[0]:
                    measured = profile.parse(text.content, text.path)
                    why = measured.cluster.difference(here)
                    parameters = parameters if why else measured.parameters(ASSUMED)
                else:
                    whole = table.parse(text.content, text.path)
                    why = whole.difference(here)
                    found = found if why else whole
            except DataError as error:
                why = error.what
        if why is not None:
            complaints.append(f"{text.path} is not used: {why}; {instead}")
    return Knowledge(parameters, found, tuple(complaints))


def _read(path: Path) -> Text:
    try:
        return Text(str(path), path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Text(str(path), None)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        return Text(str(path), None, why or "it is no text")


def _nothing(path: Path) -> Text:
    return Text(str(table_path(path)), None)
