"""The functions behind `dt.…` that join floors: what ranks do, shown and recorded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from doubletime.errors import DataError
from doubletime.reporting.console import Watch, open_console, say
from doubletime.reporting.runlog import RunLog, new_folder
from doubletime.training import loop, session
from doubletime.training.builtin import BUILTIN
from doubletime.training.loop import Event, Notice, Recipe, RunDone
from doubletime.training.parallelize import sum_over_ranks
from doubletime.training.session import Session
from doubletime.training.task import Task, load_task

if TYPE_CHECKING:
    import torch


def init(backend: str | None = None, device: str | torch.device | None = None) -> Session:
    """Join the job that `mpiexec`, `srun`, `torchrun` or `doubletime run` started, or stand alone.

    Rank 0 says in one line on stderr what was found and chosen; a plain `python` says nothing. A second
    call returns the first one's session. A process group that the program made itself is used as it is.

    Args:
        backend: "mpi", "gloo" or "nccl"; by default what `doubletime run --backend` says, else mpi
            under an MPI launcher, nccl or gloo under torchrun, and no group at all for a plain
            `python`.
        device: where to compute; by default this rank's GPU if there is one, else the CPU.

    Returns:
        This process's part in the job.

    Raises:
        LauncherMismatchError: if the backend asked for contradicts the group that is there.
        DoubletimeError: what the backend raises where the job cannot be joined.
    """
    is_first = not session.has_joined()
    joined = session.init(backend, device)
    if is_first and joined.rank == 0 and joined.launcher is not None:
        say(joined.describe())
    return joined


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
