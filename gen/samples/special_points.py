"""Make special points: ties, kinks, zeros of either sign, infinities, NaN and rows without numbers,
for ops in the tables of :mod:`gen.reference.standard`.

Ops that round nothing also get the limits of the dtype and its subnormal numbers. An elementwise op
gets vectors with every combination of chosen numbers, and in addition the numbers among its other
arguments. A reduction gets tensors in which a short pattern repeats, so that each row has another
part of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, product
from typing import TypeVar

import torch

from gen.reference.special_numbers import POINTWISE
from gen.reference.standard import REFUSALS, Standard, is_exact, is_known, numbers
from gen.samples.samples import Sample

__all__ = ["chosen", "fillings"]

Tensor = torch.Tensor
Inputs = tuple[Tensor, ...]
T = TypeVar("T")
NAN, INF = math.nan, math.inf

_FEW: list[float] = [NAN, INF, -INF, 0.0, -0.0, 1.0, -2.5]
_PAIRED: list[float] = [*_FEW, -1.0, 0.5, 2.0, 3.0]
_SINGLE: list[float] = [*_PAIRED, -0.5, 1.5, -1.5, 2.5, -3.0, 6.0, 20.0, -6.0, 0.25]
_WHOLE = [0, 1, -1, 2, -2, 3, -7, 5]
_PATTERNS: dict[str, list[float]] = {
    "ties": [1.0, 2.0, 2.0, -1.0, 2.0],
    "all equal": [1.5],
    "NaN among numbers": [1.0, NAN, 3.0, 2.0, 2.0, 0.5, -1.0],
    "all NaN": [NAN],
    "an infinity": [INF, 1.0, 2.0, -1.0, 2.0, 0.5, 3.0],
    "a negative infinity": [-INF, 1.0, 2.0, -1.0, 2.0, 0.5, 3.0],
    "both infinities": [INF, -INF, 1.0, 2.0, -INF],
    "infinities alone": [INF],
    "negative infinities alone": [-INF],
    "infinities and NaN": [INF, NAN, -INF, 1.0, 1.0],
    "zeros": [0.0],
    "zeros of either sign": [0.0, -0.0, -0.0],
    "one zero": [2.0, 0.0, 3.0, -1.0, 0.5, 1.5, 2.0],
    "several zeros": [0.0, 2.0, 0.0, 3.0, -1.0],
    "opposite": [2.0, -2.0, 1.0, -1.0, 0.5],
}
"""Numbers that repeat in a tensor. Their counts have no factor in common with its sizes."""
_SIZES = (4, 3, 2, 2)
_MOST = 24  # calls with other arguments
_LARGEST = 500  # entries of a vector, or as many as have every pair
_GOLDEN = (math.sqrt(5) - 1) / 2  # whose multiples, without their whole numbers, spread evenly


def chosen(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples that differ in more than sizes and values, which are replaced."""
    first: dict[object, Sample] = {}
    for sample in samples:
        if is_known(sample.op.name) and sample.error is None and _is_suitable(sample):
            rank: int | None = sample.inputs[0].ndim
            if sample.op.name in POINTWISE:
                rank = None
            first.setdefault((len(sample.inputs), rank, *sample.signature[1:]), sample)
    numbered = list(enumerate(first.values()))
    # spread over all samples, and then in their order again
    some = sorted(_evenly(numbered)[:_MOST], key=lambda pair: pair[0])
    return [sample for _, sample in some]


def _is_suitable(sample: Sample) -> bool:
    if sample.op.name in POINTWISE:
        return bool(sample.inputs) and all(x.numel() for x in sample.facts.outputs)
    return len(sample.inputs) == 1


def fillings(sample: Sample) -> list[tuple[str, Inputs]]:
    """Return ``(label, inputs)`` for the points of the sample, without those that a definition
    refuses.
    """
    if not is_known(sample.op.name):
        return []
    if sample.op.name in POINTWISE:
        vectors = _vectors(sample)
        if not vectors:
            return []
        return [("special numbers", vectors)]
    return [(label, inputs) for label, inputs in _tensors(sample) if _is_defined(sample, inputs)]


def _is_defined(sample: Sample, inputs: Inputs) -> bool:
    """Return whether a definition has results for these inputs."""
    try:
        Standard(sample).root(*map(numbers, inputs))
    except REFUSALS:
        return False
    return True


# --- elementwise ----------------------------------------------------------------------------------


def _vectors(sample: Sample) -> Inputs:
    """Return vectors of one length, one for each input, with the combinations that the definition
    takes.
    """
    choices = [_choices(x, sample) for x in sample.inputs]
    places_of_inputs = [range(len(some)) for some in choices]
    places = []
    # Each combination is tried alone: one that a definition refuses would refuse a whole vector.
    for combination in product(*places_of_inputs):
        if _is_defined(sample, _ones(_row(choices, combination))):
            places.append(combination)
    rows = [_row(choices, combination) for combination in _spread(places)]
    if not rows:
        return ()
    columns = zip(*rows, strict=True)
    return tuple(
        torch.tensor(column, dtype=x.dtype, device=x.device)
        for column, x in zip(columns, sample.inputs, strict=True)
    )


