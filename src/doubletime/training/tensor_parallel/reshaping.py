"""Where divided features are after a value took another shape. Pure."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, fx, nn


class RefusedError(Exception):
    """Why a stretch of a model cannot be divided; never leaves this package."""


@dataclass(frozen=True)
class Divided:
    """How a value is divided among ranks.

    Attributes:
        dim: of its features, from the end.
        features: how many there are over all ranks.
        in_blocks: whether each feature is a block of several numbers along `dim`.
        ndim: how many dimensions the value has, where that is known.
    """

    dim: int
    features: int
    in_blocks: bool = False
    ndim: int | None = None

    @property
    def spatial(self) -> int:
        """How many dimensions come after the features'."""
        return -1 - self.dim

    def from_end(self, dim: Any) -> int:
        """A dimension, counted from the end.

        Raises:
            RefusedError: if it is counted from the start, and it is not known how many there are.
        """
        if not isinstance(dim, int) or (dim >= 0 and self.ndim is None):
            raise RefusedError(f"dimension {dim} may be that of its features")
        return dim if dim < 0 or self.ndim is None else dim - self.ndim


def flattened(divided: Divided, first: Any, last: Any) -> Divided:
    """After several dimensions became one."""
    if last != -1 and divided.from_end(last) != -1:
        raise RefusedError("it is flattened otherwise than up to its last dimension")
    if divided.ndim is not None:
        first = divided.from_end(first)
        if first == divided.dim:
            return replace(divided, dim=-1, in_blocks=True, ndim=divided.ndim + 1 + first)
    elif first == 1 and divided.spatial:
        # Batch, channels, then space: an input without a batch would not fit what follows.
        return replace(divided, dim=-1, in_blocks=True, ndim=2)
    raise RefusedError("flatten() may mix its features with another dimension")


def in_heads(divided: Divided, sizes: Any, size: int) -> Divided:
    """After the features of each place became heads, as many as there are: unflatten(-1, (-1, n)).

    That the value had three dimensions, samples, places and features, is to be checked when it runs.
    """
    if divided.dim != -1 or divided.in_blocks or divided.ndim is not None:
        raise RefusedError("it is unflattened elsewhere than at its features")
    if len(sizes) != 2 or sizes[0] != -1 or not isinstance(sizes[1], int):
        raise RefusedError(
            f"unflatten() names the number of heads: {tuple(sizes)}; write -1 for it"
        )
    heads, rest = divmod(divided.features, sizes[1])
    if rest or heads % size:
        raise RefusedError(f"its {heads} heads do not divide by {size}")
    return Divided(-2, heads, ndim=4)


def transposed(divided: Divided, first: Any, second: Any) -> Divided:
    """After two dimensions changed places."""
    one, other = divided.from_end(first), divided.from_end(second)
    if divided.ndim is None and divided.dim in (one, other):
        raise RefusedError("transpose() moves its features")
    return replace(divided, dim={one: other, other: one}.get(divided.dim, divided.dim))


def viewed(divided: Divided, call: fx.Node, size: int) -> Divided:
    """After view() or reshape() to sizes of which the features' is left open."""
    sizes = list(call.args[1:])
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = list(sizes[0])
    asked = [_place_asked_for(each) for each in sizes]
    if asked == [0, None] and sizes[1] == -1:
        return flattened(divided, 1, -1)
    if asked == [0, 1, None] and sizes[2] == -1 and divided.ndim == 4:
        return flattened(divided, 2, -1)
    if asked == [0, 1, None, None] and sizes[2] == -1:
        return in_heads(divided, sizes[2:], size)
    raise RefusedError(
        f"{call.target}() names the number of features: let it be -1, or use flatten()"
    )


def averaged(divided: Divided, call: fx.Node) -> Divided:
    """After a mean over just the dimensions behind the features'."""
    dims: Any = call.kwargs.get("dim", call.args[1] if len(call.args) == 2 else call.args[1:])
    spatial = divided.spatial
    if isinstance(dims, int):
        dims = (dims,)
    if spatial and isinstance(dims, tuple | list) and not call.kwargs.keys() - {"dim"}:
        found = sorted(dim for dim in dims if isinstance(dim, int))
        from_start = list(range(2, 2 + spatial)) if divided.ndim is None else []
        if found in (list(range(-spatial, 0)), from_start):
            return Divided(-1, divided.features, divided.in_blocks)
    raise RefusedError("mean() may be over its features")


def asks_for_batch(call: fx.Node) -> bool:
    """Whether only the number of samples is asked for, which is not divided."""
    if call.target is getattr:
        return call.args[1] == "shape" and all(map(asks_for_batch, call.users))
    return _place_asked_for(call) == 0


def _place_asked_for(value: Any) -> int | None:
    """Which size of some value this is: x.size(place) or x.shape[place]."""
    if not isinstance(value, fx.Node):
        return None
    place: Any = value.args[1] if len(value.args) == 2 else None
    source: Any = value.args[0] if value.args else None
    if value.target is operator.getitem and isinstance(source, fx.Node):
        is_shape = source.target is getattr and source.args[1] == "shape"
        is_shape = is_shape or (source.target == "size" and len(source.args) == 1)
        return place if is_shape and isinstance(place, int) else None
    return place if value.target == "size" and isinstance(place, int) else None


def is_alike_for_heads(value: Any, root: nn.Module) -> bool:
    """Whether a value that is not divided is the same for each head: a mask of the module's own."""
    while isinstance(value, fx.Node):
        if value.op == "get_attr":
            owner, _, name = str(value.target).rpartition(".")
            tensor = getattr(root.get_submodule(owner), name)
            return isinstance(tensor, Tensor) and (tensor.ndim < 3 or tensor.shape[-3] == 1)
        if value.target is operator.getitem:
            picked = value.args[1]
            if not isinstance(picked, tuple) or not all(isinstance(each, slice) for each in picked):
                return False
        elif value.target not in (operator.eq, operator.ne, "bool", "logical_not", operator.invert):
            return False
        value = value.args[0]
    return value is None
