"""The tree of errors: each says what was wrong, where, and what mends it.

* DoubletimeError
  - UnitError          a size, time or rate that cannot be read
  - LauncherMismatchError  what the launcher said and what MPI found disagree: two MPIs, no launcher
  - MPIError           no MPI library, or one that cannot do what is asked
  - CollectiveError    a collective that not all ranks entered alike, or that a peer left
  - ScheduleError      an algorithm asked for what it does not define, or whose schedule is wrong
  - UnsupportedError   a type, operation or argument that a backend cannot carry out
  - LaunchError        a command that cannot be started as asked
  - TaskError          a task file that does not describe a task
  - DataError          data that is missing, damaged or too small
  - TrainingError      a training run that may not go on (a loss that is not finite)
    - MeshError        a mesh that the ranks, or what is trained on it, cannot take
    - PipelineError    a model that cannot be cut into the stages that are asked for
    - CheckpointError  a checkpoint that cannot be written, is damaged, or is of something else
"""

from __future__ import annotations


class DoubletimeError(RuntimeError):
    """What was wrong and where; `remedy` is the command or line that mends it.

    Args:
        what: one sentence, with the values that were found.
        remedy: the line that mends it, shown on a line of its own.
    """

    def __init__(self, what: str, remedy: str | None = None) -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(what if remedy is None else f"{what}\n  remedy: {remedy}")

    def __reduce__(self) -> tuple[type[DoubletimeError], tuple[str, str | None]]:
        """Pickle by the two arguments, so that the error crosses processes whole."""
        return type(self), (self.what, self.remedy)


class UnitError(DoubletimeError, ValueError):
    """A size, time or rate that cannot be read."""


class LauncherMismatchError(DoubletimeError):
    """What the launcher said and what MPI found disagree."""


class MPIError(DoubletimeError):
    """No MPI library, or one that cannot do what is asked."""


class CollectiveError(DoubletimeError):
    """A collective that not all ranks entered alike, or that a peer left."""


class ScheduleError(DoubletimeError):
    """An algorithm that is asked for what it does not define, or a schedule that is wrong."""


class UnsupportedError(DoubletimeError, TypeError):
    """A type, operation or argument that the backend cannot carry out."""


class LaunchError(DoubletimeError):
    """A command that cannot be started as asked."""


class TaskError(DoubletimeError):
    """A task file that does not describe a task."""


class DataError(DoubletimeError):
    """Data that is missing, damaged or too small."""


class TrainingError(DoubletimeError):
    """A training run that may not go on."""


class MeshError(TrainingError):
    """A mesh that the ranks, or what is trained on it, cannot take."""


class PipelineError(TrainingError):
    """A model that cannot be cut into the stages that are asked for, or be run in them."""


class CheckpointError(TrainingError):
    """A checkpoint that cannot be written, is damaged, or is of something else."""
