"""What each node of a model's graph costs: seconds forward and backward, bytes held."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

_ROUNDS = 3  # the first one also warms up


@dataclass(frozen=True)
class NodeCost:
    """Of one node, for the example's number of samples.

    Attributes:
        time_s: of its forward and backward pass, the least of some rounds.
        parameter_nbytes: of the parameters it uses.
        output_nbytes: of the tensors it makes.
        is_tensor: whether what it makes is one tensor, which can be sent.
    """

    time_s: float
    parameter_nbytes: int
    output_nbytes: int
    is_tensor: bool


def measure(graph: fx.GraphModule, tensors: Sequence[Tensor]) -> dict[str, NodeCost]:
    """Run the graph node by node, on a copy, and leave the generators as they were.

    Args:
        graph: as `tracing.trace` gives it.
        tensors: for its placeholders.

    Returns:
        The cost of each node, by the node's name.
    """
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices, key=str)):
        clock = _Clock(copy.deepcopy(graph))
        for _ in range(_ROUNDS):
            clock.run(*(tensor.detach() for tensor in tensors))
        return clock.costs


class _Clock(fx.Interpreter):
    """Runs every node by itself: forward, then backward from ones."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.costs: dict[str, NodeCost] = {}

    def run_node(self, n: fx.Node) -> Any:
        if n.op in ("placeholder", "get_attr", "output"):
            made = super().run_node(n)
            if n.op != "output":
                self._note(n, made, 0.0)
            return made
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        fresh = [_fresh(leaf, changes_in_place(n, self.module)) for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(fresh, spec)
        started_s = _now(fresh)
        with torch.enable_grad():
            made = getattr(self, n.op)(n.target, args, kwargs)
        outputs = [out for out in _tensors(made) if out.requires_grad]
        wanted = [leaf for leaf in _tensors(fresh) if leaf.requires_grad]
        wanted += [p for p in self._parameters(n) if p.requires_grad]
        if outputs and wanted:
            ones = [torch.ones_like(out) for out in outputs]
            torch.autograd.grad(outputs, wanted, ones, allow_unused=True)
        self._note(n, made, _now(fresh) - started_s)
        return pytree.tree_map_only(
            Tensor, lambda out: out.detach().requires_grad_(out.requires_grad), made
        )

    def _parameters(self, node: fx.Node) -> list[Tensor]:
        if node.op != "call_module":
            return []
        return list(self.fetch_attr(str(node.target)).parameters())

    def _note(self, node: fx.Node, made: Any, time_s: float) -> None:
        before = self.costs.get(node.name)
        parameters = self._parameters(node)
        if node.op == "get_attr" and isinstance(made, Tensor):
            parameters = [made]
        self.costs[node.name] = NodeCost(
            time_s if before is None else min(time_s, before.time_s),
            sum(p.numel() * p.element_size() for p in parameters),
            sum(out.numel() * out.element_size() for out in _tensors(made)),
            isinstance(made, Tensor),
        )


def changes_in_place(node: fx.Node, root: Any) -> bool:
    """Whether a node overwrites what it is given."""
    if node.op == "call_module":
        return bool(getattr(root.get_submodule(str(node.target)), "inplace", False))
    if node.kwargs.get("inplace") or "out" in node.kwargs:
        return True
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    name = str(name)
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE_OPERATORS


_IN_PLACE_OPERATORS = ("iadd", "isub", "imul", "itruediv", "setitem")


def _fresh(value: Any, is_overwritten: bool) -> Any:
    """A tensor that begins a graph of its own; anything else as it is."""
    if not isinstance(value, Tensor) or isinstance(value, torch.nn.Parameter):
        return value
    leaf = value.detach().requires_grad_(value.requires_grad)
    return leaf.clone() if is_overwritten else leaf


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _now(values: list[Any]) -> float:
    for tensor in _tensors(values):
        if tensor.device.type == "cuda":
            torch.cuda.synchronize(tensor.device)
    return time.perf_counter()
