"""Give the arguments of a call to an overload whose types are others.

    a tensor [1.5, 2.0] for a number    1.5, and the plain call gets tensor(1.5)
    the number 2 for a tensor           tensor(2), and the plain call gets 2

No op is named here: the types of the arguments say what can stand for what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from gen.checks.overloads.recorded_calls import OverloadCall
from gen.torch_private.aten_overloads import Argument

__all__ = [
    "Conversion",
    "are_default",
    "categories",
    "category",
    "conversion",
    "element_of",
    "is_plain_number",
    "tensor_of",
    "without_optional",
]

Tensor = torch.Tensor
_OPTIONAL = "Optional["
_NUMBERS = (bool, int, float, complex)  # in the order of their categories, see `category`


@dataclass(frozen=True)
class Conversion:
    """A value as another overload takes it, and what the plain call gets in its place."""

    # what the other overload takes
    value: object
    # What the plain call gets. The number of a tensor is its first element, so that the plain call
    # gets only that one.
    original: object


def conversion(value: object, source: str, argument: Argument) -> Conversion | None:
    """Return a value of type `source` as another argument takes it, or None if it cannot.

    The tensor [1.5, 2.0] is 1.5 for an argument of type `number`, and has no form for a `bool`.
    """
    # An optional argument that is left out has no value to convert.
    wanted = str(argument.type)
    if value is None and source.startswith(_OPTIONAL):
        return _same(None) if wanted.startswith(_OPTIONAL) else None
    kinds = (without_optional(source), without_optional(wanted))
    if kinds[0] == kinds[1]:
        return _same(value)
    convert = _CONVERTERS.get(kinds)
    if convert is None and argument.name == "dim":
        convert = _CONVERTERS_OF_DIMENSIONS.get(kinds)
    if convert is None:
        return None
    return convert(value)


def _same(value: object) -> Conversion:
    """Return a value as it is, for both calls."""
    return Conversion(value, value)


def element_of(value: object) -> Conversion | None:
    """Return the first element of a tensor as a number, and as a tensor without dimensions.

    A tensor without elements has none, nor has one that is sparse or quantized.
    """
    if not isinstance(value, Tensor) or not value.numel():
        return None
    if value.layout is not torch.strided or value.is_quantized:
        return None
    first = value.flatten()[0].clone()
    return Conversion(first.item(), first)


def tensor_of(number: object) -> Tensor:
    """Return a number as a tensor without dimensions, in double precision.

    By default torch makes float32 of 0.1, which is another number.
    """
    kinds = {float: torch.float64, complex: torch.complex128}
    return torch.tensor(number, dtype=kinds.get(type(number)))


def _tensor_for_number(number: object) -> Conversion:
    """Return a number as a tensor. The plain call gets the number itself."""
    return Conversion(tensor_of(number), number)


def _list_for_one(value: object) -> Conversion:
    """Return the dimension 1 as the list [1]."""
    return Conversion([value], value)


def _one_for_list(value: object) -> Conversion | None:
    """Return the list [1] as the dimension 1. A longer list has no such form."""
    if not isinstance(value, Sequence) or len(value) != 1:
        return None
    return Conversion(value[0], value)


_Converter = Callable[[object], Conversion | None]
_CONVERTERS: dict[tuple[str, str], _Converter] = {
    ("Tensor", "number"): element_of,
    ("Tensor", "Scalar"): element_of,
    ("number", "Tensor"): _tensor_for_number,
    ("Scalar", "Tensor"): _tensor_for_number,
}
"""What makes of a value of the first type one of the second."""
_CONVERTERS_OF_DIMENSIONS: dict[tuple[str, str], _Converter] = {
    ("int", "List[int]"): _list_for_one,
    ("List[int]", "int"): _one_for_list,
}
"""The same for an argument whose name is `dim`. A size is no list of one size."""


def without_optional(kind: str) -> str:
    """Return the type in an optional one: `int` of `Optional[int]`, and `int` of `int`."""
    if not kind.startswith(_OPTIONAL):
        return kind
    return kind.removeprefix(_OPTIONAL).removesuffix("]")


def are_default(call: OverloadCall, arguments: Iterable[Argument]) -> bool:
    """Return whether a call says nothing with these arguments.

    `add(x, y, alpha=1)` says nothing with `alpha`, and `add(x, y, alpha=2)` does.
    """
    return all(_is_default(call.values.get(argument.name), argument) for argument in arguments)


def _is_default(value: object, argument: Argument) -> bool:
    """Return whether a value is None or the default of an argument."""
    if value is None:
        return True
    return argument.has_default_value() and bool(value == argument.default_value)


# --- categories of numbers ------------------------------------------------------------------------


def is_plain_number(value: object) -> bool:
    """Return whether a value is a number of Python, such as 1.5 or True."""
    return isinstance(value, _NUMBERS)


def categories(values: Iterable[object]) -> list[int]:
    """Return the category of each number among values.

    A tensor without dimensions is a number too: [tensor(1.5), 2, [3, 4]] has [2, 1].
    """
    result: list[int] = []
    for value in values:
        if isinstance(value, Tensor):
            # one with dimensions is no number: torch's promotion counts it before any
            if value.ndim == 0:
                result.append(category(value.dtype))
        elif isinstance(value, _NUMBERS):
            # by the type itself: a bool is an int for isinstance
            result.append(_NUMBERS.index(type(value)))
    return result


def category(dtype: torch.dtype) -> int:
    """Return the place of a dtype among truths, whole, real and complex numbers.

    It is 0 for bool, 1 for int64, 2 for float32 and 3 for complex64.
    """
    if dtype is torch.bool:
        return 0
    return 1 + dtype.is_floating_point + 2 * dtype.is_complex
