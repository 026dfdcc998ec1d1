"""The numbers of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from doubletime.errors import TrainingError
from doubletime.training.mesh import Mesh
from doubletime.training.sending import Sending
from doubletime.training.switches import Switches
from doubletime.training.task import Task


@dataclass(frozen=True)
class Recipe:
    """The numbers of a run: a task's own where they are not given.

    Attributes:
        epochs, global_batch, seed: as in Task.
        limit: use only the first so many training samples; None for all.
        mesh: that the ranks form; None for data parallel over all.
        switches: what the run adds to its task.
        sending: what ranks send each other of gradients, and how often.
    """

    epochs: int
    global_batch: int
    seed: int
    limit: int | None = None
    mesh: Mesh | None = None
    switches: Switches = field(default_factory=Switches)
    sending: Sending = field(default_factory=Sending)

    @classmethod
    def of(
        cls,
        task: Task,
        *,
        epochs: int | None = None,
        global_batch: int | None = None,
        seed: int | None = None,
        limit: int | None = None,
        mesh: Mesh | str | None = None,
        switches: Switches | None = None,
        sending: Sending | None = None,
    ) -> Recipe:
        """The task's numbers, with those given in their place.

        Raises:
            TrainingError: if one is out of range.
            MeshError: if the mesh is none.
        """
        recipe = cls(
            task.epochs if epochs is None else epochs,
            task.global_batch if global_batch is None else global_batch,
            task.seed if seed is None else seed,
            limit,
            Mesh.parse(mesh) if isinstance(mesh, str) else mesh,
            switches or Switches(),
            sending or Sending(),
        )
        recipe.sending.check(recipe.switches)
        for name, value, least in (
            ("epochs", recipe.epochs, 1),
            ("global_batch", recipe.global_batch, 1),
            ("seed", recipe.seed, 0),
            ("limit", 1 if limit is None else limit, 1),
        ):
            if not isinstance(value, int):
                raise TrainingError(f"{name} is {value!r}, no whole number", f"{name} = {least}")
            if value < least:
                raise TrainingError(f"{name} is {value}", f"give {name} {least} or more")
        return recipe
