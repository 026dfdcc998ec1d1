"""When a training saves a checkpoint, and how it goes on from one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from doubletime.errors import CheckpointError
from doubletime.training import session
from doubletime.training.agreement import Agreement
from doubletime.training.axes import axes_of
from doubletime.training.checkpoint import randomness, restoring
from doubletime.training.checkpoint.contents import Parts
from doubletime.training.checkpoint.saver import Saved, Saver
from doubletime.training.events import CheckpointSaved, Notice, Observer, Resumed
from doubletime.training.preemption import Preempted, Told
from doubletime.training.sender import Sender


@dataclass(frozen=True)
class Keeping:
    """Where a run's checkpoints lie, how often they are made, and what the run begins with.

    Attributes:
        folder: of this run's checkpoints; there, and on a file system that all hosts share.
        every: steps from one to the next; None makes one at each epoch's end, 0 none.
        keep: so many are kept, the newest.
        candidates: to go on from, the best first, the same on all ranks; none to begin anew.
    """

    folder: Path
    every: int | None = None
    keep: int = 3
    candidates: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What must be the same for a run to go on.

    Attributes:
        samples, global_batch, seed, epochs: as in RunStarted.
        steps: global batches per epoch.
    """

    samples: int
    global_batch: int
    seed: int
    epochs: int
    steps: int


