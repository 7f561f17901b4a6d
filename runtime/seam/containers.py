"""Walks through arguments and results of calls of ATen: tensors, and lists of them.

An argument of a call is a tensor, a number, or a list of these:

    list(items_of((x, [y, z], 2)))      # [x, y, z, 2]
    tensors_of((x, [y, z], 2))          # [x, y, z]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch


def items_of(args: Iterable[object]) -> Iterator[Any]:
    """Yield each of ``args``, and in place of a list or tuple each of its items."""
    for argument in args:
        if isinstance(argument, (list, tuple)):
            yield from argument
        else:
            yield argument


def tensors_of(args: Iterable[object]) -> list[torch.Tensor]:
    """List the tensors among ``args`` and in the lists among them."""
    return [tensor for tensor in items_of(args) if isinstance(tensor, torch.Tensor)]


def leaves_of(values: Iterable[object]) -> Iterator[Any]:
    """Yield what is in ``values`` and in the lists, tuples and dictionaries among them, at any
    depth. Arguments of a call have no other containers, so that torch's pytrees, which take ten
    times as long, are not asked."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from leaves_of(value)
        elif isinstance(value, dict):
            yield from leaves_of(value.values())
        else:
            yield value


def is_written(argument: torch.Argument) -> bool:
    """Return whether a call writes to this argument of its schema, as to ``self`` of ``add_``."""
    return argument.alias_info is not None and argument.alias_info.is_write


def written_arguments(schema: torch.FunctionSchema) -> list[tuple[int, str]]:
    """List the arguments that a call writes to, by position and name: ``[(0, "self")]`` for
    ``add_``."""
    return [
        (position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if is_written(argument)
    ]


def targets_by_alias(schema: Any, arguments: Mapping[str, object]) -> dict[frozenset[str], Any]:
    """Return the arguments that a call writes to, by the alias set that its results name. Example:
    ``{frozenset({"a"}): x}`` for ``x.add_(y)``, whose schema is ``add_(Tensor(a!) self, …)``.

    ``arguments``: those of the call, by name.
    """
    return {
        # the names of memory that the schema gives to an argument and to the result that shows it
        frozenset(declared.alias_info.before_set): arguments[declared.name]
        for declared in schema.arguments
        if is_written(declared) and declared.name in arguments
    }


def with_arguments(
    schema: torch.FunctionSchema,
    targets: Mapping[frozenset[str], object],
    result: Any,
    value: Callable[[Any], object],
) -> Any:
    """Return the results of a call: for one that shows an argument that argument, one of
    ``targets``, for any other one ``value(result)``."""
    several = type(result) in (list, tuple)
    outputs = [result]
    if several:
        outputs = list(result)
    for index, (declared, out) in enumerate(zip(schema.returns, outputs, strict=True)):
        if declared.alias_info is None:
            outputs[index] = value(out)
        else:
            outputs[index] = targets.get(frozenset(declared.alias_info.before_set), out)
    if several:
        return type(result)(outputs)
    return outputs[0]


def rewrapped(result: object, wrap: Callable[[torch.Tensor, Any], object]) -> Any:
    """Return the result of an op, with ``wrap(tensor, number)`` in place of each tensor. The number
    is None for a single result, and a pair for a tensor in a list among several results.

    A list stays a list, a named tuple becomes a plain one. Anything that is no
    tensor stays as it is.
    """
    if isinstance(result, torch.Tensor):
        return wrap(result, None)
    if not isinstance(result, (tuple, list)):
        return result
    wrapped = list(result)
    for position, item in enumerate(wrapped):
        if isinstance(item, torch.Tensor):
            wrapped[position] = wrap(item, position)
        elif isinstance(item, list):
            wrapped[position] = [
                wrap(part, (position, place)) if isinstance(part, torch.Tensor) else part
                for place, part in enumerate(item)
            ]
    if type(result) is list:
        return wrapped
    return tuple(wrapped)