def _row(choices: Sequence[Sequence[float]], places: Sequence[int]) -> tuple[float, ...]:
    return tuple(some[place] for some, place in zip(choices, places, strict=True))


def _spread(places: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return as many combinations as a vector takes, in their order.

    Each pair of choices of two inputs occurs that can, and others evenly.
    """
    if len(places) <= _LARGEST:
        return list(places)
    pairs_so_far: set[tuple[tuple[int, int], ...]] = set()
    needed, others = list[tuple[int, ...]](), list[tuple[int, ...]]()
    for combination in _evenly(places):
        pairs = set(combinations(enumerate(combination), 2))
        if pairs <= pairs_so_far:
            others.append(combination)
        else:
            needed.append(combination)
        pairs_so_far |= pairs
    room = max(0, _LARGEST - len(needed))
    return sorted(needed + others[:room])


def _evenly(some: Sequence[T]) -> list[T]:
    """Return all of `some`, each beginning of them spread over the whole.

    A fixed step would keep step with an argument that alternates.
    """
    return [each for _, each in sorted(enumerate(some), key=lambda pair: pair[0] * _GOLDEN % 1)]


def _ones(row: Sequence[float]) -> Inputs:
    """Return the numbers as vectors of one entry, none rounded."""
    return tuple(map(_one, row))


def _one(value: object) -> Tensor:
    if isinstance(value, float):
        return torch.tensor([value], dtype=torch.float64)
    return torch.tensor([value])


def _is_usual(number: float) -> bool:
    """Return whether a number is no tolerance, next to which rounding counts."""
    return math.isfinite(number) and abs(number) >= 2**-6


def _choices(x: Tensor, sample: Sample) -> Sequence[float]:
    """Return the numbers of which an input takes each one."""
    if x.dtype is torch.bool:
        return [False, True]
    limits: list[float] = []
    if is_exact(sample.op.name):
        limits = _limits(x.dtype)
    if not x.is_floating_point():
        return [*_WHOLE, *limits]
    usual = {1: _SINGLE, 2: _PAIRED}.get(len(sample.inputs), _FEW)
    # not isinstance, of which a boolean is an int
    numbers_of_sample = [number for number in sample.numbers if type(number) in (int, float)]
    kinks = list(map(float, filter(_is_usual, numbers_of_sample)))
    rounded = torch.tensor(kinks, dtype=x.dtype).tolist()
    others = [number for number in rounded if number not in usual]
    return [*usual, *limits, *others]


def _limits(dtype: torch.dtype) -> list[float]:
    """Return the ends of a dtype, and its least numbers: with all of their bits and with fewer.

    Only ops that round nothing have tables for these, as others overflow on the way.
    """
    if not dtype.is_floating_point:
        return [torch.iinfo(dtype).min, torch.iinfo(dtype).max]
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    return [info.max, -info.max, info.smallest_normal, least, -least]


# --- reductions -----------------------------------------------------------------------------------


def _tensors(sample: Sample) -> list[tuple[str, Inputs]]:
    """Return tensors of each pattern that the dtype has, and tensors and rows without numbers."""
    x = sample.inputs[0]
    shape = _SIZES[: x.ndim] if x.ndim > 1 else (5,) * x.ndim
    patterns = dict(_PATTERNS)
    if is_exact(sample.op.name) and x.dtype is not torch.bool:
        patterns["limits"] = [*_limits(x.dtype), 0]
    fillings_by_label: list[tuple[str, Inputs]] = []
    for label, pattern in patterns.items():
        fit = [number for number in pattern if _has(x.dtype, number)]
        if fit:
            fillings_by_label.append((label, (_repeat(fit, shape, x),)))
    if x.ndim > 0:
        fillings_by_label.append(("nothing", (x.new_zeros((0,) * x.ndim),)))
    if x.ndim > 1:
        fillings_by_label.append(("rows of nothing", (x.new_zeros((2, *(0,) * (x.ndim - 1))),)))
    return fillings_by_label


def _has(dtype: torch.dtype, number: float) -> bool:
    return dtype.is_floating_point or (math.isfinite(number) and number == int(number))


def _repeat(pattern: Sequence[float], shape: Sequence[int], x: Tensor) -> Tensor:
    """Return a tensor of this shape in which the pattern repeats, with the dtype of `x`."""
    count = math.prod(shape)
    flat = (list(pattern) * count)[:count]
    if not x.dtype.is_floating_point:
        flat = list(map(int, flat))
    tensor = torch.tensor(flat, dtype=x.dtype)
    return tensor.to(x.device).reshape(shape)
