"""Derive a plan: which of a model's layers ranks can divide, proved from what it computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

from doubletime.errors import MeshError
from doubletime.training.tensor_parallel import layers, tracing
from doubletime.training.tensor_parallel.candidates import Candidate, candidate_of, heaviest
from doubletime.training.tensor_parallel.plan import Kept, Part, Plan, Role, Split
from doubletime.training.tensor_parallel.regions import Grower
from doubletime.training.tensor_parallel.reshaping import RefusedError
from doubletime.training.tensor_parallel.transformer import known_roles

_ALONE = 2**14  # parameters from which on a layer is worth an exchange of its own

# What is divided by what a layer is, where nothing more special is to be said.
_WHOLE = {
    nn.LayerNorm: "it normalises over all features",
    nn.RMSNorm: "it normalises over all features",
    nn.LSTM: "each step needs all hidden units of the one before",
    nn.GRU: "each step needs all hidden units of the one before",
    nn.RNN: "each step needs all hidden units of the one before",
}


def derive(model: nn.Module, size: int) -> Plan:
    """The plan by which `size` ranks divide the model's layers.

    Layers are divided in pairs, the first by its outputs and the second by its inputs, where all
    between them treats each feature by itself: then one exchange serves both. Attention is divided
    by heads, and large layers that have no partner by their outputs, which are then gathered.
    All else stays whole on every rank.

    Args:
        model: as `Task.model` gives it; nothing is changed.
        size: how many ranks; with 1, nothing is divided.

    Raises:
        MeshError: if nothing can be divided, with the reason for each layer.
    """
    if size == 1:
        return _plan(model, 1, {}, {})
    derivation = _Derivation(model, size)
    plan = _plan(model, size, derivation.parts, {**derivation.reasons, **derivation.fixed})
    if plan.per_rank == plan.parameters:
        found = "; ".join(f"{each.module or 'the model'}: {each.reason}" for each in plan.kept)
        raise MeshError(
            f"no layer of the model can be divided among {size} ranks: {found}",
            "leave tp out of the mesh, or give the task a tensor_parallel_plan()",
        )
    return plan


class _Derivation:
    """What ranks have of each layer.

    Attributes:
        parts: of the layers that they divide, by name.
        fixed: why layers stay whole whatever is done with others.
        reasons: why others do.
    """

    def __init__(self, model: nn.Module, size: int) -> None:
        self.size = size
        self.parts: dict[str, Part] = {}
        self.fixed = _fixed(model)
        self.reasons: dict[str, str] = {}
        traces = tracing.trace(model)
        for traced in traces:
            for name in _read_besides(traced):
                self.fixed.setdefault(name, "its tensors are used besides the layer itself")
        for traced in traces:
            self._divide_regions(traced)
        for name, role in known_roles(model, size, self.fixed, self.reasons):
            self.parts[name] = Part(role)
        for name, layer in model.named_modules():
            if name not in self.parts and name not in self.fixed:
                self._divide_alone(name, layer)

    def _divide_regions(self, traced: tracing.Traced) -> None:
        prefix, modules = traced.prefix, dict(traced.module.named_modules())
        fixed = {
            name.removeprefix(prefix): why
            for name, why in self.fixed.items()
            if name.startswith(prefix)
        }
        growers = [Grower(graph, traced.module, self.size, fixed) for graph in traced.graphs]
        found: dict[tuple[tuple[str, Part], ...], Candidate] = {}
        for name, layer in modules.items():
            if layers.outputs_of(layer) is None:
                continue
            try:
                regions = [grower.grow(name) for grower in growers]
            except RefusedError as refusal:
                self.reasons[prefix + name] = str(refusal)
                continue
            if any(region.parts != regions[0].parts for region in regions):
                self.reasons[prefix + name] = "what it feeds depends on how the model is called"
                continue
            candidate = candidate_of(regions[0], modules)
            found[candidate.parts] = candidate
        for candidate in heaviest(list(found.values())):
            for name, part in candidate.parts:
                self.parts[prefix + name] = part

    def _divide_alone(self, name: str, layer: nn.Module) -> None:
        """Divide a layer by its outputs, which are then gathered, if it is worth that."""
        outputs = layers.outputs_of(layer)
        if outputs is None:
            return
        features, dim = outputs
        if features % self.size:
            self.reasons[name] = f"its {features} outputs do not divide by {self.size}"
        elif layers.parameters_of(layer) < _ALONE:
            why = self.reasons.get(name)
            self.reasons[name] = "too small to be divided alone" + (f"; {why}" if why else "")
        else:
            self.parts[name] = Part(Role.GATHERED, dim)


def _fixed(model: nn.Module) -> dict[str, str]:
    """Why layers stay whole whatever they are next to, by name."""
    holders = Counter(
        id(parameter)
        for layer in model.modules()
        for parameter in layer._parameters.values()
        if parameter is not None
    )
    reasons = {}
    for name, layer in model.named_modules():
        own = [each for each in layer._parameters.values() if each is not None]
        if any(holders[id(each)] > 1 for each in own):
            reasons[name] = "another layer shares its parameters"
        elif own and (layer._forward_hooks or layer._forward_pre_hooks):
            reasons[name] = "it has hooks, which would meet its parts"
    return reasons


def _read_besides(traced: tracing.Traced) -> Iterator[str]:
    """The layers whose tensors are read by other code than their own."""
    for graph in traced.graphs:
        for node in graph.nodes:
            if node.op == "get_attr":
                yield traced.prefix + str(node.target).rpartition(".")[0]


def _plan(model: nn.Module, size: int, parts: dict[str, Part], reasons: dict[str, str]) -> Plan:
    splits, kept = [], []
    within = tuple(f"{name}." for name, part in parts.items() if part.role is Role.HEADS)
    for name, layer in model.named_modules():
        own, what = layers.parameters_of(layer), layers.describe(layer)
        if name in parts:
            own = sum(parameter.numel() for parameter in layer.parameters())
            per_rank = _per_rank(layer, parts[name].role, size)
            splits.append(Split(name, what, parts[name], own, per_rank))
        elif own and not name.startswith(within):
            reason = reasons.get(name) or _WHOLE.get(type(layer)) or "nothing shows how"
            kept.append(Kept(name, what, "1 rank" if size == 1 else reason, own))
    return Plan(size, tuple(splits), tuple(kept))


def _per_rank(layer: nn.Module, role: Role, size: int) -> int:
    """How many of a divided layer's parameters each rank holds."""
    summed_after = {"bias"} if role is Role.INPUTS else {"out_proj.bias"}
    total = 0
    for name, parameter in layer.named_parameters():
        is_whole = name in summed_after or parameter.numel() == 1
        total += parameter.numel() if is_whole else parameter.numel() // size
    return total
