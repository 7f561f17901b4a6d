"""Describe the arguments of a call of a kernel, so that they fit into a line of a file.

    {"self": {"shape": [3, 4], "dtype": "float32"}, "dim": [1], "keepdim": false}

A description is a value of JSON. :func:`describe` makes it of an argument, and :func:`build` makes
the argument again. Numbers of floating tensors are drawn, unless the description has them. Tensors
of other layouts are made of dense ones, so that a description of them is as short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from gen.torch_private.aten_overloads import MKLDNN

__all__ = ["Arguments", "Described", "Undescribed", "build", "describe", "is_tensor"]

Tensor = torch.Tensor
Described = Any  # a value of JSON, whose type says what is described
Arguments = dict[str, Described]
"""What a call gets, by the names of the schema."""
Place = Callable[[Tensor], Tensor]
_MOST_NUMBERS = 64  # that a description has verbatim
_LARGEST = 4096  # elements of a tensor: larger ones show no more
_ENUMS: dict[str, type] = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}
"""Kinds of arguments that are objects of torch with a name."""
_MADE_OF_DENSE: dict[str, Callable[[Tensor], Tensor]] = {
    "sparse_coo": lambda x: x.to_sparse(),
    "sparse_csr": lambda x: x.to_sparse_csr(),
    "sparse_csc": lambda x: x.to_sparse_csc(),
    "sparse_bsr": lambda x: x.to_sparse_bsr((1, 1)),
    "sparse_bsc": lambda x: x.to_sparse_bsc((1, 1)),
    str(MKLDNN).removeprefix("torch."): lambda x: x.to_mkldnn(),
    "nested": lambda x: torch.nested.nested_tensor(list(x.unbind())),
}
"""What makes a tensor of another layout, by its name."""
_QUANTIZED = (torch.quint8, torch.qint8, torch.qint32)


class Undescribed(Exception):
    """An argument has no description, such as a tensor of a subclass, or is of none, such as a
    compressed tensor of one dimension."""


def describe(value: object, *, exact: bool) -> Described:
    """Return the description of an argument.

    ``value``: a tensor, a number, a text, a list of these, a dtype, a layout, a device, a memory
    format, a generator or None. A tensor with gaps in memory is described without them.

    ``exact``: floating tensors keep their numbers, which are else drawn anew. Raises Undescribed
    for a tensor that is too large, and for a value of another kind.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        # JSON has neither infinities nor NaN.
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, Tensor):
        return _describe_tensor(value, exact)
    if isinstance(value, (list, tuple)):
        return [describe(element, exact=exact) for element in value]
    return _describe_object(value)


def _describe_object(value: object) -> Described:
    """Return the description of a dtype, a layout, a device or a generator."""
    for name, kind in _ENUMS.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, torch.Generator):
        return {"generator": 0}  # its state, of some thousand bytes, says no more than a seed
    raise Undescribed(f"a {type(value).__name__}")


def _describe_tensor(x: Tensor, exact: bool) -> Described:
    """Return the description of a tensor: its shape, its dtype, and what else it needs."""
    if type(x) not in (Tensor, torch.nn.Parameter) or x.device.type != "cpu":
        raise Undescribed("a tensor of a subclass, or of another device")
    if x.is_nested:
        return _describe_nested(x)
    if math.prod(x.shape) > _LARGEST:
        raise Undescribed(f"{math.prod(x.shape)} elements")
    described: Described = {"shape": list(x.shape), "dtype": _name(x.dtype)}
    # Whole numbers may be indices or lengths, which fit the sizes. Others can be drawn.
    needs_numbers = exact or _is_whole(x)
    if x.layout is not torch.strided:
        described["layout"] = _name(x.layout)
    elif needs_numbers and not x.is_quantized and x.numel() <= _MOST_NUMBERS:
        described["numbers"] = _numbers(x)
    return described


def _describe_nested(x: Tensor) -> Described:
    """Return the description of a nested tensor, whose components have the shape of the first."""
    parts = x.unbind()
    if x.layout is not torch.strided or not parts:
        raise Undescribed("a jagged tensor, or one without components")
    shape = [len(parts), *parts[0].shape]
    return {"shape": shape, "dtype": _name(x.dtype), "layout": "nested"}


def _is_whole(x: Tensor) -> bool:
    """Return whether the elements are whole numbers or booleans."""
    return not x.dtype.is_floating_point and not x.dtype.is_complex


