"""Make points by the kind of an argument: labels, indices, masks, probabilities, numbers.

    indices      index_select(x, 0, [2, 0, 2])  ->  [2, 2, 0], [0, 2, 2], [0, 0, 0], [-1, -1, -1]
    widths       sum(x[2, 3], 1)                ->  x[2, 7], x[2, 8], x[2, 9], x[2, 15], …

The kind is found by what a sample shows: the dtype of a tensor, the name of its parameter, and
which numbers the op refuses. A word of the axis ``values`` names the points of one kind.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch

from gen.samples.samples import Sample
from gen.samples.seeds import seeded

__all__ = ["ARGUMENT_WORDS", "kinds_of"]

Tensor = torch.Tensor
Inputs = tuple[Tensor, ...]
Filling = tuple[str, Inputs]

WIDTHS = (7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257)
"""Sizes next to those at which kernels split: vectors of 8, 16, 32 and 64, and a block of 256."""
PLACES = 6  # of an input at which one number is replaced
MOST_ELEMENTS = 20_000  # of the widest inputs
USUAL_IGNORED = -100  # the default of `ignore_index` in every loss of torch
_NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_INDEX_DTYPES = (torch.int64, torch.int32)


# --- kinds of arguments ---------------------------------------------------------------------------


def kinds_of(samples: Iterable[Sample]) -> set[str]:
    """Return the kinds of arguments that the samples of an op have, of ``labels``, ``indices``,
    ``masks`` and ``probabilities``, and ``several`` for more than one tensor.
    """
    kinds: set[str] = set()
    for sample in samples:
        tests = {
            "labels": _labels(sample),
            "indices": _places(sample, _is_index),
            "masks": _places(sample, _is_mask),
            "several": sample.inputs[1:],
            "probabilities": () if "probabilities" in kinds else _probabilities(sample),
        }
        kinds |= {kind for kind, places in tests.items() if places}
    return kinds


def _places(sample: Sample, is_of_kind: Callable[[Tensor], bool]) -> list[int]:
    """Return the places of the inputs of a kind. The first input of integers is what the op is
    of.
    """
    dtypes = {x.dtype for x in sample.inputs}
    if len(dtypes) < 2:
        return []
    return [place for place, x in enumerate(sample.inputs) if is_of_kind(x)]


def _is_index(x: Tensor) -> bool:
    return x.dtype in _INDEX_DTYPES and x.ndim > 0 and x.numel() > 0


def _is_mask(x: Tensor) -> bool:
    return x.dtype is torch.bool and x.ndim > 0 and x.numel() > 0


def _labels(sample: Sample) -> list[int]:
    """Return the places of integer inputs whose parameter is a target, or of an op that ignores an
    index.
    """
    places = _places(sample, _is_index)
    if not places or _ignored(sample) is not None:
        return places
    return [place for place in places if _parameter(sample, place).startswith("target")]


def _ignored(sample: Sample) -> int | None:
    """Return the label or index that the call ignores, or None if the op has no such argument."""
    names = _names(sample.op.call)
    kwargs = sample.rebuild(sample.inputs)[1]
    if "ignore_index" in names:
        ignored = kwargs.get("ignore_index", USUAL_IGNORED)
        return ignored if isinstance(ignored, int) else None
    padding = kwargs.get("padding_idx")
    return padding if isinstance(padding, int) else None


def _names(call: Callable[..., object]) -> Sequence[str]:
    """Return the names of the parameters of a function, as far as Python knows them."""
    try:
        return list(inspect.signature(call).parameters)
    except (TypeError, ValueError):  # a function of C++
        return []


def _parameter(sample: Sample, place: int) -> str:
    """Return the name of the parameter that gets the input at `place`, or an empty text."""
    marks: list[Any] = [object() for _ in sample.inputs]
    args, kwargs = sample.rebuild(marks)
    of_keywords = [name for name, value in kwargs.items() if value is marks[place]]
    named = zip(_names(sample.op.call), args, strict=False)
    of_places = [name for name, value in named if value is marks[place]]
    return next(iter([*of_keywords, *of_places]), "")


def _probabilities(sample: Sample) -> list[int]:
    """Return the places of inputs between 0 and 1 for which the op takes no number outside of
    that.
    """
    places = []
    for place, x in enumerate(sample.inputs):
        if x.dtype not in _NUMBERS or not x.numel() or not _is_unit(x):
            continue
        if _takes(sample, place, 0.5) and not (
            _takes(sample, place, 1.5) or _takes(sample, place, -0.5)
        ):
            places.append(place)
    return places


def _is_unit(x: Tensor) -> bool:
    return bool(((x >= 0) & (x <= 1)).all())


def _takes(sample: Sample, place: int, number: float) -> bool:
    """Return whether the op takes an input with this number everywhere."""
    try:
        with seeded(sample.seed):
            sample(*_with(sample, place, torch.full_like(sample.inputs[place], number)))
    except Exception:  # ops refuse numbers by different errors
        return False
    return True


# --- points ---------------------------------------------------------------------------------------


def _with(sample: Sample, place: int, x: Tensor) -> Inputs:
    return (*sample.inputs[:place], x, *sample.inputs[place + 1 :])


def _flat(x: Tensor) -> Tensor:
    """Return a contiguous copy as a vector, and let its owner reshape it."""
    return x.clone(memory_format=torch.contiguous_format).view(-1)


def _set(x: Tensor, where: slice | int, number: float) -> Tensor:
    """Return a copy with a number at some places of it, counted in order."""
    changed = _flat(x)
    changed[where] = number
    return changed.view(x.shape)


def _label_points(sample: Sample) -> Iterator[Filling]:
    """Fill in labels: those that are ignored, −1, all equal, and one out of range."""
    numbers = {-1, USUAL_IGNORED, _ignored(sample)} - {None}
    for place in _labels(sample):
        x = sample.inputs[place]
        for number in sorted(number for number in numbers if number is not None):
            yield f"{number} first in input {place}", _with(sample, place, _set(x, 0, number))
            yield f"{number} last in input {place}", _with(sample, place, _set(x, -1, number))
            every = _set(x, slice(None), number)
            yield f"{number} everywhere in input {place}", _with(sample, place, every)
        equal = torch.full_like(x, int(x.max()))
        yield f"one label everywhere in input {place}", _with(sample, place, equal)
        beyond = max(chain.from_iterable(y.shape for y in sample.inputs))
        yield f"{beyond} first in input {place}", _with(sample, place, _set(x, 0, beyond))


def _index_points(sample: Sample) -> Iterator[Filling]:
    """Fill in indices: in order, in the reverse one, in pairs, each the same, and negative."""
    for place in _places(sample, _is_index):
        for label, changed in _orders(sample.inputs[place]):
            yield f"{label} in input {place}", _with(sample, place, changed)


def _orders(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield an index in other orders, along its last dimension."""
    increasing = x.sort(-1).values
    yield "increasing", increasing
    yield "decreasing", increasing.flip(-1).contiguous()
    yield "turned", x.roll(1, -1)
    yield "in pairs", x[..., torch.arange(x.shape[-1]) // 2 * 2]
    yield "the first everywhere", torch.full_like(x, int(x.min()))
    yield "the last everywhere", torch.full_like(x, int(x.max()))
    yield "negative", x - (int(x.max()) + 1)
    yield "-1 everywhere", torch.full_like(x, -1)


def _mask_points(sample: Sample) -> Iterator[Filling]:
    """Fill in masks: all true, none, one at either end, and all but one."""
    for place in _places(sample, _is_mask):
        x = sample.inputs[place]
        none, every = torch.zeros_like(x), torch.ones_like(x)
        yield f"all of mask {place}", _with(sample, place, every)
        yield f"none of mask {place}", _with(sample, place, none)
        for where, label in ((0, "the first"), (-1, "the last")):
            yield f"{label} of mask {place}", _with(sample, place, _set(none, where, 1))
            yield f"all but {label} of mask {place}", _with(sample, place, _set(every, where, 0))


def _certain_points(sample: Sample) -> Iterator[Filling]:
    """Fill in the probabilities 0 and 1: one of them, all, and both in turn."""
    for place in _probabilities(sample):
        x = sample.inputs[place]
        for number in (0.0, 1.0):
            yield f"{number:g} first in input {place}", _with(sample, place, _set(x, 0, number))
            every = torch.full_like(x, number)
            yield f"{number:g} everywhere in input {place}", _with(sample, place, every)
        in_turn = _set(torch.zeros_like(x), slice(1, None, 2), 1.0)
        yield f"0 and 1 in turn in input {place}", _with(sample, place, in_turn)


def _end_points(sample: Sample) -> Iterator[Filling]:
    """Fill in integers at the ends of the dtype, and positive ones alone."""
    for place, x in enumerate(sample.inputs):
        if not _is_number(sample, x):
            continue
        info = torch.iinfo(x.dtype)
        for number in dict.fromkeys((info.min, info.max, -1 if info.min else 0)):
            every = torch.full_like(x, number)
            yield f"{number} everywhere in input {place}", _with(sample, place, every)
        positive = (torch.arange(x.numel()) % min(info.max, 120) + 1).to(x.dtype)
        yield f"all positive in input {place}", _with(sample, place, positive.view(x.shape))
        ends = torch.full_like(x, info.min)
        in_turn = _set(ends, slice(1, None, 2), info.max)
        yield f"both ends in turn in input {place}", _with(sample, place, in_turn)


def _is_number(sample: Sample, x: Tensor) -> bool:
    """Return whether an input has integers that the op computes with, not indices."""
    if x.is_floating_point() or x.is_complex() or x.dtype is torch.bool or not x.numel():
        return False
    return x.dtype is sample.inputs[0].dtype


def _width_points(sample: Sample) -> Iterator[Filling]:
    """Repeat the inputs along each dimension as long as their last one, to other widths."""
    largest = max(sample.inputs, key=lambda x: x.numel(), default=None)
    if largest is None or not largest.ndim or not largest.numel():
        return
    size = largest.shape[-1]
    for width in WIDTHS:
        inputs = tuple(_widened(x, size, width) for x in sample.inputs)
        if sum(x.numel() for x in inputs) <= MOST_ELEMENTS:
            yield f"width {width}", inputs


def _widened(x: Tensor, size: int, width: int) -> Tensor:
    """Return `x` repeated to `width` along its last dimension of this size."""
    dims = [dim for dim in range(x.ndim) if x.shape[dim] == size]
    if not dims:
        return x
    return x.index_select(dims[-1], torch.arange(width, device=x.device) % size)


def _number_at_each_place(sample: Sample) -> Iterator[Filling]:
    """Replace one entry of one floating input by NaN, and by an infinity, at each place in turn."""
    for place, x in enumerate(sample.inputs):
        if not x.is_floating_point() or not x.numel():
            continue
        for at in _some_places(x.numel()):
            for number in (float("nan"), float("inf") if at % 2 else float("-inf")):
                label = f"{number} at {at} of input {place}"
                yield label, _with(sample, place, _set(x, at, number))


def _some_places(count: int) -> list[int]:
    """Return the first places of an input, its middle and its last one."""
    if count <= PLACES:
        return list(range(count))
    return [*range(PLACES - 3), count // 2, count - 2, count - 1]


def _empty_dims(sample: Sample) -> Iterator[Filling]:
    """Give each size of the inputs the size 0, wherever it occurs, and each dimension alone."""
    sizes = dict.fromkeys(chain.from_iterable(x.shape for x in sample.inputs))
    for size in sizes:
        if size:
            yield f"no entries in place of {size}", tuple(_emptied(x, size) for x in sample.inputs)
    for place, x in enumerate(sample.inputs):
        for dim in range(x.ndim):
            if x.shape[dim]:
                label = f"no entries in dimension {dim} of input {place}"
                yield label, _with(sample, place, x.narrow(dim, 0, 0).contiguous())


def _emptied(x: Tensor, size: int) -> Tensor:
    for dim in range(x.ndim):
        if x.shape[dim] == size:
            x = x.narrow(dim, 0, 0)
    return x.contiguous()


ARGUMENT_WORDS: dict[str, Callable[[Sample], Iterator[Filling]]] = {
    "labels": _label_points,
    "indices": _index_points,
    "masks": _mask_points,
    "certain": _certain_points,
    "ends": _end_points,
    "widths": _width_points,
    "each_place": _number_at_each_place,
    "empty_dims": _empty_dims,
}
"""Fillings by word of the axis ``values``, for points by the kind of an argument."""
