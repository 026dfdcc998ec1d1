"""The functions behind `dt.…` that join floors: what ranks do, shown and recorded."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, cast

from doubletime import failure
from doubletime.cluster.restart import RESTART_VARIABLE
from doubletime.errors import DataError, TrainingError
from doubletime.reporting import run_folder
from doubletime.reporting.console import Watch, open_console, say
from doubletime.reporting.runlog import RunLog
from doubletime.training import loop, session
from doubletime.training.builtin import BUILTIN
from doubletime.training.checkpoint import folder
from doubletime.training.checkpoint.exchange import on_rank_0
from doubletime.training.keeping import Keeping
from doubletime.training.loop import Event, Notice, Recipe, RunDone
from doubletime.training.mesh import Mesh
from doubletime.training.parallelize import sum_over_ranks
from doubletime.training.preemption import EXIT_CODE, Preempted
from doubletime.training.reproducible import check as check_reproducible
from doubletime.training.sending import Sending, SendingOptions
from doubletime.training.session import Session
from doubletime.training.switches import Switches, SwitchOptions
from doubletime.training.task import Task, load_task

if TYPE_CHECKING:
    from typing import Unpack  # of Python 3.11 on

    import torch

    from doubletime.training.verify.verdict import Verdict


class RunOptions(SwitchOptions, SendingOptions, total=False):
    """What a run may add to its task."""


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
    mesh: Mesh | str | None = None,
    backend: str | None = None,
    runs: Path | str = "runs",
    name: str | None = None,
    checkpoint_every: int | None = None,
    keep: int = 3,
    resume: str | Path | None = None,
    **options: Unpack[RunOptions],
) -> RunDone:
    """Train a task on all ranks of this job; the same as `doubletime train`.

    Rank 0 shows the progress, and records the run in a folder of its own. Told to end by SIGTERM, all
    ranks save a checkpoint and leave the program with exit code 143.

    Args:
        task: a Task, or what the command takes: `task.py`, `task.py:Name`, a built-in name.
        epochs: in place of the task's own.
        global_batch: in place of the task's own.
        seed: in place of the task's own.
        limit: use only the first so many training samples.
        mesh: how the ranks divide data, parameters, layers and tensors, such as "dp=2,fsdp=2"; by
            default they divide data only.
        backend: as in `init`.
        runs: where run folders are made.
        name: of this run's folder; by default the task's name and the time.
        checkpoint_every: steps from one checkpoint to the next; 0 for none, by default one at each
            epoch's end.
        keep: so many checkpoints are kept, the newest.
        resume: "auto" to go on from the newest whole checkpoint of this run's folder (without a name,
            of the task's last run), "never", or the path of a checkpoint or run; by default "auto" in a
            job that `doubletime run --max-restarts` has started again, else "never".
        options: what the run adds to its task, such as `accumulate=4` or `precision="bf16"`: the
            attributes of `doubletime.training.switches.Switches` say which there are; and what ranks
            send, such as `compress="powersgd:2"`: those of `doubletime.training.sending.Sending`.

    Returns:
        The last epoch's loss and metrics, and figures over all epochs.

    Raises:
        TaskError: if the task is not one.
        DataError: if its data cannot be had or divided.
        MeshError: if the ranks do not form the mesh, or the task cannot take it.
        TrainingError: if the training may not go on, such as at a loss that is not finite.
        CheckpointError: if checkpoints cannot be written, or the one to go on from is damaged or of
            something else.
    """
    chosen = find_task(task)
    joined = session.init(backend)
    chosen, notice = _prepare(chosen, joined)
    switches, sending = _sorted(options)
    recipe = Recipe.of(
        chosen,
        epochs=epochs,
        global_batch=global_batch,
        seed=seed,
        limit=limit,
        mesh=None if mesh is None else Mesh.of(mesh, joined.world_size),
        switches=switches,
        sending=sending,
    )
    place, keeping = _keeping(
        Path(runs), name, chosen.name, checkpoint_every, keep, _how_to_begin(resume)
    )
    with ExitStack() as stack:
        observers: list[Callable[[Event], None]] = []
        if joined.rank == 0:
            observers.append(stack.enter_context(RunLog(place.folder, goes_on=place.goes_on)))
            observers.append(stack.enter_context(Watch(open_console())))

        def observe(event: Event) -> None:
            for observer in observers:
                observer(event)

        if notice is not None:
            observe(notice)
        try:
            return loop.run(chosen, recipe, observe, keeping)
        except Preempted as ended:
            told = str(ended)
            if ended.is_saved:
                told += ", which is saved: --resume auto goes on from there"
            if joined.rank == 0:  # who knows whether it is saved; one record is shown
                observe(Notice(told))
                failure.write(failure.now(joined.rank, EXIT_CODE, f"{told}\n"))
            session.leave()
            raise SystemExit(EXIT_CODE) from ended


def _sorted(options: RunOptions) -> tuple[Switches, Sending]:
    """What the options ask for; what is no option is refused as no switch."""
    names = SendingOptions.__annotations__
    switches = {name: value for name, value in options.items() if name not in names}
    sending = {name: value for name, value in options.items() if name in names}
    return (
        Switches.of(cast("SwitchOptions", switches)),
        Sending.of(cast("SendingOptions", sending)),
    )


def _how_to_begin(resume: str | Path | None) -> str:
    if resume is not None:
        return str(resume)
    return run_folder.AUTO if os.environ.get(RESTART_VARIABLE) else run_folder.NEVER


def _keeping(
    runs: Path, name: str | None, task: str, every: int | None, keep: int, resume: str
) -> tuple[run_folder.Chosen, Keeping | None]:
    """The run's folder, as rank 0 chooses it, and what becomes of checkpoints; collective.

    Raises:
        TrainingError: if a number is out of range.
        CheckpointError: if there is nothing to go on from, or a host cannot write there.
    """
    if keep < 1 or (every is not None and every < 0):
        option, value = ("keep", keep) if keep < 1 else ("checkpoint_every", every)
        raise TrainingError(f"{option} is {value}", f"give {option} 1 or more")

    place = on_rank_0(lambda: run_folder.choose(runs, name, task, resume))
    if every == 0 and not place.candidates:
        return place, None
    checkpoints = place.folder / run_folder.CHECKPOINTS
    if every != 0:
        folder.share(checkpoints)
    return place, Keeping(checkpoints, every, keep, place.candidates)


def verify(
    task: Task | str,
    records: Path,
    *,
    ranks: int,
    steps: int = 5,
    global_batch: int | None = None,
    seed: int | None = None,
    mesh: Mesh | str | None = None,
    backend: str | None = None,
    tolerance: float | None = None,
    reproducible: bool = False,
) -> Verdict | None:
    """One of the two jobs of `doubletime verify`: a job of 1 rank records, one of more compares.

    Args:
        task: as in `train`, as are the numbers in its place.
        records: a folder on rank 0's host, the same for both.
        ranks: of the job that compares.
        steps: how many.
        global_batch: in place of the task's own.
        seed: in place of the task's own.
        mesh: that these ranks form, as in `train`.
        backend: as in `init`.
        tolerance: up to which relative difference in the task's own precision is equal; None for what
            rounding explains, in float64.
        reproducible: train reproducibly, and call nothing but the same bits equal.

    Returns:
        What was found, on rank 0 of the job that compares; else None.

    Raises:
        TaskError: if the task is not one.
        DataError: if its data cannot be had or divided, or there are no records.
        MeshError: if the ranks do not form the mesh, or the task cannot take it.
        TrainingError: if the training may not go on, such as at a loss that is not finite.
    """
    from doubletime.training.verify import bits, sides

    chosen = find_task(task)
    joined = session.init(backend)
    chosen, _ = _prepare(chosen, joined)
    formed = Mesh.of(mesh, ranks)
    if reproducible:
        check_reproducible(formed, Switches(reproducible=True))
        recipe = Recipe.of(
            chosen, global_batch=global_batch, seed=seed, switches=Switches(reproducible=True)
        )
        if joined.world_size == 1:
            bits.record(chosen, recipe, steps, records)
            return None
        return bits.against(chosen, recipe, steps, records)
    if joined.world_size == 1:
        recipe = Recipe.of(chosen, global_batch=global_batch, seed=seed)
        sides.record(chosen, recipe, steps, formed.data_size, records)
        return None
    recipe = Recipe.of(chosen, global_batch=global_batch, seed=seed, mesh=formed)
    return sides.against(chosen, recipe, steps, records, tolerance)


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
