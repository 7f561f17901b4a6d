"""Find the plain calls that are to give what one call gives, by other names and other types.

    aten::acos(x)                          ->  aten::arccos(x)
    aten::add_.Tensor(x, y)                ->  aten::add.Tensor(x, y)
    aten::add.Tensor(x, y of one element)  ->  aten::add.Scalar(x, number)

A plain call writes to nothing. No op is named here: torch's documentation says which names are
aliases, and the types of arguments say the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from gen.checks.overloads.argument_values import (
    Conversion,
    are_default,
    categories,
    category,
    conversion,
    without_optional,
)
from gen.checks.overloads.recorded_calls import OverloadCall
from gen.torch_private.aten_overloads import (
    Argument,
    Overload,
    aliases_of,
    inputs_of,
    kinds_of,
    names_of,
    overloads_of,
    writes_of,
)

__all__ = ["PlainCall", "plain_calls", "values_for"]

Tensor = torch.Tensor


class PlainCall(NamedTuple):
    """A call that writes to nothing, and the call that gives the expected results."""

    call: OverloadCall
    expected: OverloadCall


def plain_calls(call: OverloadCall) -> Iterator[PlainCall]:
    """Yield calls of functional overloads, each with the call that gives the expected results.

    The first is the call itself, or what an in-place call would give: `add` of `add_`.
    """
    functional = _functional(call)
    if functional is None:
        return
    yield PlainCall(functional, functional)
    for base in (functional.base, *sorted(aliases_of(functional.base))):
        for overload in overloads_of(base):
            if overload is functional.overload or writes_of(overload):
                continue
            other = _call_of(functional, overload)
            if other is not None:
                yield other


def _functional(call: OverloadCall) -> OverloadCall | None:
    """Return the call without writes: itself, or that of the op whose name has no underscore.

    `relu_(x)` becomes `relu(x)`. None if there is no op of that name with the same arguments.
    """
    if not writes_of(call.overload):
        return call
    kinds = kinds_of(call.overload)
    for overload in overloads_of(call.base.removesuffix("_")):
        if not writes_of(overload) and kinds_of(overload) == kinds:
            return OverloadCall(overload, values_for(overload, call))
    return None


def values_for(overload: Overload, call: OverloadCall) -> dict[str, object]:
    """Return the arguments of a call by the names that another overload has for them.

    They stand in the same order. An overload with fewer of them has the same names: `out=` of a
    factory lacks the dtype.
    """
    names = names_of(inputs_of(call.overload))
    others = names_of(inputs_of(overload))
    if len(others) < len(names):
        names = others
    pairs = zip(names, others, strict=False)
    return {other: call.values[name] for name, other in pairs if name in call.values}


def _call_of(call: OverloadCall, overload: Overload) -> PlainCall | None:
    """Return the call of another overload with the arguments of a call, and what it is to give.

    A number stands in place of a tensor, or the other way round: `add.Scalar(x, 1.5)` for
    `add.Tensor(x, [1.5, 2.0])`, which is to give `add.Tensor(x, tensor(1.5))`. None if an argument
    has no such form, or if the dtype of the result would be another one.
    """
    sources, wanted = inputs_of(call.overload), inputs_of(overload)
    if not all(argument.has_default_value() for argument in wanted[len(sources) :]):
        return None
    values: dict[str, object] = {}
    originals: dict[str, object] = {}
    for source, argument in zip(sources, wanted, strict=False):
        if source.name not in call.values and argument.has_default_value():
            continue
        converted = _argument(call, source, argument)
        if converted is None:
            return None
        values[argument.name] = converted.value
        originals[source.name] = converted.original
    other = OverloadCall(overload, values)
    # an argument that the other overload lacks must not matter
    if not are_default(call, sources[len(wanted) :]) or not _promotes_alike(call, other):
        return None
    return PlainCall(other, call.with_values(originals))


def _argument(call: OverloadCall, source: Argument, wanted: Argument) -> Conversion | None:
    """Return what a call has for one argument as another one takes it."""
    if source.name not in call.values:
        return None
    kinds = {without_optional(str(argument.type)) for argument in (source, wanted)}
    # a schema has one type for whole numbers, layouts and dtypes
    if "int" in kinds and source.name != wanted.name:
        return None
    return conversion(call.values[source.name], str(source.type), wanted)


def _promotes_alike(call: OverloadCall, other: OverloadCall) -> bool:
    """Return whether the dtype of a result is the same with numbers in place of tensors.

    Another tensor says it: int64 [1, 2] + 1.5 is float32, and + tensor(1.5, float64) is float64.
    With a tensor of float64 in place of [1, 2], both are float64. Ops that ask for dtypes give no
    tensors.
    """
    # By identity: all values are those of the call, so none was converted.
    known = {id(value) for value in call.values.values()}
    if known.issuperset(map(id, other.values.values())):
        return True
    if any(str(result.type) != "Tensor" for result in other.overload._schema.returns):
        return False
    numbers = categories([*other.values.values(), *call.values.values()])
    shared = [value for name, value in other.values.items() if call.values.get(name) is value]
    tensors = [category(value.dtype) for value in shared if isinstance(value, Tensor)]
    return max(tensors, default=-1) >= max(numbers, default=0)
