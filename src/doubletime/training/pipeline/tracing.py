"""The graph of a model: which layer is given what, found by following one call.

Layers stay whole in it, so that `train()` and `eval()`, hooks and the parameters' names work as before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from doubletime.errors import PipelineError

_MODEL = "model"  # what the model is called in the module that is traced
_FACTORIES = ("arange", "zeros", "ones", "full", "empty", "rand", "randn", "linspace")


class Call:
    """What a model is called with: the tensors, and all else as constants.

    Attributes:
        tensors: in the order of the arguments, nested ones too.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        leaves, self.spec = pytree.tree_flatten((args, dict(kwargs)))
        self.tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
        self.constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]

    def rebuild(self, tensors: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with other tensors (anything that can be indexed) in their places."""
        places = iter(range(len(self.tensors)))
        leaves = [
            tensors[next(places)] if is_tensor else constant
            for is_tensor, constant in zip(self.is_tensor, self.constants, strict=True)
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return args, kwargs

    def is_like(self, other: Call) -> bool:
        """Whether both have tensors in the same places, and the same constants."""
        return (
            self.spec == other.spec
            and self.is_tensor == other.is_tensor
            and all(a is b or a == b for a, b in zip(self.constants, other.constants, strict=True))
        )


def trace(model: nn.Module, call: Call) -> fx.GraphModule:
    """The model's graph for calls like this one: a placeholder for each tensor of the call.

    What cannot be followed (a loop that depends on data, say) is kept whole, as small as can be.

    Raises:
        PipelineError: if the model's own `forward` cannot be followed, or leaves parameters unused.
    """
    with torch.random.fork_rng():
        return _trace(model, call)


def _trace(model: nn.Module, call: Call) -> fx.GraphModule:
    whole: set[str] = set()
    modes = {module: module.training for module in model.modules()}
    try:
        while True:
            try:
                graphs = []
                for mode in (False, True):
                    model.train(mode)
                    graphs.append(_Tracer(whole, call).trace(_Called(model, call)))
            except _Opaque as opaque:
                whole.add(opaque.path)
                continue
            changing = _differing(*graphs)
            if changing is None:
                return _with_placeholders(model, graphs[1], call)
            if changing in (_MODEL, *whole):
                raise PipelineError(
                    f"forward of {type(model).__name__} computes something else in training than in "
                    "evaluation by itself (it reads self.training)",
                    "leave that to layers: nn.Dropout in place of functional.dropout",
                )
            whole.add(changing)
    finally:
        for module, mode in modes.items():
            module.training = mode


class _Called(nn.Module):
    """The model, called as in the example; takes all tensors as one argument."""

    def __init__(self, model: nn.Module, call: Call) -> None:
        super().__init__()
        self.model = model
        self.call = call

    def forward(self, tensors: Any) -> Any:
        args, kwargs = self.call.rebuild(tensors)
        return self.model(*args, **kwargs)


class _Opaque(Exception):
    """A submodule whose forward cannot be followed."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class _Tracer(fx.Tracer):
    """Follows a call into all modules but PyTorch's own and those named `whole`."""

    trace_asserts = True

    def __init__(self, whole: set[str], call: Call) -> None:
        super().__init__()
        self.whole = whole
        # Some sizes of batches: what depends on the number of samples must not be decided here.
        self.examples = [_Example(call, more) for more in (0, 1)]

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Decide what depends on shapes and types alone, as `if x.dim() != 3` does."""
        answers = {example.decide(obj.node) for example in self.examples}
        (answer,) = answers if len(answers) == 1 else (None,)
        return super().to_bool(obj) if answer is None else answer

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        with _factories_traced(self):
            return super().trace(root, concrete_args)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self.whole:
            return True
        return not isinstance(m, nn.TransformerEncoder) and super().is_leaf_module(
            m, module_qualified_name
        )

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        path = self.path_of_module(m)
        if isinstance(m, nn.TransformerEncoder) and path not in self.whole:
            forward = functools.partial(_encode, m)
        try:
            return super().call_module(m, forward, args, kwargs)
        except _Opaque:
            raise
        except Exception as error:  # whatever its forward raises when it is given no real tensor
            if path == _MODEL:
                raise PipelineError(
                    f"forward of {type(m).__name__} cannot be followed: {_first_line(error)}",
                    "make it a sequence of layers (nn.Sequential), or move what depends on values "
                    "into a layer of its own",
                ) from error
            raise _Opaque(path) from error


class _Example:
    """Values of a graph's nodes as far as shapes and types tell them, for one size of batch."""

    def __init__(self, call: Call, more: int) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        with self._mode:
            self._tensors = tuple(
                torch.empty(
                    (len(tensor) + more, *tensor.shape[1:]) if tensor.dim() else (),
                    dtype=tensor.dtype,
                    device=tensor.device,
                )
                for tensor in call.tensors
            )
        self._known: dict[fx.Node, Any] = {}

    def decide(self, node: fx.Node) -> bool | None:
        """Whether the node's value is true; None if that depends on what tensors hold, or on layers."""
        try:
            with self._mode, torch.no_grad():
                return bool(self._value(node))
        except Exception:  # whatever is raised for tensors without content
            return None

    def _value(self, node: fx.Node) -> Any:
        if node not in self._known:
            self._known[node] = self._compute(node)
        return self._known[node]

    def _compute(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._tensors
        if node.op not in ("call_function", "call_method"):
            raise ValueError("layers cannot be run while calls of them are being followed")
        args, kwargs = fx.map_arg((node.args, node.kwargs), self._value)
        if callable(node.target):
            return node.target(*args, **kwargs)
        return getattr(args[0], node.target)(*args[1:], **kwargs)


def _encode(
    encoder: nn.TransformerEncoder,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool | None = None,
) -> Any:
    """What nn.TransformerEncoder computes, without its look at the tensors for a faster kernel."""
    for layer in encoder.layers:
        src = layer(
            src,
            src_mask=mask,
            is_causal=bool(is_causal),
            src_key_padding_mask=src_key_padding_mask,
        )
    return src if encoder.norm is None else encoder.norm(src)


@contextmanager
def _factories_traced(tracer: fx.Tracer) -> Iterator[None]:
    """Let torch.arange(x.size(0)) and its like be followed: they take no stand-in for a number."""
    originals = {name: getattr(torch, name) for name in _FACTORIES}

    def traced(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def factory(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(leaf, fx.Proxy) for leaf in pytree.tree_leaves((args, kwargs))):
                return tracer.create_proxy("call_function", original, args, kwargs)
            return original(*args, **kwargs)

        return factory

    for name, original in originals.items():
        setattr(torch, name, traced(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)


def _differing(one: fx.Graph, other: fx.Graph) -> str | None:
    """The innermost module in which two graphs of one model begin to differ."""
    ours, theirs = list(one.nodes), list(other.nodes)
    for node, twin in zip(ours, theirs, strict=False):
        said, twin_said = (
            (each.op, str(each.target), str(each.args), str(each.kwargs)) for each in (node, twin)
        )
        if said != twin_said:
            return _module_of(node)
    return None if len(ours) == len(theirs) else _MODEL


def _module_of(node: fx.Node) -> str:
    """The path of the module whose forward made this node."""
    stack = [entry[0] for entry in node.meta.get("nn_module_stack", {}).values()]
    if node.op == "call_module" and stack and stack[-1] == node.target:
        stack.pop()
    return stack[-1] if stack else _MODEL


def _with_placeholders(model: nn.Module, graph: fx.Graph, call: Call) -> fx.GraphModule:
    """The graph with an input for each tensor, and with the model's own names."""
    source = next(node for node in graph.nodes if node.op == "placeholder")
    inputs = {}
    for place in range(len(call.tensors)):
        with graph.inserting_before(source):
            inputs[place] = graph.placeholder(f"input_{place}")
    for node in list(source.users):
        node.replace_all_uses_with(inputs[node.args[1]])
        graph.erase_node(node)
    graph.erase_node(source)
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            node.target = node.target.removeprefix(f"{_MODEL}.")
    followed = fx.GraphModule(model, graph)
    _refuse_unused(model, followed)
    return followed


def _refuse_unused(model: nn.Module, followed: fx.GraphModule) -> None:
    used = set(followed.parameters())
    unused = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter not in used
    ]
    if unused:
        raise PipelineError(
            f"parameters that the model does not use belong to no stage: {', '.join(unused[:5])}",
            "remove them, or set requires_grad to False",
        )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
