"""Describe where the samples of a batch lie in a tensor.

    x                      # (B, T, n)    Place(dim=0): dimension 0 is the batch
    x.flatten(0, 1)        # (B * T, n) Place(dim=0, inner=T): each sample has T rows, one
                           # after the other
    torch.cat([x, y])      # (2 * B, …)   Place(dim=0, outer=2): two batches, one after the other

A place is known by construction, never by a size that happens to be B. ``place_table`` says for
each op where the samples lie in its results. :class:`Mixed` is raised where they lie nowhere,
because the op computes with several samples at once. The last section is about views that were
written to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..ops import Op

Tensor = torch.Tensor


class Mixed(Exception):
    """Raised for an op that computes with several samples at once. The text says how, and what to
    do instead."""


@dataclass(frozen=True, slots=True)
class Place:
    """Dimension ``dim`` runs over ``outer`` × B × ``inner``: element ``i`` of it belongs to sample
    ``i // inner % B``."""

    dim: int
    outer: int = 1
    inner: int = 1

    def moved(self, dim: int) -> Place:
        """Return the same along another dimension."""
        if dim == self.dim:
            return self
        return replace(self, dim=dim)

    def length(self, size: int) -> int:
        """Return the number of elements along the dimension."""
        return self.outer * size * self.inner

    def owners(self, size: int, device: Any) -> Tensor:
        """Return for each element along the dimension the number of its sample."""
        return torch.arange(self.length(size), device=device) // self.inner % size

    def owners_in(self, shape: Sequence[int], size: int, device: object) -> Tensor:
        """Return for each element of a tensor of that shape the number of its sample."""
        along = [1] * len(shape)
        along[self.dim] = -1
        return self.owners(size, device).reshape(along).expand(list(shape))

    def split(self, t: Tensor, size: int) -> Tensor:
        """Return ``t`` with the batch in front, as (B, *shape of one sample). The dimension stays,
        with the elements of one sample."""
        # the most common place, without the reshapes of the general form
        if self.outer == self.inner == 1:
            whole: Tensor = t.movedim(self.dim, 0).unsqueeze(self.dim + 1)
            return whole
        parts: Tensor = t.unflatten(self.dim, (self.outer, size, self.inner))
        # with the batch in front, the other two stand one place further right
        parts = parts.movedim(self.dim + 1, 0)
        return parts.flatten(self.dim + 1, self.dim + 2)

    def split_gradient(self, g: Tensor, size: int) -> Tensor:
        """Return :meth:`split` of a cotangent, with zeros in place of elements that fill a sample
        up."""
        return self.split(g, size)

    def merged(self, t: Tensor) -> Tensor:
        """Return the inverse of :meth:`split`."""
        parts: Tensor = t.unflatten(self.dim + 1, (self.outer, self.inner)).movedim(0, self.dim + 1)
        return parts.flatten(self.dim, self.dim + 2)


class Alone(Place):
    """The place in any tensor of a batch of one sample: all of it."""

    __slots__ = ()

    def split(self, t: Tensor, size: int) -> Tensor:
        return t.unsqueeze(0)

    def merged(self, t: Tensor) -> Tensor:
        return t.squeeze(0)


class _Rows:
    """The elements that each sample has, any number of them.

    ``owners``: the sample of each element. ``positions``, of shape (B, most): the elements of each
    sample, filled up with 0 where ``filled``. ``slots``: for each element its place in
    ``positions``, flat. ``packed``: whether they are time steps of a packed sequence, so that
    slices separate steps, and not samples.
    """

    def __init__(self, owners: Tensor, size: int, packed: bool) -> None:
        self.packed = packed
        counts = torch.bincount(owners, minlength=size)
        most = 0
        if owners.numel():
            most = int(counts.max())
        each = torch.arange(owners.numel(), device=owners.device)
        # the elements sample by sample, in the order in which they lie
        order = owners.argsort(stable=True)
        # for each element its slot in a table of (samples, most elements of one)
        self.owners = owners
        owners_in_order = owners[order]
        first_of_sample = counts.cumsum(0) - counts
        number_within_sample = each - first_of_sample[owners_in_order]
        self.slots = torch.empty_like(order)
        self.slots[order] = owners_in_order * most + number_within_sample
        # and back: what lies in each slot, and which slots only fill the table up
        positions = torch.zeros(size * most, dtype=torch.long, device=owners.device)
        positions[self.slots] = each
        filled = torch.ones(size * most, dtype=torch.bool, device=owners.device)
        filled[self.slots] = False
        self.positions, self.filled = positions.reshape(size, most), filled.reshape(size, most)


