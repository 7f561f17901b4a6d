"""Compute the results of an op piece by piece, where the op treats the pieces apart.

    split = splits(torch.add, (x, y))[0]         # of two matrices: rows with rows give rows
    results(torch.add, (x, y), split, [0, 3])    # rows 0 and 3, each from one row of x and of y

A kernel takes other paths for a row of 64 numbers than for one number: whole vectors, then the
rest. So the pieces of a result are a reference that shares the op, and not these paths.

Whether an op treats pieces apart is found by a trial on ordinary inputs, and again on the same
inputs in another order. Nothing is known of the op by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, product, starmap

import torch

__all__ = ["Split", "agree", "joined", "positions", "results", "splits"]

Tensor = torch.Tensor
Inputs = tuple[Tensor, ...]
Function = Callable[..., Sequence[Tensor]]
MOST = 24  # choices of dimensions that are tried for one dimension of the result
_EDGES = {0, 1, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256}  # of vectors and blocks of them


@dataclass(frozen=True)
class Split:
    """Where inputs and results are cut: a dimension of each, and None for an input that each piece
    gets as a whole.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]

    def size(self, inputs: Sequence[Tensor]) -> int | None:
        """Return the number of pieces. None if the inputs do not agree on it."""
        sizes = set(starmap(_size, zip(inputs, self.inputs, strict=True))) - {None}
        if len(sizes) != 1:
            return None
        return sizes.pop()

    def has_results(self, outputs: Sequence[Tensor], size: int) -> bool:
        """Return whether there are as many results as at the trial, each cut into `size` pieces."""
        if len(outputs) != len(self.outputs):
            return False
        return set(map(_size, outputs, self.outputs)) <= {size}

    def piece(self, inputs: Sequence[Tensor], position: int) -> Inputs:
        """Return the inputs of one piece, with a size 1 where they are cut. Each is contiguous."""
        return tuple(_cut(x, dim, position) for x, dim in zip(inputs, self.inputs, strict=True))


def _size(x: Tensor, dim: int | None) -> int | None:
    """Return the size of a dimension. None if `x` is not cut, or has no such dimension."""
    if dim is None or dim >= x.ndim:
        return None
    return x.shape[dim]


def _cut(x: Tensor, dim: int | None, position: int) -> Tensor:
    if dim is None:
        return x.clone()
    return x.narrow(dim, position, 1).clone(memory_format=torch.contiguous_format)


def splits(f: Function, inputs: Inputs) -> list[Split]:
    """Return the splits that `f` has at `inputs`: one for each dimension of its first result that
    has any.

    `f` runs on the inputs, on other numbers, and on pieces of both. The list is empty if `f`
    refuses the inputs, or if none of its dimensions is longer than 1. Errors of `f` are not raised.
    """
    outputs = _run(f, inputs)
    if not outputs:
        return []
    found: list[Split] = []
    for dim, size in enumerate(outputs[0].shape):
        if size > 1:  # one piece alone shows nothing
            choices = islice(_choices(inputs, outputs, dim, size), MOST)
            found += islice(filter(partial(_holds, f, inputs), choices), 1)
    return found


def agree(f: Function, inputs: Inputs, others: Inputs) -> bool:
    """Return whether `f` takes both and gives the same for them."""
    first, second = _run(f, inputs), _run(f, others)
    if first is None or second is None:
        return False
    return _all_agree(first, second)


def positions(size: int) -> list[int]:
    """Return which of `size` pieces are looked at: all of a few, and of many those at the ends of
    vectors.
    """
    if size <= 20:
        return list(range(size))
    looked_at = _EDGES | {size - 2, size - 1}
    return sorted(looked_at.intersection(range(size)))


def results(
    f: Function, inputs: Sequence[Tensor], split: Split, places: Sequence[int]
) -> tuple[Tensor, ...]:
    """Return the results at `places`, each computed from a piece of the inputs.

    `split` is one of :func:`splits`. Raises what `f` raises for a piece, and what :func:`joined`
    raises.
    """
    return joined([f(*split.piece(inputs, place)) for place in places], split)


