"""Going on from a checkpoint: the newest that is whole, on any number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from doubletime.errors import CheckpointError
from doubletime.training import session
from doubletime.training.checkpoint import contents, folder, storage
from doubletime.training.checkpoint.contents import Parts
from doubletime.training.checkpoint.exchange import of_all


@dataclass(frozen=True)
class Restored:
    """What was read besides the parts, which have it by now.

    Attributes:
        path: of the checkpoint.
        run: what was saved of the run.
        world_size: how many ranks saved.
        own: what this rank had saved; of another number of ranks, what each had on rank 0, and
            nothing on the others.
        passed_over: why newer checkpoints were not taken.
    """

    path: Path
    run: Mapping[str, Any]
    world_size: int
    own: Sequence[Mapping[str, Any]]
    passed_over: tuple[str, ...] = ()


def restore(candidates: Sequence[Path], parts: Parts) -> Restored | None:
    """Give the parts what the first whole one of these checkpoints holds; collective.

    A damaged one is set aside, as `step-N.damaged`, and the next is taken.

    Args:
        candidates: the same on all ranks.
        parts: what is trained; unchanged where nothing can be read.

    Returns:
        None where there are no candidates.

    Raises:
        CheckpointError: if all are damaged, or the first whole one is of something else.
    """
    passed_over: list[str] = []
    for path in candidates:
        troubles = _read(path, parts)
        if isinstance(troubles, Restored):
            for damaged in candidates[: len(passed_over)]:
                if session.current().rank == 0:
                    folder.set_aside(damaged)
            return Restored(
                path, troubles.run, troubles.world_size, troubles.own, tuple(passed_over)
            )
        passed_over.append(troubles)
    if passed_over:
        raise CheckpointError(
            f"no checkpoint is whole: {'; '.join(passed_over)}",
            "begin anew: --resume never, under another --name",
        )
    return None


def _read(path: Path, parts: Parts) -> Restored | str:
    """What was read, on every rank; or why it is damaged, on one of them."""
    joined = session.current()
    here = contents.shapes(parts)
    damage: str | None = None
    refusal: CheckpointError | None = None
    loaded: dict[str, Any] = {}
    metadata = Metadata({})
    try:
        metadata = storage.describe(path)
        try:
            contents.check_model(here, metadata.state_dict_metadata, str(path))
        except CheckpointError as error:
            refusal = error
        else:
            keys = _own_keys(metadata, joined)
            wanted = contents.targets(parts, metadata.state_dict_metadata)
            loaded = storage.read(path, metadata, {**wanted, **dict.fromkeys(keys)})
    except CheckpointError as error:
        damage = error.what
    for trouble in of_all(refusal):
        if trouble is not None:
            raise trouble
    for trouble in of_all(damage):
        if trouble is not None:
            return str(trouble)
    contents.apply(parts, loaded, str(path))
    ranks = contents.rank_keys(metadata.state_dict_metadata)
    own = [loaded[key] for key in _own_keys(metadata, joined)]
    return Restored(path, loaded[contents.RUN]["run"], len(ranks), own)


def _own_keys(metadata: Metadata, joined: session.Session) -> list[str]:
    """The objects of single ranks that this one needs."""
    ranks = contents.rank_keys(metadata.state_dict_metadata)
    if len(ranks) == joined.world_size:
        return [contents.rank_key(joined.rank)]
    return ranks if joined.rank == 0 else []
