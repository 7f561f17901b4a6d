"""Make the tensors of a recorded call smaller, so that a cell of it takes no longer than others.

    smaller({"args": [{"shape": [128, 64]}, [8, 16, 64]]})
    # first: {"args": [{"shape": [7, 6]}, [4, 5, 6]]}
    # then, with products kept: {"args": [{"shape": [20, 16]}, [4, 5, 16]]}

Which of them the function takes is found by a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gen.recording.hook import Sample

__all__ = ["elements", "smaller"]

SMALL = 4
"""Sizes up to this one stay: they are often kernels, heads and channels."""


def smaller(sample: Sample) -> Iterator[Sample]:
    """Yield smaller forms of a sample, and the sample itself at the end."""
    present = set(_sizes(sample)) | set(_listed(sample))
    large = sorted(n for n in present if n > SMALL)
    if large:
        distinct = {n: SMALL + i for i, n in enumerate(large)}
        for sizes in (distinct, _with_products(present), _parts(large), _largest(large)):
            yield _replaced(sample, sizes)
    yield dict(sample)


def elements(sample: Sample) -> int:
    """Return how many elements the largest tensor of a sample has."""
    counts = [1]
    for shape in _shapes(sample):
        count = 1
        for n in shape:
            count *= n
        counts.append(count)
    return max(counts)


def _with_products(present: set[int]) -> dict[int, int]:
    """Return other sizes. A product of sizes becomes the product of their other sizes."""
    sizes: dict[int, int] = {}
    small = {n for n in present if 1 < n <= SMALL}
    new = SMALL
    for n in sorted(present):
        if n <= SMALL:
            continue
        product = _product(n, sizes, small)
        sizes[n] = product or new
        new += not product
    return sizes


def _product(n: int, sizes: Mapping[int, int], small: set[int]) -> int:
    """Return `n` with each factor that is a size replaced. 0 if there are no such factors."""
    for size in sorted(sizes, reverse=True):
        if n % size:
            continue
        rest = n // size
        other = sizes.get(rest, 0) or _product(rest, sizes, small)
        if rest in small:
            other = rest
        if other:
            return sizes[size] * other
    return 0


def _parts(large: list[int]) -> dict[int, int]:
    """Return all sizes over the largest power of two that leaves at least two of each."""
    power = 1
    while all(n % (2 * power) == 0 and n >= 4 * power for n in large):
        power *= 2
    return {n: n // power for n in large}


def _largest(large: list[int]) -> dict[int, int]:
    """Return other sizes for the largest ones alone, such as those of a batch."""
    free = (n for n in range(SMALL + 1, sum(large)) if n not in large)
    return {n: next(free) for n in large if n > 2 * SMALL}


def _sizes(value: object) -> Iterator[int]:
    for shape in _shapes(value):
        yield from shape


def _listed(sample: Sample) -> Iterator[int]:
    """Yield the whole numbers in lists of a sample, which may be sizes."""
    for argument in (*sample["args"], *sample.get("kwargs", {}).values()):
        yield from _numbers(argument)


def _numbers(value: object) -> Iterator[int]:
    """Yield the whole numbers of a list, a tuple or an inner one."""
    if isinstance(value, list):
        yield from (each for each in value if type(each) is int)
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, Mapping) and "shape" not in value:
        for each in value.values():
            yield from _numbers(each)


def _shapes(value: object) -> Iterator[list[int]]:
    if isinstance(value, list):
        for each in value:
            yield from _shapes(each)
    elif isinstance(value, Mapping):
        if "shape" in value:
            yield value["shape"]
        for each in value.values():
            yield from _shapes(each)


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
    smaller["shape"] = [sizes.get(n, n) for n in tensor["shape"]]
    if tensor.get("high", 0) > SMALL:
        smaller["high"] = min(SMALL, *sizes.values())
        smaller["low"] = min(tensor["low"], smaller["high"] - 1)
    return smaller