@dataclass(frozen=True, slots=True, eq=False)
class Listed(Place):
    """Element ``i`` of dimension ``dim`` belongs to sample ``rows.owners[i]``, as of elements that
    were picked by an index.

    :meth:`split` fills each sample up to the largest number of elements with element 0.
    """

    rows: _Rows = field(kw_only=True)

    # `place == listed` comes here as well, since Python asks the subclass first
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Place) or self.dim != other.dim:
            return False
        return torch.equal(
            self.rows.owners, other.owners(self.rows.positions.shape[0], self.rows.owners.device)
        )

    def __hash__(self) -> int:
        return hash(self.dim)

    def length(self, size: int) -> int:
        return self.rows.owners.numel()

    def owners(self, size: int, device: object) -> Tensor:
        return self.rows.owners

    def split(self, t: Tensor, size: int) -> Tensor:
        """Return the elements of each sample, filled up with element 0."""
        positions = self.rows.positions
        parts: Any = t.index_select(self.dim, positions.flatten())
        by_sample: Tensor = parts.unflatten(self.dim, positions.shape)
        return by_sample.movedim(self.dim, 0)

    def split_gradient(self, g: Tensor, size: int) -> Tensor:
        """Return :meth:`split` of a cotangent. The elements that fill a sample up get zeros."""
        filled = self.rows.filled
        one_sample = [1] * g.dim()
        one_sample[self.dim] = filled.shape[1]
        return self.split(g, size).masked_fill(filled.reshape([size, *one_sample]), 0)

    def merged(self, t: Tensor) -> Tensor:
        rows: Tensor = t.movedim(0, self.dim).flatten(self.dim, self.dim + 1)
        return rows.index_select(self.dim, self.rows.slots)


ALONE = Alone(0)


def listed(dim: int, owners: Tensor, size: int, packed: bool = False) -> Place:
    """Return the place in which element ``i`` of dimension ``dim`` belongs to sample ``owners[i]``.

    It is a plain :class:`Place` if the samples lie in equal runs: ``owners`` [0, 0, 1, 1] of two
    samples is ``Place(dim, inner=2)``. Else it is :class:`Listed`. ``size``: the number of samples.
    ``packed``: see :class:`_Rows`.
    """
    regular = None
    if not packed:
        regular = _regular_place(dim, owners, size)
    if regular is not None:
        return regular
    return Listed(dim, rows=_Rows(owners, size, packed))


