"""A verb's command line, read without typer's validation where that has nothing to say.

Typer has pydantic check every option, be it given or not, and to load that takes longer than all else
until a job's ranks are started. What needs no more than its type is read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from typer.core import TyperCommand


def read(command: TyperCommand, context: Any, words: Sequence[str]) -> dict[str, Any] | None:
    """The arguments of a verb's function, as typer would have them.

    Args:
        command: what typer makes of the function; its options have no callbacks and no variables.
        context: of this call.
        words: what stands behind the verb.

    Returns:
        None where it takes typer to read them: to show help, or to tell what is wrong.

    Raises:
        UsageError: typer's, as typer would, where there is no such option or it lacks its value.
    """
    function: Any = command.callback
    given, rest, _ = command.make_parser(context).parse_args(list(words))
    kinds = get_type_hints(function)
    least = {param.name: getattr(param, "min", None) for param in command.params}
    wanted = {each.name: each for each in signature(function).parameters.values()}
    known = {name: value for name, value in given.items() if value is not None}
    if rest or not known.keys() <= wanted.keys():
        return None
    values = {}
    try:
        for name, parameter in wanted.items():
            if name in known:
                values[name] = _value(known[name], kinds[name], least[name])
            elif name in least:  # not the context
                values[name] = _default(parameter)
    except ValueError:
        return None
    return values


def _value(given: Any, kind: Any, least: float | None) -> Any:
    """What was given as what is wanted; ValueError where it is not."""
    if get_origin(kind) in (Union, UnionType):
        (kind,) = [each for each in get_args(kind) if each is not NoneType]
    if kind == list[str]:
        return list(given)
    if kind in (bool, str):
        return given
    if kind is Path:
        return Path(given)
    if kind is int and given.isdecimal() and given.isascii() and int(given) >= (least or 0):
        return int(given)
    raise ValueError(given)


def _default(parameter: Parameter) -> Any:
    if parameter.default is Parameter.empty:
        raise ValueError(parameter.name)
    return parameter.default
