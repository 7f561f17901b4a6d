"""Make points by the kind of an argument: labels, indices, masks, probabilities, numbers.

    indices      index_select(x, 0, [2, 0, 2])  ->  [2, 2, 0], [0, 2, 2], [0, 0, 0], [-1, -1, -1]
    widths       sum(x[2, 3], 1)                ->  x[2, 7], x[2, 8], x[2, 9], x[2, 15], …

The kind is found by what a sample shows: the dtype of a tensor, the name of its parameter, and
which numbers the op refuses. A word of the axis ``values`` names the points of one kind.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch

from gen.samples.samples import Sample
from gen.samples.seeds import seeded

__all__ = ["ARGUMENT_WORDS", "kinds_of"]

Tensor = torch.Tensor
Inputs = tuple[Tensor, ...]
Filling = tuple[str, Inputs]
Change = tuple[str, Tensor]

WIDTHS = (7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257)
"""Sizes next to those at which kernels split: vectors of 8, 16, 32 and 64, and a block of 256."""
PLACES = 6  # of an input at which one number is replaced
MOST_ELEMENTS = 20_000  # of the widest inputs
USUAL_IGNORED = -100  # the default of `ignore_index` in every loss of torch
_NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_INDEX_DTYPES = (torch.int64, torch.int32)
_MASK_DTYPES = (torch.bool,)
_INTEGERS = (
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)


# --- kinds of arguments ---------------------------------------------------------------------------


def kinds_of(samples: Iterable[Sample]) -> set[str]:
    """Return the kinds of arguments that the samples of an op have.

    `samples`: some samples of one op. The op runs on changed inputs, to learn which numbers it
    refuses.

    The result has some of ``labels``, ``indices``, ``masks`` and ``probabilities``, and
    ``several`` for more than one tensor. It is empty if no sample shows any of them.
    """
    shown = list(samples)
    return {kind for kind, places in _PLACES_BY_KIND.items() if any(map(places, shown))}


def _later_places(sample: Sample) -> Sequence[int]:
    """Return the places of all inputs but the first one."""
    return range(1, len(sample.inputs))


def _indices(sample: Sample) -> list[int]:
    return _places(sample, _INDEX_DTYPES)


def _masks(sample: Sample) -> list[int]:
    return _places(sample, _MASK_DTYPES)


def _places(sample: Sample, dtypes: Sequence[torch.dtype]) -> list[int]:
    """Return the places of the inputs of some dtypes that have entries along a dimension.

    There are none if all inputs have one dtype: the op is then of integers, or of masks.
    """
    if len({x.dtype for x in sample.inputs}) < 2:
        return []
    filled = [place for place, x in enumerate(sample.inputs) if _has_entries(x)]
    return [place for place in filled if sample.inputs[place].dtype in dtypes]


def _has_entries(x: Tensor) -> bool:
    """Return whether `x` has a dimension, and none of size 0."""
    return min(x.shape, default=0) > 0


def _labels(sample: Sample) -> list[int]:
    """Return the places of integer inputs whose parameter is a target, or of an op that ignores an
    index.
    """
    places = _indices(sample)
    if not places or _ignored(sample) is not None:
        return places
    return [place for place in places if _parameter(sample, place).startswith("target")]


def _ignored(sample: Sample) -> int | None:
    """Return the label or index that the call ignores, or None if the op has no such argument."""
    kwargs = sample.rebuild(sample.inputs)[1]
    ignored = kwargs.get("padding_idx")
    if "ignore_index" in _names(sample.op.call):
        ignored = kwargs.get("ignore_index", USUAL_IGNORED)
    return ignored if isinstance(ignored, int) else None


def _names(call: Callable[..., object]) -> Sequence[str]:
    """Return the names of the parameters of a function, as far as Python knows them."""
    try:
        return list(inspect.signature(call).parameters)
    except (TypeError, ValueError):  # a function of C++
        return []


def _parameter(sample: Sample, place: int) -> str:
    """Return the name of the parameter that gets the input at `place`, or an empty text."""
    mark: Any = object()
    # The mark equals nothing but itself, so it shows at which parameter the input arrives.
    args, kwargs = sample.rebuild(_with(sample, place, mark))
    named = [*kwargs.items(), *zip(_names(sample.op.call), args, strict=False)]
    return next((name for name, value in named if value is mark), "")


def _probabilities(sample: Sample) -> list[int]:
    """Return the places of inputs between 0 and 1 for which the op takes no number outside of
    that.
    """
    units = [place for place, x in enumerate(sample.inputs) if _is_unit(x)]
    # Ordinary inputs may lie between 0 and 1 by chance, so the op itself is asked.
    return [place for place in units if _takes_units_alone(sample, place)]


def _is_unit(x: Tensor) -> bool:
    """Return whether `x` has real numbers, all of them between 0 and 1."""
    if x.dtype not in _NUMBERS or not x.numel():
        return False
    return bool(((x >= 0) & (x <= 1)).all())


def _takes_units_alone(sample: Sample, place: int) -> bool:
    """Return whether the op takes a number between 0 and 1 there, but none above or below."""
    if not _takes(sample, place, 0.5):
        return False
    return not any(_takes(sample, place, outside) for outside in (1.5, -0.5))


def _takes(sample: Sample, place: int, number: float) -> bool:
    """Return whether the op takes an input with this number everywhere."""
    try:
        # With one seed, a random op draws the same numbers for each input.
        with seeded(sample.seed):
            sample(*_with(sample, place, torch.full_like(sample.inputs[place], number)))
    except Exception:  # ops refuse numbers by different errors
        return False
    return True


_PLACES_BY_KIND: dict[str, Callable[[Sample], Sequence[int]]] = {
    "labels": _labels,
    "indices": _indices,
    "masks": _masks,
    "several": _later_places,
    "probabilities": _probabilities,
}
"""What finds the inputs of each kind. The kind is shown by a sample in which there are some."""


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


def _change_one(
    sample: Sample,
    places: Iterable[int],
    changes: Callable[[Tensor], Iterator[Change]],
    of: str = "in input",
) -> Iterator[Filling]:
    """Yield the inputs with one of them changed, for each of `places` in turn.

    `changes` yields what an input may become, each with a label. `of` joins a label with the place
    of the input: "increasing" becomes "increasing in input 2".
    """
    for place in places:
        for label, changed in changes(sample.inputs[place]):
            yield f"{label} {of} {place}", _with(sample, place, changed)


def _label_points(sample: Sample) -> Iterator[Filling]:
    """Fill in labels: those that are ignored, −1, all equal, and one out of range."""
    return _change_one(sample, _labels(sample), partial(_other_labels, sample))


def _other_labels(sample: Sample, x: Tensor) -> Iterator[Change]:
    """Yield labels of which some are ignored, or all are the same, or one is out of range."""
    numbers = {-1, USUAL_IGNORED}
    ignored = _ignored(sample)
    if ignored is not None:
        numbers.add(ignored)
    for number in sorted(numbers):
        yield f"{number} first", _set(x, 0, number)
        yield f"{number} last", _set(x, -1, number)
        yield f"{number} everywhere", _set(x, slice(None), number)
    yield "one label everywhere", torch.full_like(x, int(x.max()))
    # The number of classes is one of the sizes, but no sample says which. The largest size is out
    # of range in any case.
    beyond = max(chain.from_iterable(y.shape for y in sample.inputs))
    yield f"{beyond} first", _set(x, 0, beyond)


def _index_points(sample: Sample) -> Iterator[Filling]:
    """Fill in indices: in order, in the reverse one, in pairs, each the same, and negative."""
    return _change_one(sample, _indices(sample), _orders)


def _orders(x: Tensor) -> Iterator[Change]:
    """Yield an index in other orders, along its last dimension."""
    increasing = x.sort(-1).values
    yield "increasing", increasing
    yield "decreasing", increasing.flip(-1).contiguous()
    yield "turned", x.roll(1, -1)
    yield "in pairs", x[..., torch.arange(x.shape[-1]) // 2 * 2]
    yield "the first everywhere", torch.full_like(x, int(x.min()))
    yield "the last everywhere", torch.full_like(x, int(x.max()))
    # The largest index becomes -1, which means the last place for some ops.
    yield "negative", x - (int(x.max()) + 1)
    yield "-1 everywhere", torch.full_like(x, -1)


def _mask_points(sample: Sample) -> Iterator[Filling]:
    """Fill in masks: all true, none, one at either end, and all but one."""
    return _change_one(sample, _masks(sample), _other_masks, of="of mask")


def _other_masks(x: Tensor) -> Iterator[Change]:
    """Yield a mask that is true, one that is false, and those with one end unlike the rest."""
    none, every = torch.zeros_like(x), torch.ones_like(x)
    yield "all", every
    yield "none", none
    for where, label in ((0, "the first"), (-1, "the last")):
        yield label, _set(none, where, 1)
        yield f"all but {label}", _set(every, where, 0)


def _certain_points(sample: Sample) -> Iterator[Filling]:
    """Fill in the probabilities 0 and 1: one of them, all, and both in turn."""
    return _change_one(sample, _probabilities(sample), _certainties)


def _certainties(x: Tensor) -> Iterator[Change]:
    """Yield probabilities of which some or all are 0 or 1."""
    for number in (0.0, 1.0):
        yield f"{number:g} first", _set(x, 0, number)
        yield f"{number:g} everywhere", torch.full_like(x, number)
    yield "0 and 1 in turn", _set(torch.zeros_like(x), slice(1, None, 2), 1.0)


def _end_points(sample: Sample) -> Iterator[Filling]:
    """Fill in integers at the ends of the dtype, and positive ones alone."""
    return _change_one(sample, _integers(sample), _ends)


def _integers(sample: Sample) -> list[int]:
    """Return the places of integers that the op computes with. Indices differ from the first input
    in dtype.
    """
    inputs = sample.inputs
    if not inputs or inputs[0].dtype not in _INTEGERS:
        return []
    return [place for place, x in enumerate(inputs) if x.dtype is inputs[0].dtype and x.numel()]


def _ends(x: Tensor) -> Iterator[Change]:
    """Yield integers at the ends of the dtype, and positive ones."""
    info = torch.iinfo(x.dtype)
    # without a sign, the number next to −1 that the dtype has is its lower end
    for number in dict.fromkeys((info.min, info.max, max(info.min, -1))):
        yield f"{number} everywhere", torch.full_like(x, number)
    positive = (torch.arange(x.numel()) % min(info.max, 120) + 1).to(x.dtype)
    yield "all positive", positive.view(x.shape)
    ends = torch.full_like(x, info.min)
    yield "both ends in turn", _set(ends, slice(1, None, 2), info.max)


def _width_points(sample: Sample) -> Iterator[Filling]:
    """Repeat the inputs along each dimension as long as their last one, to other widths."""
    largest = max(sample.inputs, key=lambda x: x.numel(), default=None)
    if largest is None or not _has_entries(largest):
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
    floating = [place for place, x in enumerate(sample.inputs) if x.is_floating_point()]
    return _change_one(sample, floating, _special_at_each_place, of="of input")


def _special_at_each_place(x: Tensor) -> Iterator[Change]:
    """Yield an input with NaN at one place, and with an infinity, whose signs take turns."""
    for place in _some_places(x.numel()):
        infinity = math.inf if place % 2 else -math.inf
        for number in (math.nan, infinity):
            yield f"{number} at {place}", _set(x, place, number)


def _some_places(count: int) -> list[int]:
    """Return the first places of an input, its middle and its last one."""
    if count <= PLACES:
        return list(range(count))
    return [*range(PLACES - 3), count // 2, count - 2, count - 1]


def _empty_dims(sample: Sample) -> Iterator[Filling]:
    """Give each size of the inputs the size 0, wherever it occurs, and each dimension alone."""
    sizes = dict.fromkeys(chain.from_iterable(x.shape for x in sample.inputs))
    for size in filter(None, sizes):
        yield f"no entries in place of {size}", tuple(_emptied(x, size) for x in sample.inputs)
    places = range(len(sample.inputs))
    yield from _change_one(sample, places, _with_an_empty_dim, of="of input")


def _with_an_empty_dim(x: Tensor) -> Iterator[Change]:
    for dim, size in enumerate(x.shape):
        if size:
            yield f"no entries in dimension {dim}", x.narrow(dim, 0, 0).contiguous()


def _emptied(x: Tensor, size: int) -> Tensor:
    """Return `x` with 0 in place of each dimension of this size."""
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
