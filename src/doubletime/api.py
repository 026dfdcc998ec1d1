"""The functions behind `dt.…` that join floors: training with its progress shown and recorded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from doubletime.errors import DataError
from doubletime.reporting.console import Watch, open_console
from doubletime.reporting.runlog import RunLog, new_folder
from doubletime.training import loop, session
from doubletime.training.builtin import BUILTIN
from doubletime.training.loop import Event, Notice, Recipe, RunDone
from doubletime.training.parallelize import sum_over_ranks
from doubletime.training.task import Task, load_task


def train(
    task: Task | str,
    *,
    epochs: int | None = None,
    global_batch: int | None = None,
    seed: int | None = None,
    limit: int | None = None,
    backend: str | None = None,
    runs: Path | str = "runs",
    name: str | None = None,
) -> RunDone:
    """Train a task on all ranks of this job; the same as `doubletime train`.

    Rank 0 shows the progress, and records the run in a folder of its own.

    Args:
        task: a Task, or what the command takes: `task.py`, `task.py:Name`, a built-in name.
        epochs: in place of the task's own.
        global_batch: in place of the task's own.
        seed: in place of the task's own.
        limit: use only the first so many training samples.
        backend: as in `init`.
        runs: where run folders are made.
        name: of this run's folder; by default the task's name and the time.

    Returns:
        The last epoch's loss and metrics, and figures over all epochs.

    Raises:
        TaskError: if the task is not one.
        DataError: if its data cannot be had or divided.
        TrainingError: if the training may not go on, such as at a loss that is not finite.
    """
    chosen = find_task(task)
    joined = session.init(backend)
    chosen, notice = _prepare(chosen, joined)
    recipe = Recipe.of(chosen, epochs=epochs, global_batch=global_batch, seed=seed, limit=limit)
    with ExitStack() as stack:
        observers: list[Callable[[Event], None]] = []
        if joined.rank == 0:
            folder = Path(runs, name) if name else new_folder(Path(runs), chosen.name)
            observers.append(stack.enter_context(RunLog(folder)))
            observers.append(stack.enter_context(Watch(open_console())))

        def observe(event: Event) -> None:
            for observer in observers:
                observer(event)

        if notice is not None:
            observe(notice)
        return loop.run(chosen, recipe, observe)


def find_task(task: Task | str) -> Task:
    """The task itself, or the one that its file or name means.

    Raises:
        TaskError: if there is none.
    """
    return load_task(task, BUILTIN) if isinstance(task, str) else task


def substitute(task: Task, error: DataError) -> tuple[Task, Notice]:
    """What to train where the task's data could not be had, and the words that say so.

    Raises:
        DataError: the given one, if the task has no substitute.
    """
    other = task.substitute()
    if other is None:
        raise error
    return other, Notice(f"{error}\n  instead of {task.name}, this trains {other.name}")


def _prepare(task: Task, joined: session.Session) -> tuple[Task, Notice | None]:
    """Fetch the data once per host; all ranks take the substitute if any host needs it."""
    error: DataError | None = None
    if joined.local_rank == 0:
        try:
            task.prepare()
        except DataError as caught:
            error = caught
    failures = sum_over_ranks([0.0 if error is None else 1.0])[0]
    if not failures:
        return task, None
    return substitute(task, error or DataError(f"the data of {task.name} is missing on a host"))