def _numbers(x: Tensor) -> list[Any]:
    """Return the elements of a tensor, those of complex tensors in pairs."""
    # view_as_real refuses a tensor whose conjugation is still to be done.
    x = x.detach().resolve_conj().resolve_neg()
    if x.is_complex():
        x = torch.view_as_real(x)
    if x.is_floating_point():
        x = x.double()
    flat: list[Any] = x.flatten().tolist()
    return [describe(number, exact=True) for number in flat]


def _name(value: object) -> str:
    """Return a name of torch without the module: `float32`."""
    return str(value).removeprefix("torch.")


def is_tensor(described: Described) -> bool:
    """Return whether a description is that of a tensor."""
    return isinstance(described, Mapping) and "shape" in described


def build(described: Described, place: Place, seed: int = 0) -> Any:
    """Return the argument of a description.

    ``place`` puts the elements of a dense tensor somewhere, and returns the tensor there. Tensors
    of other layouts lie where torch puts them.

    ``seed``: of the numbers that are drawn. The tensors of a list have one each, and the same
    description with the same seed has the same numbers in each call.
    """
    if isinstance(described, list):
        return [build(element, place, seed + index) for index, element in enumerate(described)]
    if not isinstance(described, Mapping):
        return described
    if is_tensor(described):
        return _build_tensor(described, place, seed)
    ((kind, value),) = described.items()
    return _BUILDERS[kind](value)


_BUILDERS: dict[str, Callable[[Any], object]] = {
    "float": float,
    "complex": lambda pair: complex(*pair),
    "device": torch.device,
    "generator": lambda seed: torch.Generator().manual_seed(seed),
    **dict.fromkeys(_ENUMS, lambda name: getattr(torch, name)),
}
"""What makes an argument of its description, by the kind."""


def _build_tensor(described: Mapping[str, Any], place: Place, seed: int) -> Tensor:
    """Return the tensor of a description.

    Raises Undescribed if there is none, as a wrong call may ask for a compressed tensor without
    dimensions.
    """
    dtype, layout = getattr(torch, described["dtype"]), described.get("layout", "strided")
    shape = described["shape"]
    if dtype in _QUANTIZED:
        return torch.quantize_per_tensor(_drawn(tuple(shape), torch.float32, seed), 0.1, 0, dtype)
    dense = _dense(described, dtype, seed)
    if layout == "strided":
        return place(dense)
    try:
        return _MADE_OF_DENSE[layout](dense)
    except (RuntimeError, IndexError, ValueError) as error:
        # such as a compressed tensor of one dimension
        raise Undescribed(f"no tensor of layout {layout}: {error}") from None


def _dense(described: Mapping[str, Any], dtype: torch.dtype, seed: int) -> Tensor:
    """Return the elements of a tensor: its own, or drawn ones."""
    numbers = described.get("numbers")
    if numbers is None:
        return _drawn(tuple(described["shape"]), dtype, seed)
    return _filled(described["shape"], dtype, numbers)


@lru_cache(maxsize=256)  # the calls of a kernel have most of their tensors in common
def _drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Return drawn numbers: normal ones, or zeros and ones."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        # Not every narrow dtype can be drawn, float8 for one.
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(shape, generator=generator, dtype=wide).to(dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)


def _filled(shape: Sequence[int], dtype: torch.dtype, numbers: Sequence[Any] | float) -> Tensor:
    """Return a tensor of given numbers, or of one number alone.

    Whole numbers go through int64, since floating ones do not hold them all.
    """
    if not isinstance(numbers, list):
        return torch.full(shape, build(numbers, _as_it_is), dtype=dtype)
    flat = [build(number, _as_it_is) for number in numbers]
    if dtype.is_complex:
        pairs = torch.tensor(flat, dtype=torch.float64).reshape(*shape, 2)
        return torch.view_as_complex(pairs).to(dtype)
    wide = torch.int64
    if dtype.is_floating_point:
        wide = torch.float64
    elif dtype is torch.uint64:
        wide = dtype  # int64 does not hold all of its numbers
    return torch.tensor(flat, dtype=wide).to(dtype).reshape(shape)


def _as_it_is(x: Tensor) -> Tensor:
    """Return the tensor where it lies, for values that are no tensors of a call."""
    return x
