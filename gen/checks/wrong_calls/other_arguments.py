"""Make calls of an op with other arguments that are no tensors, in range and out of it.

    sum(x, 1)   ->   sum(x, -1), sum(x, 4611686018427387904), sum(x, 1.5), sum(x, 'x'),
                     sum(x, 1, keepdim=True), sum(x, 1, dtype=torch.int8), …

The arguments are those of the sample, and those that the op has a default for. No op is named
here, and nothing says which calls are mistakes: the plain op decides.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from gen.checks.wrong_calls.calls import Call, Inputs, with_first_indices
from gen.samples.samples import Sample
from gen.targets.protocol import Values
from gen.torch_private.loaded_with_torch import pytree

__all__ = ["of_numbers"]

Change = tuple[str, object]
HUGE = 2**62  # an element more would be more bytes than 64 bits can count
TEXT = "x"  # no mode or reduction has this name

_WHOLE = (-1, 0, 1, 2, -2, HUGE, 2**63 - 1, -(2**63), 2**63, 0.5, True, None, TEXT)
_REAL = (-1.0, 0.0, 1.0, 1.5, math.nan, math.inf, -math.inf, 1e300, 2, True, 1j, None, TEXT)
_DTYPES = (torch.int8, torch.bool, torch.float16, torch.float64, torch.complex64)
_BY_TYPE: dict[type, tuple[object, ...]] = {
    bool: (False, True, 2, None, TEXT),
    int: _WHOLE,
    float: _REAL,
    complex: (0j, complex(math.nan, 0), 1, TEXT),
    str: (TEXT, "", None, 1),
    torch.dtype: (*_DTYPES, None, TEXT),
    type(None): (),  # which type it stands for, the name of the parameter tells at most
}
"""What stands in place of an argument, by its type."""
_BY_TYPE_OF_SCHEMA: dict[str, tuple[object, ...]] = {
    "bool": (False, True),
    "int": (-1, 0, 1, 2, HUGE),
    "float": (-1.0, 0.0, 0.5, 2.0, math.nan, math.inf),
    "number": (-1, 0, 2, 0.5, math.nan, 1j, True),
    "str": (TEXT,),
    "Optional[int]": (-1, 0, 1, 2, HUGE),
    "Optional[float]": (-1.0, 0.0, 0.5, math.nan, math.inf),
    "Optional[number]": (-1, 0, 2, 0.5, math.nan),
    "Optional[bool]": (False, True),
    "Optional[str]": (TEXT,),
    "List[int]": ((), (-1,), (0,), (0, 0), (2, 2), (HUGE,)),
    "Optional[List[int]]": ((), (-1,), (0,), (0, 0), (2, 2), (HUGE,)),
}
"""What an argument may be that the sample leaves out, by its type in the schemas of ATen."""
_BY_NAME: dict[str, tuple[object, ...]] = {"dtype": _DTYPES}
"""The same for arguments whose type in a schema is that of another one."""
_NOT_ASKED = {
    "out", "inplace", "generator", "device", "layout", "pin_memory", "memory_format", "names",
}  # fmt: skip
"""Arguments of which other checks ask, or that name no number."""


def of_numbers(sample: Sample) -> Iterator[Call]:
    """Yield the sample with one argument replaced that is no tensor, and with one more.

    The leaves of ``sum(x, 1, keepdim=True)`` are x, 1 and True, of which the last two are replaced.
    One more is ``dtype``.
    """
    inputs = with_first_indices(sample)
    args, kwargs = sample.rebuild(inputs)
    leaves, spec = pytree.tree_flatten((args, kwargs), is_leaf=_is_list_of_numbers)
    for place, leaf in enumerate(leaves):
        for label, other in _others(leaf):
            change = _replacing(place, other, spec)
            yield _call(sample, inputs, f"{label} for argument {place}", change)
    for name, value in _further(sample, len(args), kwargs):
        yield _call(sample, inputs, f"{name}={_shown(value)}", _adding(name, value))


def _is_list_of_numbers(value: object) -> bool:
    """Return whether `value` is a list of plain numbers: one argument, such as a size."""
    if not isinstance(value, (list, tuple)):
        return False
    return set(map(type, value)) in ({int}, {float}, {int, float})


def _others(leaf: object) -> Iterator[Change]:
    """Yield what an argument may become, each with a label."""
    if _is_list_of_numbers(leaf):
        yield from _other_lists(list(leaf))  # type: ignore[call-overload]
        return
    for other in _BY_TYPE.get(type(leaf), ()):
        if repr(other) != repr(leaf):  # 1 is equal to True and to 1.0
            yield f"{_shown(other)} in place of {_shown(leaf)}", other


def _other_lists(numbers: list[Any]) -> Iterator[Change]:
    """Yield lists of other lengths, those with another last number, and a number alone."""
    lists: list[object] = [[], numbers[:-1], [*numbers, numbers[-1]], numbers[0]]
    lists += [[*numbers[:-1], other] for other in _BY_TYPE[type(numbers[-1])]]
    yield from ((f"{_shown(other)} in place of {_shown(numbers)}", other) for other in lists)


def _shown(value: object) -> str:
    """Return a value as a label has it: `int8` for `torch.int8`."""
    return repr(value).removeprefix("torch.")


def _further(sample: Sample, count: int, kwargs: dict[str, object]) -> Iterator[Change]:
    """Yield names and values of arguments that the sample leaves to their defaults."""
    optional = _optional(sample.op.call, count)
    for name in sorted(optional.keys() - kwargs.keys() - _NOT_ASKED):
        yield from ((name, value) for value in optional[name])


def _optional(call: Callable[..., object], count: int) -> dict[str, tuple[object, ...]]:
    """Return values for each parameter behind the first `count` that has a default."""
    try:
        parameters = list(inspect.signature(call).parameters.values())[count:]
    except (TypeError, ValueError):  # a function of C++
        return _optional_of_schemas(call, count)
    return {
        parameter.name: _BY_NAME.get(parameter.name, _BY_TYPE.get(type(parameter.default), ()))
        for parameter in parameters
        if parameter.default is not inspect.Parameter.empty
    }


def _optional_of_schemas(call: Callable[..., object], count: int) -> dict[str, tuple[object, ...]]:
    """Return the same for a function of C++, by the schemas of ATen's op of its name."""
    packet = getattr(torch.ops.aten, getattr(call, "__name__", ""), None)
    if packet is None:
        return {}
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    arguments = chain.from_iterable(schema.arguments[count:] for schema in schemas)
    optional = {one.name: str(one.type) for one in arguments if one.has_default_value()}
    return {
        name: _BY_NAME.get(name, _BY_TYPE_OF_SCHEMA.get(kind, ()))
        for name, kind in optional.items()
    }


def _replacing(place: int, other: object, spec: Any) -> Callable[..., Any]:
    """Return what changes one leaf of the arguments of a call."""

    def change(args: list[object], kwargs: dict[str, object]) -> Any:
        """Put the other value in the place of the leaf."""
        leaves = pytree.tree_leaves((args, kwargs), is_leaf=_is_list_of_numbers)
        leaves[place] = other
        return pytree.tree_unflatten(leaves, spec)

    return change


def _adding(name: str, value: object) -> Callable[..., Any]:
    """Return what adds an argument to those of a call."""
    return lambda args, kwargs: (args, {**kwargs, name: value})


def _call(sample: Sample, inputs: Inputs, label: str, change: Callable[..., Any]) -> Call:
    """Return the call of the sample with these inputs and with other arguments."""
    changed = replace(sample, rebuild=lambda tensors: change(*sample.rebuild(tensors)), memory={})

    def run(*tensors: object) -> Values:
        """Run the op with the other arguments."""
        return changed.outputs(changed.raw(changed.op.call, tensors))

    return Call(label, run, inputs, sample=changed)
