"""Regions: stretches of a model that ranks divide, from layers split by outputs to ones by inputs.

A region begins at layers whose outputs are divided and follows them through whatever treats each
feature by itself, until layers that take divided inputs. Only what is shown to stay divided in the
same way, on all paths, is in one: all else refuses it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import fx, nn
from torch.nn import functional

from doubletime.training.tensor_parallel import layers, reshaping
from doubletime.training.tensor_parallel.plan import Part, Role
from doubletime.training.tensor_parallel.reshaping import Divided, RefusedError


@dataclass
class Region:
    """A stretch that is divided.

    Attributes:
        parts: what ranks have of each of its layers, by name.
        divided: how each value in it is.
        wanted: values that must be divided so, too.
        positions: of its layers' calls in the graph.
    """

    parts: dict[str, Part] = field(default_factory=dict)
    divided: dict[fx.Node, Divided] = field(default_factory=dict)
    wanted: list[tuple[fx.Node, Divided]] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


class Grower:
    """Grows regions in one graph.

    Args:
        graph: of a module.
        root: that module.
        size: how many ranks divide them.
        refused: why a layer cannot be divided, by name, where that is known beforehand.
    """

    def __init__(
        self,
        graph: fx.Graph,
        root: nn.Module,
        size: int,
        refused: Mapping[str, str],
    ) -> None:
        self.root, self.size, self.refused = root, size, refused
        self.modules = dict(root.named_modules())
        self.positions = {node: number for number, node in enumerate(graph.nodes)}
        self.calls: dict[str, list[fx.Node]] = {}
        for node in graph.nodes:
            if node.op == "call_module":
                self.calls.setdefault(node.target, []).append(node)

    def grow(self, name: str) -> Region:
        """The region that begins with a layer.

        Raises:
            RefusedError: if there is none, with the reason.
        """
        region, todo = Region(), []
        for call in self.calls.get(name, []):
            todo += self._begin(region, call)
        while todo:
            node = todo.pop()
            for user in node.users:
                todo += self._follow(region, user, node)
        if all(part.role is not Role.INPUTS for part in region.parts.values()):
            raise RefusedError("no layer follows that could take divided inputs")
        for node, divided in region.wanted:
            if region.divided.get(node) != divided:
                raise RefusedError(
                    f"it meets {node.name}, which is divided otherwise or not at all"
                )
        has_heads = any(divided.ndim == 4 for divided in region.divided.values())
        for each, part in region.parts.items():
            self._expect_all_calls(region, each, part.role)
            if has_heads and part.role is Role.OUTPUTS:
                region.parts[each] = replace(part, ndim=3)
        region.positions = sorted(
            self.positions[call] for each in region.parts for call in self.calls[each]
        )
        return region

    def _expect_all_calls(self, region: Region, name: str, role: Role) -> None:
        """A layer that is used several times must be divided alike each time."""
        for call in self.calls[name]:
            value = call.args[0] if role is Role.INPUTS else call
            if value not in region.divided:
                raise RefusedError(f"{name} is used elsewhere too")

    def _assign(self, region: Region, name: str, part: Part) -> None:
        if name in self.refused:
            raise RefusedError(f"{name}: {self.refused[name]}")
        if region.parts.setdefault(name, part) != part:
            raise RefusedError(f"{name} would have to be divided in two ways")

    def _begin(self, region: Region, call: fx.Node) -> list[fx.Node]:
        """Divide a layer's outputs; returns the values whose users are to be looked at."""
        layer = self.modules[str(call.target)]
        outputs = layers.outputs_of(layer)
        if outputs is None:
            raise RefusedError(f"{call.target} is no layer whose outputs can be divided")
        features, dim = outputs
        self._divisible(features, f"{call.target} has {features} outputs")
        if len(call.args) != 1 or call.kwargs:
            raise RefusedError(f"{call.target} is called with more than its input")
        self._assign(region, str(call.target), Part(Role.OUTPUTS, dim))
        return self._reach(region, call, Divided(dim, features))

    def _reach(self, region: Region, node: fx.Node, divided: Divided) -> list[fx.Node]:
        """Note how a value is divided."""
        if node in region.divided:
            if region.divided[node] != divided:
                raise RefusedError(f"{node.name} would be divided in two ways")
            return []
        region.divided[node] = divided
        return [node]

    def _divisible(self, number: int, what: str) -> None:
        if number % self.size:
            raise RefusedError(f"{what}, which do not divide by {self.size}")

    def _follow(self, region: Region, user: fx.Node, node: fx.Node) -> list[fx.Node]:
        """What a user of a divided value makes of it."""
        divided = region.divided[node]
        if user.op == "call_module":
            return self._follow_layer(region, user, divided)
        if user.op == "output":
            raise RefusedError(
                "its outputs leave the model, or the part of it that can be followed"
            )
        if user.op == "call_function":
            return self._follow_function(region, user, node, divided)
        return self._follow_method(region, user, node, divided)

    def _follow_layer(self, region: Region, call: fx.Node, divided: Divided) -> list[fx.Node]:
        name = str(call.target)
        layer, kind = self.modules[name], type(self.modules[name])
        if len(call.args) != 1 or call.kwargs:
            raise RefusedError(f"{name} takes more than one value")
        spatial = divided.spatial
        if not kind.__module__.startswith("torch.nn"):
            raise RefusedError(f"{name}, a {kind.__name__}, may do otherwise than torch's layers")
        if kind in layers.ELEMENTWISE_LAYERS:
            return self._reach(region, call, divided)
        if layers.POOLS.get(kind) == spatial and not getattr(layer, "return_indices", False):
            return self._reach(region, call, divided)
        if isinstance(layer, nn.Softmax) and divided.from_end(layer.dim) != divided.dim:
            return self._reach(region, call, divided)
        if isinstance(layer, nn.Flatten):
            return self._reach(
                region, call, reshaping.flattened(divided, layer.start_dim, layer.end_dim)
            )
        if isinstance(layer, nn.Linear):
            return self._end(region, name, layer.in_features, divided, is_here=divided.dim == -1)
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and layer.groups == 1:
            is_here = layers.CONVOLUTIONS.get(kind) == spatial
            return self._end(region, name, layer.in_channels, divided, is_here=is_here)
        after = self._by_feature(layer, divided)
        if after is None:
            raise RefusedError(f"{name}, a {kind.__name__}, needs all features at once")
        ndim = 1 - divided.dim if isinstance(layer, layers.BY_CHANNEL) else None
        self._assign(region, name, Part(Role.FEATURES, divided.dim, ndim))
        return self._reach(region, call, after)

    def _by_feature(self, layer: nn.Module, divided: Divided) -> Divided | None:
        """How the outputs of a layer are divided that has a part for each feature, if it has."""
        kind, spatial = type(layer), divided.spatial
        if isinstance(layer, nn.PReLU):
            return divided if layer.num_parameters == 1 else None
        if kind in layers.DROPOUTS:
            by_unit = kind is nn.Dropout
            return divided if by_unit or layers.DROPOUTS[kind] == spatial else None
        if divided.in_blocks:
            return None
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            fits = layers.BATCH_NORMS.get(kind) == spatial or (kind, spatial) == (nn.BatchNorm1d, 0)
            return divided if fits and layer.num_features == divided.features else None
        if isinstance(layer, nn.GroupNorm) and layer.num_channels == divided.features:
            self._divisible(layer.num_groups, f"it has {layer.num_groups} groups")
            return divided
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            fits = layers.CONVOLUTIONS.get(kind) == spatial
            if not fits or layer.in_channels != divided.features:
                return None
            self._divisible(layer.groups, f"it has {layer.groups} groups")
            return Divided(divided.dim, layer.out_channels)
        return None

    def _end(
        self, region: Region, name: str, inputs: int, divided: Divided, *, is_here: bool
    ) -> list[fx.Node]:
        """Divide a layer's inputs: here the region ends."""
        is_whole = (
            inputs % divided.features == 0 if divided.in_blocks else inputs == divided.features
        )
        if not is_here or not is_whole:
            raise RefusedError(f"{name} takes its inputs along another dimension")
        if type(self.modules[name]) not in (nn.Linear, *layers.CONVOLUTIONS):
            raise RefusedError(f"{name} is a {type(self.modules[name]).__name__}")
        self._assign(region, name, Part(Role.INPUTS, divided.dim))
        return []

    def _follow_function(
        self, region: Region, call: fx.Node, node: fx.Node, divided: Divided
    ) -> list[fx.Node]:
        target: Any = call.target
        if target in layers.BINARY_FUNCTIONS:
            return self._combine(region, call, divided)
        if target in layers.PRODUCTS:
            return self._multiply(region, call, divided)
        if target is functional.scaled_dot_product_attention:
            return self._attend(region, call, divided)
        is_only = call.all_input_nodes == [node]
        if target in layers.ELEMENTWISE_FUNCTIONS and is_only:
            return self._reach(region, call, divided)
        is_pool = layers.POOL_FUNCTIONS.get(target) == divided.spatial
        if is_pool and is_only and not call.kwargs.get("return_indices"):
            return self._reach(region, call, divided)
        if target in (getattr, operator.getitem) and reshaping.asks_for_batch(call):
            return []
        after = self._moved(getattr(target, "__name__", str(target)), call, divided)
        return self._reach(region, call, after)

    def _follow_method(
        self, region: Region, call: fx.Node, node: fx.Node, divided: Divided
    ) -> list[fx.Node]:
        target = str(call.target)
        if target in layers.BINARY_METHODS:
            return self._combine(region, call, divided)
        if target == "matmul":
            return self._multiply(region, call, divided)
        if target == "masked_fill" and call.args[0] is node:
            if divided.dim != -3 or not reshaping.is_alike_for_heads(call.args[1], self.root):
                raise RefusedError("the mask may differ between its features")
            return self._reach(region, call, divided)
        is_only = call.all_input_nodes == [node]
        if target in layers.ELEMENTWISE_METHODS and is_only:
            return self._reach(region, call, divided)
        if target == "size" and reshaping.asks_for_batch(call):
            return []
        return self._reach(region, call, self._moved(target, call, divided))

    def _moved(self, name: str, call: fx.Node, divided: Divided) -> Divided:
        """Where features are after a function or method that looks at dimensions."""
        rest: tuple[Any, ...] = call.args[1:]
        if name == "flatten":
            start = call.kwargs.get("start_dim", rest[0] if rest else 0)
            end = call.kwargs.get("end_dim", rest[1] if len(rest) > 1 else -1)
            return reshaping.flattened(divided, start, end)
        if name in ("transpose", "swapaxes") and len(rest) == 2:
            return reshaping.transposed(divided, *rest)
        if name == "unflatten" and len(rest) == 2 and rest[0] == -1:
            return reshaping.in_heads(divided, rest[1], self.size)
        if name in ("view", "reshape"):
            return reshaping.viewed(divided, call, self.size)
        if name == "mean":
            return reshaping.averaged(divided, call)
        if name == "softmax":
            if divided.from_end(call.kwargs.get("dim", rest[0] if rest else 0)) != divided.dim:
                return divided
            raise RefusedError("softmax() needs all its features at once")
        if name == "dropout":
            raise RefusedError("F.dropout would drop the same units of each part: use nn.Dropout")
        raise RefusedError(f"{name}() need not treat each feature by itself")

    def _combine(self, region: Region, call: fx.Node, divided: Divided) -> list[fx.Node]:
        """Two values, feature by feature: both must be divided alike."""
        reached = self._reach(region, call, divided)
        for other in call.all_input_nodes:
            reached += self._want(region, other, divided)
        return reached

    def _multiply(self, region: Region, call: fx.Node, divided: Divided) -> list[fx.Node]:
        """Two values as matrices, for each head."""
        if divided.dim != -3 or call.kwargs:
            raise RefusedError("it is multiplied as a matrix, along its features")
        return self._combine(region, call, divided)

    def _attend(self, region: Region, call: fx.Node, divided: Divided) -> list[fx.Node]:
        """Attention, for each head."""
        settings = dict(zip(("attn_mask", "dropout_p", "is_causal"), call.args[3:], strict=False))
        settings.update(call.kwargs)
        if divided.dim != -3 or settings.get("enable_gqa") or len(call.args) < 3:
            raise RefusedError("it is not divided by heads where it is attended to")
        if not reshaping.is_alike_for_heads(settings.get("attn_mask"), self.root):
            raise RefusedError("the mask may differ between its heads")
        if settings.get("dropout_p", 0.0) != 0.0:
            raise RefusedError("attention would drop the same out of each part: use nn.Dropout")
        reached = self._reach(region, call, divided)
        for each in call.args[:3]:
            if not isinstance(each, fx.Node):
                raise RefusedError("it is not divided by heads where it is attended to")
            reached += self._want(region, each, divided)
        return reached

    def _want(self, region: Region, node: fx.Node, divided: Divided) -> list[fx.Node]:
        """Have a value divided so, by dividing the layer it comes from.

        Whether that leads to it is seen when the region has grown.
        """
        region.wanted.append((node, divided))
        while node not in region.divided:
            if node.op == "call_module":
                layer = self.modules[str(node.target)]
                if layers.outputs_of(layer) is not None:
                    return self._begin(region, node)
            source = node.args[0] if node.args else None
            if not isinstance(source, fx.Node):
                raise RefusedError(f"it meets {node.name}, which is not divided")
            node = source
        return []