def joined(parts: Sequence[Sequence[Tensor]], split: Split) -> tuple[Tensor, ...]:
    """Return the results of several pieces, one after the other along the cuts.

    Raises RuntimeError if their shapes differ, as those do that depend on values.
    """
    columns = zip(*parts, strict=True)
    return tuple(torch.cat(column, dim) for column, dim in zip(columns, split.outputs, strict=True))


def _choices(inputs: Inputs, outputs: Sequence[Tensor], dim: int, size: int) -> Iterator[Split]:
    """Yield splits by which dimension `dim` of the first result may come about, those with the
    dimensions at the same place first.
    """
    rank = outputs[0].ndim
    of_outputs = [_like(y, dim, rank, size) for y in outputs]
    cuts = tuple(place for place in of_outputs if place is not None)
    if len(cuts) < len(outputs):
        return
    uncut = (None,) * len(inputs)
    choices_of_inputs = [_dims(x, dim, rank, size) for x in inputs]
    for chosen in product(*choices_of_inputs):
        # pieces that all get the whole inputs would be the whole result
        if chosen != uncut:
            yield Split(chosen, cuts)


def _like(y: Tensor, dim: int, rank: int, size: int) -> int | None:
    """Return the dimension of another result that is like dimension `dim` of the first one."""
    places = _places_of(y, size)
    for place in (dim, dim + y.ndim - rank):
        if place in places:
            return place
    return None


def _dims(x: Tensor, dim: int, rank: int, size: int) -> list[int | None]:
    """Return the dimensions of an input of this size, and None for an input that is not cut.

    The place to which broadcasting aligns it comes first, then None: an op like ``nextafter`` gives
    almost its first input, whatever else is cut.
    """
    places = _places_of(x, size)
    likely = dim + x.ndim - rank
    if likely not in places:
        return [None, *places]
    places.remove(likely)
    return [likely, None, *places]


def _places_of(x: Tensor, size: int) -> list[int]:
    """Return the dimensions of `x` that have this size."""
    return [dim for dim in range(x.ndim) if x.shape[dim] == size]


def _holds(f: Function, inputs: Inputs, split: Split) -> bool:
    """Return whether the pieces of `f` are the results of the pieces: at the inputs, at the same
    in another order, and at numbers that differ.

    Of zeros alone, a cumulative product is that of each piece too.
    """
    if not _holds_at(f, inputs, split):
        return False
    turned = tuple(x.flip(tuple(range(x.ndim))) for x in inputs)
    if not _holds_at(f, turned, split, refused=True):
        return False
    others = tuple(_numbered(x) if x.dtype is inputs[0].dtype else x for x in inputs)
    return _holds_at(f, others, split, refused=True)


def _numbered(x: Tensor) -> Tensor:
    """Return numbers from 2 to 9 in the shape of `x`, neighbours different; masks as they are."""
    if x.dtype is torch.bool:
        return x
    # 5 and 8 have no common divisor, so eight neighbours are eight numbers
    numbers = 2 + torch.arange(x.numel(), device=x.device) * 5 % 8
    return numbers.to(x.dtype).reshape(x.shape)


def _holds_at(f: Function, inputs: Inputs, split: Split, refused: bool = False) -> bool:
    """Return whether the pieces agree. `refused`: what holds if `f` does not take the inputs."""
    whole = _run(f, inputs)
    if whole is None:
        return refused
    size = split.size(inputs)
    if size is None:
        return False
    try:
        parts = results(f, inputs, split, range(size))
    except Exception:  # ops refuse pieces by different errors
        return False
    return _all_agree(parts, whole)


def _all_agree(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return whether there are as many of both, and each agrees with the one at its place."""
    return len(some) == len(others) and all(map(_agree, some, others))


def _agree(piece: Tensor, whole: Tensor) -> bool:
    if (piece.shape, piece.dtype) != (whole.shape, whole.dtype):
        return False
    # A piece may be rounded otherwise. An op that mixes pieces is far off.
    return bool(torch.isclose(piece, whole, rtol=1e-4, atol=1e-5, equal_nan=True).all())


def _run(f: Function, inputs: Inputs) -> Sequence[Tensor] | None:
    """Return the results, or None if `f` refuses the inputs."""
    try:
        return f(*inputs)
    except Exception:  # of any class: kernels and Python raise different ones
        return None
