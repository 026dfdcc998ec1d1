"""Random draws in a loss: seen, and each replaced by its mean, so that equality is defined."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Mean = Tensor | float


class Draws(TorchDispatchMode):
    """While it is entered, torch's random operations give their mean instead of a draw.

    One process and N ranks that share its batch cannot draw the same numbers for the same samples,
    so a loss with randomness has no value that both must find. With the mean in each draw's place it
    has: a dropout keeps every unit, noise is zero. Operations whose mean is no sensible draw (a
    permutation, a choice) are carried out as they are.

    Attributes:
        replaced: names of the operations whose mean was taken, such as "bernoulli_".
        kept: names of those that were carried out.
        generator: a digest of torch's default generator of the CPU at the first draw from a default
            generator; None before.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.replaced: set[str] = set()
        self.kept: set[str] = set()
        self.generator: bytes | None = None

    def __torch_dispatch__(
        self,
        operation: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Carry out the operation; overwrite what it drew."""
        del types
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in operation.tags:
            return operation(*args, **kwargs)
        name = operation.overloadpacket.__name__
        given = _bind(operation, args, kwargs)
        if not _draws(given):
            return operation(*args, **kwargs)
        if self.generator is None and given.get("generator") is None:
            state = torch.get_rng_state().numpy().tobytes()
            self.generator = hashlib.blake2b(state, digest_size=16).digest()
        # Of an operation in place its argument is gone afterwards, so the mean comes first.
        means = _MEANS[name](given) if name in _MEANS else None
        drawn = operation(*args, **kwargs)
        if means is None:
            self.kept.add(name)
            return drawn
        self.replaced.add(name)
        for result, mean in zip(
            drawn if isinstance(drawn, tuple) else (drawn,), means, strict=True
        ):
            result.copy_(mean) if isinstance(mean, Tensor) else result.fill_(mean)
        return drawn


def _bind(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Each argument by its name in the operation's schema, its default where it is not given."""
    given = {}
    for at, argument in enumerate(operation._schema.arguments):
        value = args[at] if at < len(args) else kwargs.get(argument.name, argument.default_value)
        given[argument.name] = value
    return given


def _draws(given: Mapping[str, Any]) -> bool:
    """Whether it draws at all: an attention without dropout, a fused dropout in evaluation do not."""
    is_off = given.get("train") is False or given.get("training") is False
    return not is_off and given.get("dropout_p") != 0.0


def _constant(mean: float) -> Callable[[Mapping[str, Any]], tuple[Mean]]:
    return lambda _: (mean,)


def _uniform(given: Mapping[str, Any]) -> tuple[Mean]:
    return ((given["from"] + given["to"]) / 2,)


def _normal(given: Mapping[str, Any]) -> tuple[Mean]:
    return (given["mean"],)


def _bernoulli(given: Mapping[str, Any]) -> tuple[Mean]:
    # A dropout divides what it draws by this probability, so it keeps every unit as it is.
    probability = given.get("p")
    return (given["self"].clone() if probability is None else probability,)


def _randint(given: Mapping[str, Any]) -> tuple[Mean]:
    return ((given.get("low", 0) + given["high"] - 1) // 2,)


def _native_dropout(given: Mapping[str, Any]) -> tuple[Mean, Mean]:
    # Its derivative is the mask times this scale, whatever it returns.
    scale = 1 / (1 - given["p"]) if given["p"] < 1 else 0.0
    return given["input"] * scale, 1.0


_MEANS: dict[str, Callable[[Mapping[str, Any]], tuple[Mean, ...]]] = {
    "rand": _constant(0.5),
    "rand_like": _constant(0.5),
    "randn": _constant(0.0),
    "randn_like": _constant(0.0),
    "uniform": _uniform,
    "uniform_": _uniform,
    "normal": _normal,
    "normal_": _normal,
    "normal_functional": _normal,
    "bernoulli": _bernoulli,
    "bernoulli_": _bernoulli,
    "randint": _randint,
    "randint_like": _randint,
    "native_dropout": _native_dropout,
}


@contextmanager
def foreign_draws(found: set[str]) -> Iterator[None]:
    """Notes which generators besides torch's were drawn from: "random", "numpy.random".

    Args:
        found: to add to.
    """
    before = _foreign_states()
    yield
    after = _foreign_states()
    found.update(name for name in before.keys() & after.keys() if before[name] != after[name])


def _foreign_states() -> dict[str, object]:
    states: dict[str, object] = {"random": random.getstate()}
    if "numpy" in sys.modules:
        import numpy as np

        kind, keys, *rest = np.random.get_state(legacy=True)
        states["numpy.random"] = (kind, np.asarray(keys).tobytes(), *rest)
    return states
