"""Reshape and transpose by a pattern of named axes, as einops writes them: ``rearrange``.

The pattern is parsed into groups of axes, one group per dimension: ``b (h w)`` is ``[["b"], ["h",
"w"]]``. The tensor is reshaped to one dimension per axis, permuted, and reshaped to the groups of
the right side.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import chain

import torch

_TOKEN = re.compile(r"\.\.\.|\(|\)|\w+|\S")
_REST = "..."
_OTHERS = (_REST,)  # the dimensions of ... as they are; a list of it, for `(...)`, joins them
Groups = list[Sequence[str]]


def rearrange(
    tensor: torch.Tensor | Sequence[torch.Tensor], pattern: str, **axes_lengths: int
) -> torch.Tensor:
    """Reshape and transpose by a pattern of named axes, as ``torch.func.rearrange``.

    >>> rearrange(torch.zeros(2, 6, 4), "b (h h1) w -> b h (w h1)", h1=3).shape
    torch.Size([2, 2, 12])

    Each side names the dimensions in order. Parentheses join several axes into one dimension, ``1``
    and ``()`` mean a dimension of size one, ``...`` any others. Every axis is named once on both
    sides; ``axes_lengths`` gives sizes that the shape leaves open. A sequence of tensors is stacked
    along a new first dimension. What does not fit is a ``ValueError`` that says where."""
    if not isinstance(tensor, torch.Tensor):
        tensor = torch.stack(list(tensor))
    sides = pattern.split("->")
    if len(sides) != 2:
        raise ValueError(
            f"rearrange: the pattern {pattern!r} must have one '->' between its two sides"
        )
    left, right = (_parse(side, pattern) for side in sides)
    names, wanted = _axes(left), _axes(right)
    _refuse_other_axes(names, wanted, pattern, axes_lengths)
    sizes = _sizes(tensor, left, pattern, axes_lengths)
    # one dimension per axis
    flat = tensor.reshape(list(chain.from_iterable(sizes[axis] for axis in names)))
    places: dict[str, range] = {}  # by axis, its dimensions in `flat`
    n_dims = 0
    for axis in names:
        places[axis] = range(n_dims, n_dims + len(sizes[axis]))
        n_dims += len(sizes[axis])
    # the axes in the order of the right side, joined as its groups say
    order = list(chain.from_iterable(places[axis] for axis in wanted))
    shape: list[int] = []
    for group in right:
        if group is _OTHERS:
            shape += sizes[_REST]
        else:
            shape.append(math.prod(math.prod(sizes[axis]) for axis in group))
    return flat.permute(order).reshape(shape)


def _axes(groups: Groups) -> list[str]:
    """List the axes of one side, in order."""
    return list(chain.from_iterable(groups))


def _refuse_other_axes(
    names: list[str], wanted: list[str], pattern: str, lengths: dict[str, int]
) -> None:
    """Raise unless both sides have the same axes, and the lengths are lengths of these."""
    if set(names) != set(wanted):
        raise ValueError(
            f"rearrange: {sorted(set(names) ^ set(wanted))} stand on one side of {pattern!r} only"
        )
    unknown = sorted(lengths.keys() - set(names))
    if unknown:
        raise ValueError(
            f"rearrange: lengths are given for {unknown}, which are not in {pattern!r}"
        )


def _parse(side: str, pattern: str) -> Groups:
    """Return the axes of each dimension of one side. A dimension of size one has no axes."""
    groups: Groups = []
    inside = False
    for token in _TOKEN.findall(side):
        if token in "()":
            if inside is (token == "("):
                raise ValueError(f"rearrange: unbalanced or nested parentheses in {pattern!r}")
            inside = token == "("
            if inside:
                groups.append([])
            continue
        _refuse_no_axis(token, pattern)
        axes: Sequence[str] = [token]
        if token == "1":
            axes = []
        if inside:
            groups[-1] = [*groups[-1], *axes]
        elif token == _REST:
            groups.append(_OTHERS)
        else:
            groups.append(axes)
    if inside:
        raise ValueError(f"rearrange: unbalanced or nested parentheses in {pattern!r}")
    _refuse_repetition(_axes(groups), pattern)
    return groups


def _refuse_repetition(names: list[str], pattern: str) -> None:
    """Raise if an axis of one side stands there twice."""
    repeated = sorted({axis for axis in names if names.count(axis) > 1})
    if repeated:
        raise ValueError(f"rearrange: {repeated} stand twice on one side of {pattern!r}")


def _refuse_no_axis(token: str, pattern: str) -> None:
    """Raise if ``token`` is no axis."""
    if token not in (_REST, "1") and not token.isidentifier():
        raise ValueError(
            f"rearrange: {token!r} in {pattern!r} is no axis; axes are identifiers, 1 or ..."
        )


def _sizes(
    x: torch.Tensor, left: Groups, pattern: str, lengths: dict[str, int]
) -> dict[str, list[int]]:
    """Return the size of every axis, as a list: ``...`` has as many as the other dimensions
    leave."""
    # the position of ... on the left side, and how many dimensions it stands for
    at = next((index for index, group in enumerate(left) if group is _OTHERS), None)
    rest = x.dim() - len(left) + (at is not None)
    if rest < 0 or (at is None and rest):
        raise ValueError(
            f"rearrange: {pattern!r} is for tensors of {len(left)} dimensions, "
            f"and this one has {x.dim()}: {list(x.shape)}"
        )
    sizes: dict[str, list[int]] = {}
    dims = list(x.shape)
    for index, group in enumerate(left):
        if index == at:
            sizes[_REST], dims = dims[:rest], dims[rest:]
            continue
        size, dims = dims[0], dims[1:]
        if _REST in group:
            raise ValueError(
                f"rearrange: ... on the left side of {pattern!r} must not be in parentheses"
            )
        sizes |= _sizes_of_group(size, group, pattern, lengths)
    return sizes


def _sizes_of_group(
    size: int, group: Sequence[str], pattern: str, lengths: dict[str, int]
) -> dict[str, list[int]]:
    """Return the sizes of the axes that a dimension of ``size`` joins. At most one is not in
    ``lengths``."""
    sizes: dict[str, list[int]] = {}
    open_axes: list[str] = []
    for axis in group:
        if axis in lengths:
            sizes[axis] = [lengths[axis]]
        else:
            open_axes.append(axis)
    if len(open_axes) > 1:
        raise ValueError(
            f"rearrange: the sizes of {open_axes} in {pattern!r} do not follow from "
            "the shape; give all but one as keywords"
        )
    product = math.prod(length for (length,) in sizes.values())
    # a size of zero divides nothing
    left_over = product == 0 or size % product
    if left_over or (not open_axes and product != size):
        raise ValueError(
            f"rearrange: a dimension of size {size} is not ({' '.join(group)}) of {pattern!r} "
            f"with the lengths {lengths}"
        )
    for axis in open_axes:
        sizes[axis] = [size // product]
    return sizes
