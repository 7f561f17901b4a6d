"""Fill the inputs of a sample with extreme and degenerate values, and lay them out in memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from gen.outcomes import Unsuitable
from gen.samples import points, special_points
from gen.samples.descriptions import arrange, clone_with_strides
from gen.samples.domains import Domain, is_inexact
from gen.samples.samples import Sample
from gen.torch_private.loaded_with_torch import neg_view

Tensor = torch.Tensor


def fillings(sample: Sample, values: str) -> list[tuple[str, tuple[Tensor, ...]]]:
    """Return ``(name, inputs)``: the sample's own inputs, or those of their extreme or degenerate
    variants that the plain op accepts.
    """
    if values == "ordinary":
        return [("", sample.inputs)]
    if values == "special":
        return _special(sample)
    if values in points.WORDS:
        return _degenerate(sample, values)
    # Each is tried, since ops refuse such numbers and sizes as they like.
    candidates = []
    for name, number in _EXTREMES.items():
        candidates.append((name, tuple(_fill_thirds(x, number) for x in sample.inputs)))
    for name, stop in (("zero-size", 0), ("one element", 1)):
        candidates.append((name, tuple(_truncate(x, stop) for x in sample.inputs)))
    accepted = [(name, inputs) for name, inputs in candidates if accepts(sample, inputs)]
    if not accepted:
        raise Unsuitable(f"{sample.description}: the op takes no extreme values")
    return accepted


def _truncate(x: Tensor, size: int) -> Tensor:
    """Return the first `size` entries along each dimension."""
    return x[(slice(size),) * x.ndim]


def _special(sample: Sample) -> list[tuple[str, tuple[Tensor, ...]]]:
    """Return the special points that the definition has: that the op refuses one is a failure."""
    fillings_at_points = special_points.fillings(sample)
    if not fillings_at_points:
        raise Unsuitable(f"special: {sample.description} has no such points")
    return fillings_at_points


def _degenerate(sample: Sample, word: str) -> list[tuple[str, tuple[Tensor, ...]]]:
    """Return the degenerate points that the plain op accepts."""
    fillings_at_points = points.fillings(sample, word)
    if not fillings_at_points:
        raise Unsuitable(f"{word}: {sample.description} has no such points")
    accepted = [(name, inputs) for name, inputs in fillings_at_points if accepts(sample, inputs)]
    if not accepted:
        raise Unsuitable(f"{word}: {sample.description}: the op refuses these values")
    return accepted


def _fill_thirds(x: Tensor, number_of: Callable[[torch.finfo], float]) -> Tensor:
    """Return `x` with every third element replaced by a number of its dtype, from the first on,
    with alternating signs. Integers and booleans are unchanged.
    """
    if not is_inexact(x.dtype) or not x.numel():
        return x
    number = number_of(torch.finfo(x.dtype))
    flat = x.reshape(-1).clone()
    # two thirds stay ordinary, so that a result has numbers beside NaN
    flat[::3] = number
    flat[3::6] = -number
    return flat.reshape(x.shape)


_EXTREMES: dict[str, Callable[[torch.finfo], float]] = {
    "large": lambda info: info.max / 4,
    "tiny": lambda info: info.tiny,
    "inf": lambda info: math.inf,
    "nan": lambda info: math.nan,
}
"""The extreme number of a dtype, by the name of the filling."""


def accepts(sample: Sample, inputs: tuple[Tensor, ...]) -> bool:
    """Return whether the plain op takes these inputs."""
    try:
        sample(*inputs)
    except Exception:  # ops refuse such values or sizes with different errors
        return False
    return True


def laid_out(inputs: tuple[Tensor, ...], layout: str) -> tuple[Tensor, ...]:
    """Return copies of inputs in a layout, since samples share the inputs.

    ``contiguous`` keeps the strides of the sample, whose description may have a layout of its own.
    ``expanded`` sets stride 0 where a slice repeats, see :func:`repeating`.
    """
    copies = []
    for x in inputs:
        copy = _lay_out(x, layout)
        # a layout that the input has already makes no copy
        if copy is x:
            copy = clone_with_strides(x)
        copies.append(copy)
    return tuple(copies)


def _lay_out(x: Tensor, layout: str) -> Tensor:
    """Return an input in a layout: itself if it has that already."""
    if layout == "contiguous":
        return x
    if layout in ("conjugated", "negated"):
        return _with_bit(x, layout)
    if layout == "channels_last":
        return _channels_last(x)
    if layout == "expanded":
        return _expand(x)
    return arrange(x, layout)


def _channels_last(x: Tensor) -> Tensor:
    """Return `x` with its second dimension innermost in memory, if it has three dimensions or
    more.
    """
    if x.ndim > 2:
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    return x.clone()


def _with_bit(x: Tensor, layout: str) -> Tensor:
    """Return `x` as a lazy conjugate of its conjugate, or a lazy negation of its negation.

    Complex numbers alone have the one, and integers and booleans neither.
    """
    if x.is_complex() and layout == "conjugated":
        return x.conj_physical().conj()
    if layout == "negated" and is_inexact(x.dtype):
        return neg_view(x.neg())
    return x.clone()


def repeating(sample: Sample, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return contiguous inputs whose first slice repeats along the first dimension. ``expanded``
    can lay these out.

    Some ops do not take repeated indices or lengths, such as lengths that must have a sum. These
    stay as they are. So does a single matrix or row of a domain, whose slices belong together.
    Raises Unsuitable if the op does not take equal numbers at all, such as one that divides by
    their deviation: then no layout is at fault.
    """
    # First with repeated integers too. Where the op refuses those, they are what they were.
    repeated = tuple(map(_repeat, inputs, sample.domains or [None] * len(inputs)))
    if accepts(sample, repeated):
        return repeated
    pairs = zip(inputs, repeated, strict=True)
    repeated = tuple(y if is_inexact(x.dtype) else x for x, y in pairs)
    if not accepts(sample, repeated):
        raise Unsuitable("the op itself refuses inputs that repeat")
    return repeated


def _repeat(x: Tensor, domain: Domain | None) -> Tensor:
    """Return `x` with its first slice repeated, unless the domain ties all dimensions together."""
    tied = 0 if domain is None else domain.dims
    if x.ndim <= tied or not x.shape[0]:
        return x
    return x[:1].expand(x.shape).contiguous()


def _expand(x: Tensor) -> Tensor:
    """Return an input with stride 0 along its first dimension that repeats one slice."""
    for dim in range(x.ndim):
        first = x.narrow(dim, 0, min(1, x.shape[dim]))
        if x.shape[dim] > 1 and torch.equal(first.expand(x.shape), x):
            return first.clone().expand(x.shape)
    return x
