"""A mesh: how many ranks share data, parameters, layers and tensors, and which rank stands where."""

from __future__ import annotations

import difflib
import math
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

from doubletime.errors import MeshError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXES = ("pp", "dp", "fsdp", "tp")  # outer to inner: neighbours talk most


@dataclass(frozen=True)
class Mesh:
    """How many ranks each axis has; a mesh has their product.

    Ranks are laid out with `pp` outermost, then `dp`, `fsdp` and, innermost, `tp`: rank 0 and rank 1
    are neighbours along `tp` where there is one. Batches are divided among `dp` and `fsdp` ranks;
    ranks along `tp` and `pp` work on the same samples.

    Attributes:
        dp: replicas that hold all parameters, and average gradients.
        fsdp: ranks that hold a shard of each parameter, and gather them when they compute.
        pp: stages of a pipeline, each with some of the layers.
        tp: ranks that divide each layer's tensors.

    Raises:
        MeshError: if an axis has no rank.
    """

    dp: int = 1
    fsdp: int = 1
    pp: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        """Refuse axes without ranks."""
        for axis, size in zip((each.name for each in fields(self)), astuple(self), strict=True):
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise MeshError(f"axis {axis} of the mesh is {size!r}", f"give {axis} 1 or more")

    @classmethod
    def parse(cls, text: str, world_size: int | None = None) -> Mesh:
        """The mesh that a text such as "dp=2,pp=2" describes.

        Args:
            text: axes and their sizes; an axis that is not named has size 1.
            world_size: of the job that shall form the mesh; None where that is not known yet.

        Raises:
            MeshError: if it cannot be read, or does not multiply to `world_size`.
        """
        sizes: dict[str, int] = {}
        for part in text.split(","):
            axis, separator, size = (each.strip() for each in part.partition("="))
            if axis not in AXES:
                near = difflib.get_close_matches(axis, AXES, n=1)
                guess = f"did you mean {near[0]}? " if near else ""
                raise MeshError(
                    f"mesh {text!r} has an axis {axis!r}" if axis else f"mesh {text!r} has no axis",
                    f"{guess}axes are dp, fsdp, pp and tp: --mesh dp=2,tp=2",
                )
            if axis in sizes:
                raise MeshError(f"mesh {text!r} gives {axis} twice", f"give {axis} once")
            if not separator or not size.isascii() or not size.isdigit() or int(size) < 1:
                raise MeshError(
                    f"mesh {text!r} gives {axis} no number of ranks", f"such as {axis}=2"
                )
            sizes[axis] = int(size)
        mesh = cls(**sizes)
        if world_size is not None:
            mesh.check(world_size)
        return mesh

    @classmethod
    def of(cls, asked: Mesh | str | None, world_size: int) -> Mesh:
        """The mesh that is asked for, as a text or not; data parallel over all ranks by default.

        Raises:
            MeshError: if it cannot be read, or does not multiply to `world_size`.
        """
        if asked is None:
            return cls(dp=world_size)
        if isinstance(asked, str):
            return cls.parse(asked, world_size)
        asked.check(world_size)
        return asked

    def check(self, world_size: int) -> None:
        """Whether so many ranks form it.

        Raises:
            MeshError: if not.
        """
        if self.size == world_size:
            return
        others = self.size // self.dp
        remedy = f"start {self.size} rank{'s' * (self.size > 1)}"
        if world_size % others == 0:
            fitting = Mesh(world_size // others, self.fsdp, self.pp, self.tp)
            remedy = f"--mesh {fitting}, or {remedy}"
        raise MeshError(
            f'mesh "{self}" needs {self.size} rank{"s" * (self.size > 1)}, this job has {world_size}',
            remedy,
        )

    def __str__(self) -> str:
        """The text that `parse` takes: axes with more than one rank, outer to inner."""
        return ",".join(f"{axis}={getattr(self, axis)}" for axis in self.axes) or "dp=1"

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes with more than one rank, outer to inner."""
        return tuple(axis for axis in AXES if getattr(self, axis) > 1)

    @property
    def size(self) -> int:
        """How many ranks form it."""
        return math.prod(getattr(self, axis) for axis in AXES)

    @property
    def data_size(self) -> int:
        """Among how many ranks each global batch is divided."""
        return self.dp * self.fsdp

    @property
    def is_data_parallel(self) -> bool:
        """Whether each rank holds the whole model."""
        return self.size == self.dp

    def coordinate(self, rank: int, axis: str) -> int:
        """Where a rank stands along an axis."""
        inner = AXES[AXES.index(axis) + 1 :]
        size: int = getattr(self, axis)
        stride = math.prod(int(getattr(self, each)) for each in inner)
        return rank // stride % size

    def data_rank(self, rank: int) -> int:
        """Whose share of each global batch a rank works on, of `data_size`."""
        return self.coordinate(rank, "dp") * self.fsdp + self.coordinate(rank, "fsdp")

    def groups(self, *axes: str) -> list[list[int]]:
        """The ranks that differ along these axes only, one list for each place on the others.

        Each rank stands in exactly one list; ranks of a list are in ascending order, which is that
        of their coordinates.
        """
        others = [axis for axis in AXES if axis not in axes]
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.size):
            place = tuple(self.coordinate(rank, axis) for axis in others)
            found.setdefault(place, []).append(rank)
        return list(found.values())

    def device_mesh(self, device_type: str) -> DeviceMesh:
        """Torch's mesh of this process's ranks, its dims named as the axes; collective.

        Args:
            device_type: "cpu" or "cuda".

        Returns:
            A mesh with a dim for each axis with more than one rank, outer to inner; one dim "dp" of
            size 1 where there is one rank.
        """
        from torch.distributed.device_mesh import init_device_mesh

        names = self.axes or ("dp",)
        shape = tuple(getattr(self, axis) for axis in names)
        return init_device_mesh(device_type, shape, mesh_dim_names=names)
