"""Cut a model's graph into stages: where it may be cut, where it is, and what crosses each cut."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import fx, nn

from doubletime.errors import PipelineError
from doubletime.training.pipeline.balance import balance, thin
from doubletime.training.pipeline.measuring import NodeCost, changes_in_place

_MOST_PLACES = 300  # that cuts are sought among: more would take seconds
_MESSAGE_S, _BYTES_PER_S = 1e-4, 1e9  # what a message between stages is counted as
_TIME_SLACK = 1.05  # how much slower the slowest stage may be if memory is divided better so
_STATES = 4  # parameter, gradient and two of an optimizer: bytes held for each byte of parameters


class Cutter:
    """A model's graph, with what each node costs.

    Args:
        graph: as `tracing.trace` gives it.
        costs: as `measuring.measure` gives them; the same on all ranks, so that all cut alike.
    """

    def __init__(self, graph: fx.GraphModule, costs: Mapping[str, NodeCost]) -> None:
        self.graph = graph
        self.costs = costs
        self.inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self.nodes = [
            node
            for node in graph.graph.nodes
            if node.op in ("call_module", "call_function", "call_method")
        ]
        self.output = next(node for node in graph.graph.nodes if node.op == "output")
        self.position = {node: place for place, node in enumerate(self.nodes)}
        self.position[self.output] = len(self.nodes)
        self.position |= dict.fromkeys(self.inputs, -1)
        self._names = _names_by_tensor(graph)
        self._uses = self._uses_of_tensors()
        self._crossing: dict[int, list[fx.Node] | None] = {}
        held = [self.costs[node.name] for node in self.nodes]
        self._times_s = _summed(cost.time_s for cost in held)
        self._nbytes = _summed(
            _STATES * cost.parameter_nbytes + cost.output_nbytes for cost in held
        )
        trained = {
            position
            for tensor, positions in self._uses.items()
            if self._names[tensor][1]
            for position in positions
        }
        self._trained = _summed(int(place in trained) for place in range(len(self.nodes)))

    def cut(self, stages: int) -> list[int]:
        """Where each stage but the first begins: the slowest is as fast as can be.

        Among cuts that are about as fast, those that divide memory best.

        Raises:
            PipelineError: if there are fewer layers that can be cut apart than stages.
        """
        places = [0, *self.places(), len(self.nodes)]
        if len(_most(places, self._has_parameters)) < stages:
            self._refuse(stages, places)
        places = thin(places, _MOST_PLACES)
        _, slowest = balance(places, stages, self.time_s)
        cuts, _ = balance(
            places,
            stages,
            lambda begin, end: (
                self.nbytes(begin, end)
                if self.time_s(begin, end) <= slowest * _TIME_SLACK
                else math.inf
            ),
        )
        return cuts

    def places(self) -> list[int]:
        """All positions before which the graph may be cut."""
        crossed: set[int] = set()
        for positions in self._uses.values():
            crossed.update(range(min(positions) + 1, max(positions) + 1))
        return [
            place
            for place in range(1, len(self.nodes))
            if place not in crossed and self.crossing(place) is not None
        ]

    def crossing(self, place: int) -> list[fx.Node] | None:
        """The tensors that must be sent over a cut before this position; None if others must be.

        A number such as a size is not sent, but computed again from what is.
        """
        if place not in self._crossing:
            self._crossing[place] = self._find_crossing(place)
        return self._crossing[place]

    def _find_crossing(self, place: int) -> list[fx.Node] | None:
        found: dict[fx.Node, None] = {}
        for node in itertools.chain(self.inputs, self.nodes[:place]):
            if any(self.position.get(user, -1) >= place for user in node.users):
                tensors = self._tensors_behind(node)
                if tensors is None:
                    return None
                found |= dict.fromkeys(tensors)
        for node in found:
            for user in node.users:
                if self.position.get(user, -1) >= place and changes_in_place(user, self.graph):
                    return None
        return sorted(found, key=lambda node: (self.position[node], node.name))

    def time_s(self, begin: int, end: int) -> float:
        """Seconds of a stage, the sending of what it makes included; infinite without parameters."""
        if not self._has_parameters(begin, end):
            return math.inf
        seconds = self._times_s[end] - self._times_s[begin]
        if end < len(self.nodes):
            for node in self.crossing(end) or ():
                seconds += 2 * (_MESSAGE_S + self.costs[node.name].output_nbytes / _BYTES_PER_S)
        return seconds

    def nbytes(self, begin: int, end: int) -> float:
        """What a stage holds: parameters with gradients and optimizer, and what its nodes make."""
        return self._nbytes[end] - self._nbytes[begin]

    def stage(self, cuts: Sequence[int], number: int) -> fx.GraphModule:
        """One stage as a module of its own, its parameters under the names that the model gives them.

        The first takes the call's tensors, each other what crosses the cut before it. The last
        returns what the model returns, each other a tuple of what crosses the cut after it.
        """
        bounds = [0, *cuts, len(self.nodes)]
        begin, end = bounds[number : number + 2]
        graph = fx.Graph()
        made: dict[fx.Node, fx.Node] = {}
        for node in (self.crossing(begin) or ()) if number else self.inputs:
            made[node] = graph.placeholder(node.name)

        def value(node: fx.Node) -> fx.Node:
            if node not in made:
                made[node] = graph.node_copy(node, value)
            return made[node]

        for node in self.nodes[begin:end]:
            value(node)
        if number == len(cuts):
            graph.output(fx.map_arg(self.output.args[0], value))
        else:
            graph.output(tuple(value(node) for node in self.crossing(end) or ()))
        return fx.GraphModule(self.graph, graph, f"Stage{number}")

    def _tensors_behind(self, node: fx.Node) -> list[fx.Node] | None:
        """The tensors from which a value can be had again without computing a layer."""
        if node.op == "get_attr":
            return []
        if self.costs[node.name].is_tensor:
            return [node]
        if node.op == "call_module":
            return None
        behind = [self._tensors_behind(source) for source in node.all_input_nodes]
        if any(each is None for each in behind):
            return None
        return [tensor for each in behind for tensor in each or ()]

    def _has_parameters(self, begin: int, end: int) -> bool:
        """Whether there is something to train between two positions."""
        return self._trained[end] > self._trained[begin]

    def _uses_of_tensors(self) -> dict[int, list[int]]:
        """At which positions each parameter and buffer is used, by the tensor's id."""
        uses: dict[int, list[int]] = {}
        for node in self.graph.graph.nodes:
            if node.op == "call_module":
                module = self.graph.get_submodule(node.target)
                positions = [self.position[node]]
                tensors: Iterable[Any] = itertools.chain(module.parameters(), module.buffers())
            elif node.op == "get_attr":
                positions = [self.position[user] for user in node.users if user in self.position]
                tensors = [_attribute(self.graph, node.target)]
            else:
                continue
            for tensor in tensors:
                if id(tensor) in self._names:
                    uses.setdefault(id(tensor), []).extend(positions)
        return uses

    def _refuse(self, stages: int, places: Sequence[int]) -> None:
        layers = len(_most(places, self._has_parameters))
        shared = [
            self._names[tensor][0]
            for tensor, positions in self._uses.items()
            if max(positions) > min(positions)
        ]
        uncut = f"; {', '.join(shared[:5])} {_IN_SEVERAL}" if shared else ""
        raise PipelineError(
            f"the model has {layers} layer{'s' * (layers != 1)} with parameters that can be cut apart, "
            f"{stages} stages are asked for{uncut}",
            f"ask for {max(layers, 1)} stage{'s' * (layers > 1)} at most, or divide the work along "
            "another axis (dp, fsdp, tp)",
        )


_IN_SEVERAL = "is used in several places, which must lie in one stage"


def _summed(values: Iterable[float]) -> list[float]:
    """The sum of what lies before each position, from 0 to the sum of all."""
    return list(itertools.accumulate(values, initial=0.0))


def _most(places: Sequence[int], stands: Any) -> list[int]:
    """As many parts as can be, each of which may stand alone: where each of them begins."""
    begins, begin = [], places[0]
    for end in places[1:]:
        if stands(begin, end):
            begins.append(begin)
            begin = end
    return begins


def _names_by_tensor(model: nn.Module) -> dict[int, tuple[str, bool]]:
    """Each parameter's and buffer's name, and whether it is trained, by the tensor's id."""
    named: dict[int, tuple[str, bool]] = {}
    for name, buffer in model.named_buffers():
        named[id(buffer)] = (name, False)
    for name, parameter in model.named_parameters():
        named[id(parameter)] = (name, parameter.requires_grad)
    return named


def _attribute(root: nn.Module, path: str) -> Any:
    owner, _, name = path.rpartition(".")
    return getattr(root.get_submodule(owner), name)
