"""The axes of a mesh as this process has them: its place, its neighbours, and sums over them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from doubletime.errors import MeshError
from doubletime.training import session
from doubletime.training.mesh import Mesh


@dataclass(frozen=True)
class Axes:
    """This rank's place on a mesh.

    Attributes:
        mesh: whose axes.
        rank: of this process, in the whole job.
        devices: torch's mesh; None where ranks differ in their data only, or there is one.
        data_group: the ranks among which batches are divided, and which hold the same part of the
            model or shards of it; None means all ranks.
    """

    mesh: Mesh
    rank: int
    devices: DeviceMesh | None
    data_group: dist.ProcessGroup | None

    @property
    def stages(self) -> dist.ProcessGroup | None:
        """The ranks that hold other layers for the same samples; None if there are none."""
        return None if self.mesh.pp == 1 else self.sub_mesh("pp").get_group()

    def replicas(self, *, is_asked: bool = True) -> dist.ProcessGroup | None:
        """The ranks that hold the same numbers of the model; None for all.

        Args:
            is_asked: whether there must be some.

        Raises:
            MeshError: if there must, and each rank holds something else.
        """
        if self.mesh.is_data_parallel:
            return None
        if self.mesh.dp > 1:
            return self.sub_mesh("dp").get_group()
        if is_asked:
            raise MeshError(
                f'--check-every compares ranks, and on mesh "{self.mesh}" each holds something else',
                "leave it out, or add dp to the mesh",
            )
        return None

    @property
    def data_rank(self) -> int:
        """Whose share of each batch this rank works on."""
        return self.mesh.data_rank(self.rank)

    @property
    def seed(self) -> int:
        """What to add to a seed: ranks must not drop out the same units, but along tp they must."""
        return self.data_rank + self.mesh.data_size * self.mesh.coordinate(self.rank, "pp")

    @property
    def data_root(self) -> int:
        """The first rank of `data_group`, as the job numbers it."""
        groups = self.mesh.groups("dp", "fsdp")
        return next(group[0] for group in groups if self.rank in group)

    def sum_over_data(self, values: list[float]) -> list[float]:
        """Each value's sum over the ranks with other samples, in float64; collective."""
        if self.mesh.data_size == 1:
            return values
        device = session.current().device
        summed = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(summed, group=self.data_group)
        return [float(value) for value in summed]

    def sub_mesh(self, *axes: str) -> DeviceMesh:
        """Torch's mesh of those of these axes that have more than one rank, outer to inner."""
        if self.devices is None:
            raise AssertionError(f"mesh {self.mesh} has no devices")
        names = tuple(axis for axis in self.mesh.axes if axis in axes)
        return self.devices[names if len(names) > 1 else names[0]]


_made: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[Mesh, Axes]] = (
    weakref.WeakKeyDictionary()  # groups are made once, and end with the job's
)


def axes_of(asked: Mesh | str | None = None) -> Axes:
    """The axes of a mesh of all ranks; every rank must ask alike.

    Args:
        asked: the mesh, or its text; data parallel over all ranks by default.

    Raises:
        MeshError: if it cannot be read, or does not multiply to the job's ranks.
    """
    joined = session.current()
    mesh = Mesh.of(asked, joined.world_size)
    if mesh.is_data_parallel:
        return Axes(mesh, joined.rank, None, None)
    world = dist.group.WORLD
    if world is None:
        raise AssertionError("several ranks have a group")
    known = _made.setdefault(world, {})
    if mesh not in known:
        devices = mesh.device_mesh(joined.device.type)
        known[mesh] = Axes(mesh, joined.rank, devices, _data_group(mesh, devices))
    return known[mesh]


def _data_group(mesh: Mesh, devices: DeviceMesh) -> dist.ProcessGroup | None:
    if mesh.data_size == mesh.size:
        return None
    for axis in ("dp", "fsdp"):
        if 1 < getattr(mesh, axis) == mesh.data_size:
            return devices.get_group(axis)
    group: dist.ProcessGroup
    group, _ = dist.new_subgroups_by_enumeration(mesh.groups("dp", "fsdp"))
    return group
