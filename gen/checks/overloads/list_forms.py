"""Make of one call the call for several tensors at once, which is to give what a loop gives.

aten::sin(x)             ->  aten::_foreach_sin([x, other, x])
aten::add.Scalar(x, 2)   ->  aten::_foreach_add.ScalarList([x, other, x], [2, 3, 2])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from gen.checks.overloads.argument_values import (
    are_default,
    categories,
    category,
    conversion,
    element_of,
    is_plain_number,
    tensor_of,
)
from gen.checks.overloads.form_buffers import Form, filled, fits, is_strided
from gen.checks.overloads.recorded_calls import OverloadCall, copied
from gen.torch_private.aten_overloads import (
    Argument,
    Overload,
    full_name,
    inputs_of,
    names_of,
    outputs_of,
    with_kernel,
    writes_of,
)
from gen.torch_private.loaded_with_torch import pytree

__all__ = ["forms_of_lists"]

Tensor = torch.Tensor
_COUNT = 3  # tensors in a list: one, another one, and the first again


@dataclass(frozen=True)
class _Row:
    """An argument for a list of tensors, and the argument of each single call.

    For `[x, y, x]` the single calls have x, y and x. For one number they have that number each.
    """

    # the argument of the call with lists
    value: object
    # the argument of each single call
    elements: Sequence[object]

    @classmethod
    def of_same(cls, value: object, element: object) -> _Row:
        """Return the argument that all tensors share."""
        return cls(value, [element] * _COUNT)


@dataclass(frozen=True)
class _ListCall:
    """A call of an overload of lists, and the single calls that a loop over them makes."""

    overload: Overload
    values: dict[str, object]
    singles: list[OverloadCall]

    def forms(self) -> Iterator[Form]:
        """Yield the form of the call: with results, with buffers, or in place.

        There is none if a result has no place in the tensor that is written to.
        """
        is_in_place = bool(writes_of(self.overload)) and not outputs_of(self.overload)
        if is_in_place and not all(map(_holds_its_result, self.singles)):
            return
        name = full_name(self.overload)
        yield Form(name, name, self.run, self.expected)

    def expected(self) -> list[object]:
        """Return what a loop over the tensors gives."""
        return [single.run() for single in self.singles]

    def run(self, target: Callable[..., object]) -> object:
        """Run the overload of a target, and return where its results are."""
        values = copied(self.values)
        place = None
        if outputs_of(self.overload):
            (place,) = names_of(outputs_of(self.overload))
            values[place] = pytree.tree_map(filled, self.expected())
        elif writes_of(self.overload):
            place = self.overload._schema.arguments[0].name
        results = OverloadCall(self.overload, values).on(values, target)
        return results if place is None else values[place]


def forms_of_lists(call: OverloadCall) -> Iterator[Form]:
    """Yield the call for each of several tensors at once: what a loop over them gives."""
    first = call.first
    if not isinstance(first, Tensor) or not is_strided(first):
        return
    for base in (f"_foreach_{call.base}", f"_foreach_{call.base}_"):
        for overload in with_kernel(base):
            several = _call_of_lists(call, overload)
            if several is not None:
                yield from several.forms()


def _call_of_lists(call: OverloadCall, overload: Overload) -> _ListCall | None:
    """Return the call of an overload of lists, with the single calls that a loop makes.

    None if an argument has no such form, or if a number would change the dtype of a result.
    """
    sources, wanted = inputs_of(call.overload), inputs_of(overload)
    if len(wanted) > len(sources) or not are_default(call, sources[len(wanted) :]):
        return None
    values: dict[str, object] = {}
    elements: dict[str, Sequence[object]] = {}
    for source, argument in zip(sources, wanted, strict=False):
        row = _row(call, source, argument)
        if row is None:
            return None
        values[argument.name] = row.value
        elements[source.name] = row.elements
    if not _keeps_dtypes(values):
        return None
    singles = []
    for place in range(_COUNT):
        of_tensor = {name: row[place] for name, row in elements.items()}
        singles.append(call.with_values(of_tensor))
    return _ListCall(overload, values, singles)


def _keeps_dtypes(values: dict[str, object]) -> bool:
    """Return whether no number is of a higher category than a tensor in a list.

    1.5 is for tensors of whole numbers, which a loop makes tensors of real ones.
    """
    alone: list[object] = []
    listed: list[object] = []
    for value in values.values():
        if isinstance(value, list):
            listed += value
        else:
            alone.append(value)
    # Without a tensor in a list there is no dtype to keep: then only truths are low enough.
    tensors = [category(element.dtype) for element in listed if isinstance(element, Tensor)]
    return max(categories([*alone, *listed]), default=0) <= min(tensors, default=0)


def _row(call: OverloadCall, source: Argument, wanted: Argument) -> _Row | None:
    """Return an argument of a call for a list of tensors. None if it has no such form."""
    if source.name not in call.values:
        return None
    value, kind = call.values[source.name], str(wanted.type)
    if (wanted.name, kind) == ("scalars", "Tensor"):
        return _row_of_packed(value)
    make_row = _ROWS.get(kind)
    if make_row is not None:
        return make_row(value)
    converted = conversion(value, str(source.type), wanted)
    if converted is None:
        return None
    return _Row.of_same(converted.value, converted.original)


def _row_of_tensors(value: object) -> _Row | None:
    """Return a list of tensors: the one of the call, another one, and the one again."""
    if not isinstance(value, Tensor):
        return None
    elements = [value, _reordered(value), value]
    return _Row(elements, elements)


def _row_of_one(value: object) -> _Row | None:
    """Return one tensor without dimensions for all tensors."""
    element = element_of(value)
    if element is not None:
        return _Row.of_same(element.original, element.original)
    if not is_plain_number(value):
        return None
    return _Row.of_same(tensor_of(value), value)


def _row_of_numbers(value: object) -> _Row | None:
    """Return a list of a number for each tensor, such as [2, 3, 2] of the number 2."""
    element = element_of(value)
    if element is not None:
        return _Row([element.value] * _COUNT, [element.original] * _COUNT)
    if not isinstance(value, (int, float, complex)):
        return None
    numbers = [value, value + 1, value]
    return _Row(numbers, numbers)


def _row_of_packed(value: object) -> _Row | None:
    """Return a number for each tensor as one tensor, such as tensor([2, 3, 2]) of the number 2."""
    if isinstance(value, Tensor):
        return None
    row = _row_of_numbers(value)
    if row is None:
        return None
    return _Row(torch.stack([tensor_of(number) for number in row.elements]), row.elements)


_ROWS: dict[str, Callable[[object], _Row | None]] = {
    "List[Tensor]": _row_of_tensors,
    "List[number]": _row_of_numbers,
    "List[Scalar]": _row_of_numbers,
    "Tensor": _row_of_one,
}
"""What makes of an argument that for a list of tensors, by the type that the overload has."""


def _reordered(x: Tensor) -> Tensor:
    """Return a tensor of the same kind with its elements in another order."""
    if not x.ndim:
        return x.clone()
    return x.flip(0).contiguous()


def _holds_its_result(call: OverloadCall) -> bool:
    """Return whether the first argument of a call can hold its result."""
    try:
        return fits(call.first, call.run())
    except RuntimeError:  # a call that the plain op refuses
        return False
