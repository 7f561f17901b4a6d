"""Make the tensors of a recorded call smaller, so that a cell of it takes no longer than others.

    smaller({"args": [{"shape": [128, 64]}, [8, 16, 64]]})
    # first: {"args": [{"shape": [7, 6]}, [4, 5, 6]]}
    # then, with products kept: {"args": [{"shape": [20, 16]}, [4, 5, 16]]}

Which of them the function takes is found by a call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count, filterfalse
from typing import Any, TypeGuard

from gen.recording.hook import Sample

__all__ = ["elements", "has_tensor", "smaller"]

SMALL = 4
"""Sizes up to this one stay: they are often kernels, heads and channels."""


def smaller(sample: Sample) -> Iterator[Sample]:
    """Yield smaller forms of a sample, and the sample itself at the end.

    `sample` has descriptions of tensors among its arguments, each with a ``shape``. It is left as
    it is. Each form has other sizes in all shapes, and in the lists of numbers that may be sizes.
    A form need not be a call that the function takes.
    """
    present = {*chain.from_iterable(_shapes(sample)), *_listed(sample)}
    large = sorted(size for size in present if size > SMALL)
    if large:
        # other numbers for other sizes, so that dimensions that differ go on differing
        distinct = dict(zip(large, count(SMALL), strict=False))
        small = present.intersection(range(2, SMALL + 1))
        for sizes in (distinct, _with_products(large, small), _parts(large), _largest(large)):
            yield _replaced(sample, sizes)
    yield dict(sample)


def elements(sample: Sample) -> int:
    """Return how many elements the largest tensor of a sample has. 1 if it has no tensor."""
    return max([1, *map(math.prod, _shapes(sample))])


def has_tensor(sample: Sample) -> bool:
    """Return whether an argument of a sample has a tensor."""
    return any(True for _ in _shapes(sample))


def _with_products(large: list[int], small: set[int]) -> dict[int, int]:
    """Return other sizes for the large ones. A product of sizes becomes the product of their other
    sizes.
    """
    sizes: dict[int, int] = {}
    new = SMALL
    # in ascending order, so that the factors of a size have theirs before
    for size in large:
        product = _product(size, sizes, small)
        sizes[size] = product or new
        if not product:
            new += 1
    return sizes


def _product(number: int, sizes: Mapping[int, int], small: set[int]) -> int:
    """Return `number` with each factor that is a size replaced. 0 if there are no such factors."""
    for size in sorted(sizes, reverse=True):
        if number % size:
            continue
        rest = number // size
        other = sizes.get(rest, 0) or _product(rest, sizes, small)
        # a small size stays as it is
        if rest in small:
            other = rest
        if other:
            return sizes[size] * other
    return 0


def _parts(large: list[int]) -> dict[int, int]:
    """Return all sizes over the largest power of two that leaves at least two of each."""
    common, smallest = math.gcd(*large), min(large)
    power = 1
    while common % (2 * power) == 0 and smallest >= 4 * power:
        power *= 2
    return {size: size // power for size in large}


def _largest(large: list[int]) -> dict[int, int]:
    """Return other sizes for the largest ones alone, such as those of a batch."""
    # numbers that are no size yet, so that no two sizes become one
    free = filterfalse(large.__contains__, count(SMALL + 1))
    return {size: next(free) for size in large if size > 2 * SMALL}


def _listed(sample: Sample) -> Iterator[int]:
    """Yield the whole numbers in lists of a sample, which may be sizes."""
    for argument in (*sample["args"], *sample.get("kwargs", {}).values()):
        yield from _numbers(argument)


def _numbers(value: object) -> Iterator[int]:
    """Yield the whole numbers of a list, a tuple or an inner one, but no size of a tensor."""
    if _is_tensor(value):
        return
    for each in _children(value):
        # not isinstance, by which a truth is an int
        if isinstance(value, list) and type(each) is int:
            yield each
        yield from _numbers(each)


def _shapes(value: object) -> Iterator[list[int]]:
    """Yield the shapes of all tensors in a value, the outer ones before those inside of them."""
    if _is_tensor(value):
        yield value["shape"]
    for each in _children(value):
        yield from _shapes(each)


def _is_tensor(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a value describes a tensor."""
    return isinstance(value, Mapping) and "shape" in value


def _children(value: object) -> Iterable[object]:
    """Return what is inside of a list or a mapping. Other values have nothing inside."""
    if isinstance(value, list):
        return value
    if isinstance(value, Mapping):
        return value.values()
    return ()


def _replaced(value: Any, sizes: Mapping[int, int]) -> Any:
    """Return a value with other sizes in its shapes, and in the numbers that are sizes."""
    if isinstance(value, list):
        return [_replaced(each, sizes) for each in value]
    if type(value) is int:
        return sizes.get(value, value)
    if not isinstance(value, dict):
        return value
    if "shape" in value:
        return _smaller_tensor(value, sizes)
    return {key: _replaced(each, sizes) for key, each in value.items()}


def _smaller_tensor(tensor: Sample, sizes: Mapping[int, int]) -> Sample:
    """Return a tensor of another shape. Its integers are below each size that is new."""
    smaller = dict(tensor)
    smaller["shape"] = [sizes.get(size, size) for size in tensor["shape"]]
    # integers of a tensor are often indices, and a dimension that they index may be smaller now
    if tensor.get("high", 0) > SMALL:
        smaller["high"] = min([SMALL, *sizes.values()])
        smaller["low"] = min(tensor["low"], smaller["high"] - 1)
    return smaller
