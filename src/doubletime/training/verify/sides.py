"""The two sides: one process, whose steps are kept in a folder, and ranks that are compared with them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from doubletime.errors import DataError, DoubletimeError
from doubletime.training import session
from doubletime.training.data import length_of, tensors_of
from doubletime.training.mesh import Mesh
from doubletime.training.recipe import Recipe
from doubletime.training.task import Task
from doubletime.training.verify import records
from doubletime.training.verify.comparison import compare
from doubletime.training.verify.passes import Pass
from doubletime.training.verify.records import Difference, Reference, Step
from doubletime.training.verify.samples import is_repeatable
from doubletime.training.verify.shares import find_shares
from doubletime.training.verify.verdict import DOUBLE, Verdict, judge

_REFERENCE = "reference.pickle"
_ASKED_TWICE = 8  # samples


def record(task: Task, recipe: Recipe, steps: int, ranks: int, folder: Path) -> None:
    """One process's side: carry the task out, in its own precision and in float64, and keep all.

    Args:
        task: what to train; its `prepare` has been called.
        recipe: the numbers.
        steps: how many, or as many as there are.
        ranks: with how many it will be compared that have other samples.
        folder: where records go; holds two steps' worth of the model for each step.

    Raises:
        DoubletimeError: what training raises.
    """
    norms = _Norms()

    def keep(number: int, step: Step) -> None:
        norms.take(step)
        step.save(_file(folder, "own", number))

    own = Pass(task, recipe, steps, keep)
    account = own.carry_out()
    has_moved = _has_moved(own)
    precision = _precision(own)
    rounding: dict[str, float] = {}
    last, why_not = own, None
    if precision != DOUBLE:
        rounding, last, why_not = _in_double(task, recipe, steps, folder, own)
    reference = Reference(
        account=account,
        precision=precision,
        double=last is not own,
        why_not_double=why_not,
        rounding=rounding,
        shares=_shares(task, last, ranks),
        is_repeatable=_is_repeatable(own),
        dead_steps=tuple(norms.dead),
        has_moved=has_moved,
        still=tuple(
            name
            for name, parameter in own.model.named_parameters()
            if parameter.requires_grad and name not in norms.alive
        ),
    )
    (folder / _REFERENCE).write_bytes(pickle.dumps(reference))


def against(
    task: Task, recipe: Recipe, steps: int, folder: Path, tolerance: float | None
) -> Verdict | None:
    """The ranks' side; every rank must call it alike.

    Args:
        task: as in `record`, as are the next two.
        recipe: the numbers.
        steps: how many.
        folder: where `record` kept its records; only rank 0 looks there.
        tolerance: see `verdict.judge`.

    Returns:
        The verdict on rank 0, None on the others.

    Raises:
        DataError: if there are no records.
        DoubletimeError: what training raises.
    """
    joined = session.current()
    one = _read(folder) if joined.rank == 0 else None
    own: list[Difference] = []
    many = Pass(task, recipe, steps, partial(_take, folder, "own", own)).carry_out()
    double: list[Difference] | None = None
    is_wanted = _agree(one is not None and one.double)
    if is_wanted and len(many.after) == len(many.before):
        double = []
        take = partial(_take, folder, "double", double)
        Pass(task, recipe, steps, take, is_double=True).carry_out()
    if one is None:
        return None
    if one.precision == DOUBLE:
        double = own
    mesh = Mesh.of(recipe.mesh, joined.world_size)
    return judge(task.name, mesh, one, many, own, double, tolerance)


class _Norms:
    """Which gradients are not zero.

    Attributes:
        dead: steps whose gradients all are.
        alive: names of those that are not, in any step.
    """

    def __init__(self) -> None:
        self.dead: list[int] = []
        self.alive: set[str] = set()
        self._steps = 0

    def take(self, step: Step) -> None:
        self._steps += 1
        alive = {name for name, gradient in step.gradients.items() if bool(gradient.any())}
        self.alive |= alive
        if not alive:
            self.dead.append(self._steps)


def _in_double(
    task: Task, recipe: Recipe, steps: int, folder: Path, own: Pass
) -> tuple[dict[str, float], Pass, str | None]:
    """The same in float64: how far each kind is from it, the pass, and why it is not to be had."""
    rounding: dict[str, float] = {}

    def keep(number: int, step: Step) -> None:
        step.save(_file(folder, "double", number))
        for each in compare(number, Step.load(_file(folder, "own", number)), step):
            rounding[each.kind] = max(each.distance, rounding.get(each.kind, 0.0))

    double = Pass(task, recipe, steps, keep, is_double=True)
    try:
        double.carry_out()
    except DoubletimeError:
        raise
    except Exception as error:  # whatever a task may say of tensors that it did not expect
        return {}, own, f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return rounding, double, None


def _take(folder: Path, side: str, differences: list[Difference], number: int, step: Step) -> None:
    differences += compare(number, step, Step.load(_file(folder, side, number)))


def _file(folder: Path, side: str, number: int) -> Path:
    return folder / f"{side}-{number}.pt"


def _read(folder: Path) -> Reference:
    file = folder / _REFERENCE
    try:
        found = pickle.loads(file.read_bytes())
    except OSError as error:
        raise DataError(
            f"rank 0 does not find what one process has computed: {file}: {error.strerror}",
            "let the first host of the list be the same for 1 rank and for many",
        ) from error
    if not isinstance(found, Reference):
        raise DataError(f"{file} holds no record of one process")
    return found


def _agree(is_wanted: bool) -> bool:
    """What rank 0 says."""
    joined = session.current()
    told = torch.tensor([int(is_wanted)], device=joined.device)
    torch.distributed.broadcast(told, 0)
    return bool(told.item())


def _precision(done: Pass) -> str:
    """The type of most of the model's numbers."""
    counts: dict[torch.dtype, int] = {}
    for parameter in done.model.parameters():
        counts[parameter.dtype] = counts.get(parameter.dtype, 0) + parameter.numel()
    return str(max(counts, key=lambda dtype: counts[dtype])).removeprefix("torch.")


def _shares(task: Task, done: Pass, ranks: int) -> records.Shares | None:
    if done.first_batch is None:
        return None
    batch, rows = done.first_batch
    return find_shares(task.loss, done.model, done.initial, batch, rows, ranks)


def _is_repeatable(done: Pass) -> bool:
    data: Any = done.training_data
    if tensors_of(data) is not None:
        return True
    length = length_of(data)
    indices: Sequence[int] = range(0, length, max(1, length // _ASKED_TWICE))
    return is_repeatable(data.__getitem__, indices)


def _has_moved(done: Pass) -> bool:
    now: dict[str, Tensor] = done.model.state_dict()
    return any(
        not torch.equal(now[name], done.initial[name].to(now[name].device))
        for name, _ in done.model.named_parameters()
        if name in now
    )