@dataclass(frozen=True)
class Progress:
    """How far a run has come.

    Attributes:
        epoch: that it is in, from 0.
        step: how many steps of that epoch are done.
        loss_sum: of this rank, over the samples of that epoch so far.
        skipped: samples of that epoch, over all ranks, of steps that were skipped.
        step_state: what steps remember of those before.
        loss, metrics: of the epoch before; nan and empty before the first.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    skipped: int = 0
    step_state: Mapping[str, float] = field(default_factory=dict)
    loss: float = float("nan")
    metrics: Mapping[str, float] = field(default_factory=dict)


class Keeper:
    """Saves what is trained, at the right steps, on all ranks alike.

    Args:
        keeping: where, and how often.
        parts: what is trained.
        facts: what the run is.
        told: whether this process was told to end.
        observe: hears what becomes of checkpoints.
        sender: what ranks send each other, and what of it is still due.
    """

    def __init__(
        self,
        keeping: Keeping,
        parts: Parts,
        facts: Facts,
        told: Told,
        observe: Observer,
        sender: Sender,
    ) -> None:
        self._keeping, self._parts, self._facts = keeping, parts, facts
        self._told, self._observe, self._sender = told, observe, sender
        self._joined = session.current()
        self._axes = parts.axes or axes_of()
        self._saver = Saver(keeping.folder, keeping.keep)
        self._agreement = Agreement(3)
        self._is_of_one_before = False  # what is under way is said of a checkpoint before this one
        self._saved_step = self._whole_step = -1

    @property
    def may_resume(self) -> bool:
        """Whether there is something to go on from."""
        return bool(self._keeping.candidates)

    def resume(self) -> Progress | None:
        """Go on from the best candidate; collective.

        Returns:
            How far that was; None where there is none.

        Raises:
            CheckpointError: if it is of another model, data or recipe, or all are damaged.
        """
        found = restoring.restore(self._keeping.candidates, self._parts)
        if found is None:
            return None
        self._check(found)
        for why in found.passed_over:
            self._observe(Notice(f"{why}; the one before is taken"))
        position = found.run["position"]
        step = self._steps_until(position["epoch"], position["step"])
        mesh = found.run["mesh"]
        randomness.go_on(found.own, mesh, self._axes, step, self._facts.seed)
        if mesh == str(self._axes.mesh):
            loss_sum = float(found.own[0]["loss_sum"])
        else:  # one of those with other samples has all
            loss_sum = float(found.run["loss_sum"]) if self._axes.data_rank == 0 else 0.0
        sent = [own.get("sending", {}) for own in found.own]
        for note in self._sender.go_on(found.run.get("sending", {}), sent, found.world_size):
            self._observe(Notice(note))
        self._saved_step = step
        progress = Progress(**{**position, "loss_sum": loss_sum})
        self._observe(
            Resumed(
                str(found.path),
                progress.epoch + 1,
                progress.step,
                progress.epoch * self._facts.samples
                + min(progress.step * self._facts.global_batch, self._facts.samples),
                found.world_size,
            )
        )
        return progress

    def before_update(self) -> None:
        """Parameters are about to change: what is being copied of them must be done."""
        self._saver.await_copy()

    def after_step(self, progress: Progress) -> None:
        """A step has been made; collective.

        Raises:
            Preempted: if a rank was told to end: all is saved by then.
        """
        saver = self._saver
        stop, written, failed = self._agreement.after_step(
            self._told.is_told, saver.has_written, saver.has_failed
        )
        if saver.is_pending and not self._is_of_one_before and written == self._joined.world_size:
            saver.conclude(failed)
        self._is_of_one_before = False
        step = self._steps_until(progress.epoch, progress.step)
        every = self._keeping.every
        if every != 0 and (stop or (every is not None and step % every == 0)):
            self._save(step, progress)
        if stop:
            self.finish()
            raise Preempted(step, is_saved=self._whole_step == step)
        self._report()

    def after_epoch(self, progress: Progress) -> None:
        """An epoch is over, and evaluated; collective."""
        is_last = progress.epoch == self._facts.epochs
        if self._keeping.every is None or (is_last and self._keeping.every != 0):
            self._save(self._steps_until(progress.epoch, progress.step), progress)
        if is_last:
            self.finish()

    def finish(self) -> None:
        """Wait until what was begun is whole; collective."""
        self._agreement.settle()
        self._saver.settle()
        self._report()

    def close(self) -> None:
        """End the thread that writes; what was begun is lost, but for a rank that is alone."""
        if self._joined.world_size == 1:
            self.finish()
        self._saver.close()

    def _save(self, step: int, progress: Progress) -> None:
        if step == self._saved_step:
            return  # an epoch that ends with a checkpoint, or goes on from one
        self._saved_step = step
        self._sender.meet()
        position = asdict(progress)
        [loss_sum] = self._axes.sum_over_data([progress.loss_sum])
        own = {
            "loss_sum": position.pop("loss_sum"),
            "random": randomness.capture(),
            "sending": self._sender.own(),
        }
        run = {
            "facts": asdict(self._facts),
            "position": position,
            "mesh": str(self._axes.mesh),
            "loss_sum": loss_sum,
            "sending": self._sender.shared(),
        }
        self._saver.begin(step, self._parts, run, own)
        self._is_of_one_before = True

    def _steps_until(self, epoch: int, step: int) -> int:
        return epoch * self._facts.steps + step

    def _report(self) -> None:
        for outcome in self._saver.outcomes():
            if isinstance(outcome, Saved):
                self._whole_step = outcome.step
                event = CheckpointSaved(
                    str(outcome.path),
                    outcome.step,
                    outcome.nbytes,
                    outcome.pause_s,
                    outcome.total_s,
                )
                self._observe(event)
            else:
                self._observe(
                    Notice(
                        f"no checkpoint after step {outcome.step}: {outcome.why}; "
                        "training goes on, the checkpoints before are whole"
                    )
                )

    def _check(self, found: restoring.Restored) -> None:
        """Whether the run is the one that was saved: else samples would be seen twice, or never."""
        saved, here = found.run["facts"], asdict(self._facts)
        for name, option in (
            ("samples", "--limit"),
            ("global_batch", "--global-batch"),
            ("seed", "--seed"),
            ("epochs", "--epochs"),
        ):
            if name == "epochs" and self._parts.lr_schedule is None:
                continue  # without a schedule over them a run may become longer
            if saved[name] != here[name]:
                raise CheckpointError(
                    f"{found.path} was made with {name.replace('_', ' ')} {saved[name]}, "
                    f"this run has {here[name]}",
                    f"{option} {saved[name]}, or begin anew: --resume never, under another --name",
                )
