"""Which parameters a loss depends on."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

# Its own inputs alone are in the graph: what it computes with is known in the backward pass only.
_OPAQUE = "CheckpointFunctionBackward"


def unreached(loss: Tensor, parameters: Mapping[str, nn.Parameter]) -> tuple[str, ...]:
    """Names of trainable parameters that get no gradient from this loss.

    DistributedDataParallel waits for the gradient of each: ranks would wait for each other for ever.

    Args:
        loss: 0-dim, before `backward()`.
        parameters: by name.
    """
    reached: set[int] = set()
    seen: set[object] = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == _OPAQUE:
            return ()
        if hasattr(node, "variable"):
            reached.add(id(node.variable))
        waiting.extend(following for following, _ in node.next_functions)
    return tuple(
        name
        for name, parameter in parameters.items()
        if parameter.requires_grad and id(parameter) not in reached
    )