def _regular_place(dim: int, owners: Tensor, size: int) -> Place | None:
    """Return the place whose samples all have as many elements in each run of them, None if they
    do not lie so."""
    n = owners.numel()
    if not n or n % size:
        return None
    # the first run must be of sample 0: it ends before the first element of another sample
    inner = n
    if size > 1:
        inner = int((owners != 0).to(torch.int8).argmax())
    if not inner or n % (size * inner):
        return None
    # the first run has said how long all must be; whether they are is seen by comparing
    place = Place(dim, n // (size * inner), inner)
    if not torch.equal(place.owners(size, owners.device), owners):
        return None
    return place


def is_packed(place: Place | None) -> bool:
    """Return whether elements are time steps of a packed sequence."""
    return isinstance(place, Listed) and place.rows.packed


def picked(place: Place, dim: int, owners: Tensor, size: int) -> Place:
    """Return the place of elements that were picked from those of ``place`` by their position.
    ``owners``: the sample of each element that was picked, along ``dim`` of the result.

    ``Mixed`` if some samples are picked and others are not: what happens to a sample would depend
    on where it lies in the batch. Example: ``x[:2]`` of a batch of three.
    """
    if not is_packed(place):
        counts = torch.bincount(owners, minlength=size)
        if not bool((counts == counts[:1]).all()):
            raise Mixed(
                "it picks samples by their position in the batch, so a sample alone "
                "would be treated in another way. If the positions follow from the batch, "
                "as a mask or labels do, mark where they come from: y = grads.batch(y)"
            )
    return listed(dim, owners, size, is_packed(place))


@dataclass(frozen=True, slots=True)
class Pooled:
    """The state of a result that has no samples: it is their sum or mean.

    ``factor``: a gradient of the result times this is that of the sample's own sum or mean. A
    number, or one for each sample, of shape (B,).
    """

    factor: Any = 1

    @property
    def is_sum(self) -> bool:
        """Return whether it is a sum, whose gradient needs no factor."""
        return isinstance(self.factor, int) and self.factor == 1


def pool(place: Place, size: int, mean: bool) -> Pooled:
    """Return the state of the sum, or with ``mean`` the mean, of all elements along the dimension
    of ``place``. ``size``: the number of samples."""
    if not mean:
        return Pooled()
    if not isinstance(place, Listed):  # all samples have as many elements
        return Pooled(size)
    return pool_by_counts(torch.bincount(place.owners(size, None), minlength=size))


def pool_by_counts(counts: Tensor) -> Pooled:
    """Return a mean over elements of which sample b has ``counts[b]``. The mean of a sample without
    elements has no gradient."""
    return Pooled(torch.where(counts > 0, counts.sum() / counts, 0.0))


@dataclass(slots=True)
class Placed:
    """A call of ``op`` for a batch of ``size`` samples. ``args``: all arguments by name.
    ``places``: where the samples lie in them; for a list of tensors a list. ``outs``: the results.

    A rule returns the places in the results. It also sets ``places`` of arguments without samples
    whose elements meet those of single samples. Example: ``x * mask`` with both of shape (B, n):
    row b of the mask meets sample b.
    """

    op: Op
    args: dict[str, Any]
    places: dict[str, Any]
    outs: Sequence[Any]
    size: int
    names: Sequence[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = [
            name for name, argument in self.args.items() if isinstance(argument, torch.Tensor)
        ]

    def with_only(self, names: Iterable[str]) -> Placed:
        """Return the same call with these arguments alone. The two share their places."""
        args = {name: self.args[name] for name in names}
        return Placed(self.op, args, self.places, self.outs, self.size)

    def place(self, name: str) -> Place | None:
        """Return the place of the samples in an argument, or None."""
        place_in_argument: Place | None = self.places.get(name)
        return place_in_argument

    def owners(self, name: str) -> Tensor:
        """Return for each element of the dimension of an argument that has the samples: the number
        of its sample."""
        return self.places[name].owners(self.size, self.args[name].device)  # type: ignore[no-any-return]

    def dims(self, name: str, rank: int) -> list[int]:
        """Return the dimensions that an argument names, as non-negative numbers. None and ``[]``:
        all."""
        named = self.args.get(name)
        if not rank:
            return []
        if isinstance(named, int):
            return [named % rank]
        if not named:
            return list(range(rank))
        return [dim % rank for dim in named]

    def tensors(self) -> Iterator[tuple[str, Tensor, Place | None]]:
        """Yield each argument that is a tensor, with its place."""
        for name in self.names:
            yield name, self.args[name], self.places.get(name)


def place_of(owners: Tensor, size: int) -> Place | None:
    """Return the place in a tensor whose elements belong to the samples ``owners``, of the same
    shape. None if there is none."""
    for dim in range(owners.dim()):
        of_dim = common_owners(owners, dim)
        if of_dim is not None:
            return listed(dim, of_dim, size)
    return None


def common_owners(owners: Tensor, dim: int) -> Tensor | None:
    """Return the one sample to which all elements at each index of a dimension belong. None if
    they belong to several, or to none, since there are no elements."""
    size = owners.shape[dim]
    if not owners.numel():
        if size:
            return None
        return owners.new_zeros(0)
    by_dim = owners.movedim(dim, 0).reshape(size, -1)
    if not bool((by_dim == by_dim[:, :1]).all()):
        return None
    return by_dim[:, 0]


def one_place(places: Sequence[Place]) -> Place:
    """Return the place on which all agree. ``Mixed`` if they do not."""
    first, *others = places
    for other in others:
        if other != first:
            raise Mixed(
                f"its arguments have the samples in different places (dimension {first.dim} "
                f"and {other.dim} of the result), so each sample meets the others. "
                "If one argument is no batch, such as a mask, say so by shared(mask)"
            )
    return first


def reshaped(place: Place, old_shape: Sequence[int], new_shape: Sequence[int], size: int) -> Place:
    """Return the place in a tensor of shape ``new_shape`` that has the elements of one of shape
    ``old_shape`` in the same order. ``place``: in the old tensor. ``Mixed`` if no dimension of the
    new one runs over the samples.

    Example: ``Place(0)`` of (B, T, n) becomes ``Place(0, inner=T)`` in (B * T, n).
    """
    if isinstance(place, Listed):
        return _reshaped_list(place, old_shape, new_shape, size)
    # where there are no elements, any place is right
    old_shape = [length or 1 for length in old_shape]
    new_shape = [length or 1 for length in new_shape]
    after = place.inner * math.prod(old_shape[place.dim + 1 :])  # elements until the next sample
    # the first dimension whose steps divide those of the samples evenly runs over them
    rest = math.prod(new_shape)
    for dim, n in enumerate(new_shape):
        rest //= n
        if after % rest == 0 and n % (after // rest * size) == 0:
            inner = after // rest
            return Place(dim, n // (size * inner), inner)
    raise Mixed(
        f"a view of {list(old_shape)} as {list(new_shape)} has no dimension "
        "that runs over the samples"
    )


def _reshaped_list(
    place: Listed, old_shape: Sequence[int], new_shape: Sequence[int], size: int
) -> Place:
    """Return :func:`reshaped` for a place that lists its elements."""
    before, after = math.prod(old_shape[: place.dim]), math.prod(old_shape[place.dim + 1 :])
    # a dimension fits if all elements at one of its places belong to one sample
    for dim, n in enumerate(new_shape):
        inner = math.prod(new_shape[dim + 1 :])
        # so many neighbours have one owner in both shapes, and one of them stands for all
        unit = math.gcd(after, inner) or 1
        each = place.rows.owners.repeat_interleave(after // unit).repeat(before)
        if each.numel() != math.prod(new_shape[:dim]) * n * (inner // unit) or not each.numel():
            continue
        by_dim = each.reshape(-1, n, inner // unit).movedim(1, 0).flatten(1)
        if bool((by_dim == by_dim[:, :1]).all()):
            return listed(dim, by_dim[:, 0], size)
    raise Mixed(
        f"a view of {list(old_shape)} as {list(new_shape)} has no dimension "
        "that runs over the samples"
    )


# --- views that were written to -------------------------------------------------------------------
#
# Where the samples lie in a view of a tensor to which samples were written, and in the base of a
# view that got them.


def owners(place: Place, shape: Sequence[int], size: int, device: object) -> Tensor:
    """Return for each element of a tensor the number of its sample, in memory without gaps: a view
    may be described by strides."""
    return place.owners_in(shape, size, device).contiguous()


def _candidates(shape: Sequence[int], size: int) -> list[Place]:
    """Return all places in a tensor of this shape."""
    places = []
    for dim, n in enumerate(shape):
        # samples have equal parts of a dimension, in blocks of `inner` elements
        if not n or n % size:
            continue
        of_each = n // size
        for inner in range(1, of_each + 1):
            if of_each % inner == 0:
                places.append(Place(dim, of_each // inner, inner))
    return places


def _owners_in_view(v: Any, of_base: Place, size: int) -> torch.Tensor:
    """Return which sample owns each element of the view ``v`` of a base with samples in
    ``of_base``."""
    view = v._view
    in_base = owners(of_base, view.base.shape, size, v.device)
    owned: torch.Tensor = view.replay(view.laid_out(in_base), v)
    return owned


def place_in_view(v: object, of_base: Place, size: int) -> Place | None:
    """Return the place in the view ``v``, whose base has samples in ``of_base``. None if it shows
    elements of several samples in no order."""
    return place_of(_owners_in_view(v, of_base, size), size)


def fits(v: Any, place: Place, of_base: Place, size: int) -> bool:
    """Return whether the view ``v`` with samples in ``place`` is a part of a base with samples in
    ``of_base``."""
    return torch.equal(_owners_in_view(v, of_base, size), owners(place, v.shape, size, v.device))


def place_in_base(v: Any, place: Place, size: int) -> Place | None:
    """Return a place in the base of the view ``v`` that fits ``place``, that of the samples in
    ``v``. None if there is none."""
    mine = owners(place, v.shape, size, v.device)
    for candidate in _candidates(v._view.base.shape, size):
        if torch.equal(_owners_in_view(v, candidate, size), mine):
            return candidate
    return None
