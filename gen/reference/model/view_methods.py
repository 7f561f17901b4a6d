"""Views: tensors that show cells of another one.

A view has all or some of the cells of its base, perhaps in another order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from gen.reference.model.cell_geometry import Geometry, Refused, Shape, whole_shape
from gen.reference.model.stored_cells import STEPS, Element, Stored, copy_of


class Viewed(Stored):
    """A tensor with the methods of ``torch.Tensor`` that give views, or copies where no view
    can."""

    def copies(self) -> list[Element]:
        """Return the elements anew."""
        return list(map(copy_of, self.elements()))

    def __iter__(self) -> Iterator[Self]:
        return iter(self.unbind())

    def view(self, *shape: Any) -> Self:
        """Return the same cells in another shape."""
        wanted = whole_shape(sizes_of(shape), self.numel())
        found = self.geometry.reshaped(wanted)
        if found is None:
            raise Refused(f"no view of shape {wanted}")
        return self._view(found)

    def from_bits(self) -> Self:
        """Return the cells seen as integers, and these as numbers again: a view without a history
        in torch."""
        if self.kind != "real" or self.negative:
            raise Refused("the bits of real numbers are known to the model")
        return self.detach()

    def as_subclass(self, kind: type) -> Self:
        """Return the tensor as one of a subclass, which computes as any tensor does."""
        return self._view(self.geometry)

    def reshape(self, *shape: Any) -> Self:
        """Return the same cells in another shape, or a copy where strides cannot say it."""
        wanted = whole_shape(sizes_of(shape), self.numel())
        found = self.geometry.reshaped(wanted)
        return self._view(found) if found else self.of(self.copies(), wanted, self.kind)

    def flatten(self) -> Self:
        """Return the elements as one line."""
        return self.reshape(-1)

    def view_as(self, other: Stored) -> Self:
        """Return the cells in the shape of another tensor."""
        return self.view(other.shape)

    def transpose(self, first: int, second: int) -> Self:
        """Return two dimensions exchanged."""
        dims = list(range(self.dim()))
        # Numbers from 0 are compared, since -1 and the last dimension are the same.
        place, other = self.geometry.dim(first), self.geometry.dim(second)
        dims[place], dims[other] = dims[other], dims[place]
        return self._view(self.geometry.permute(dims))

    def permute(self, *dims: Any) -> Self:
        """Return the dimensions in another order."""
        return self._view(self.geometry.permute(sizes_of(dims)))

    def t(self) -> Self:
        """Return a matrix transposed."""
        if self.dim() > 2:
            raise Refused("t() takes two dimensions at most")
        return self.transpose(0, 1) if self.dim() == 2 else self._view(self.geometry)

    def select(self, dim: int, index: int) -> Self:
        """Return one slice of a dimension."""
        return self._view(self.geometry.select(self.geometry.dim(dim), index))

    def narrow(self, dim: int, start: int, length: int) -> Self:
        """Return a range of a dimension."""
        dim = self.geometry.dim(dim)
        if not 0 <= start <= start + length <= self.shape[dim]:
            raise Refused("the range is outside of the dimension")
        return self._view(self.geometry.cut(dim, slice(start, start + length)))

    def unsqueeze(self, dim: int) -> Self:
        """Return one more dimension, of size 1."""
        if not -self.dim() - 1 <= dim <= self.dim():
            raise Refused(f"no place {dim} for a dimension")
        return self._view(self.geometry.insert(dim % (self.dim() + 1), 1, 1))

    def squeeze(self) -> Self:
        """Return the tensor without dimensions of size 1."""
        geometry = self.geometry
        # The last dimension comes first, so that the numbers of those in front stay.
        for dim in reversed(range(self.dim())):
            if geometry.shape[dim] == 1:
                geometry = geometry.without(dim)
        return self._view(geometry)

    def expand(self, *shape: Any) -> Self:
        """Return dimensions of size 1 repeated."""
        return self._view(self.geometry.expand(sizes_of(shape)))

    broadcast_to = expand

    def diagonal(self) -> Self:
        """Return the diagonal of the first two dimensions, as the last dimension."""
        if self.dim() < 2:
            raise Refused("a diagonal takes two dimensions")
        first, second = self.shape[:2]
        # One step along the diagonal is a step in each of the two dimensions.
        step = self.geometry.strides[0] + self.geometry.strides[1]
        rest = self.geometry.without(1).without(0)
        return self._view(rest.insert(len(rest.shape), min(first, second), step))

    def unfold(self, dim: int, size: int, step: int) -> Self:
        """Return the windows of a dimension, which may overlap."""
        dim = self.geometry.dim(dim)
        if not 0 <= size <= self.shape[dim]:
            raise Refused("the window is larger than the dimension")
        # A window that would reach beyond the end is left out, as in torch.
        count = (self.shape[dim] - size) // step + 1
        stride = self.geometry.strides[dim]
        windows = self.geometry.without(dim).insert(dim, count, stride * step)
        return self._view(windows.insert(self.dim(), size, stride))

    def as_strided(self, shape: Shape, strides: Shape) -> Self:
        """Return other elements of the tensor's own, by sizes and strides."""
        step = STEPS[self.kind]
        # Torch's strides count elements, but those of the model count cells.
        scaled = tuple(step * stride for stride in strides)
        found = Geometry(tuple(shape), scaled, self.geometry.offset)
        if not self.memory.is_ordered:
            raise Refused("elements that lie in an order of torch's own")
        # Torch allows every element of the storage. The model knows only those of this tensor.
        if not set(found.places()) <= set(self.geometry.places()):
            raise Refused("elements that the tensor does not have")
        if self.conjugate or self.negative:
            raise Refused("as_strided of a conjugate")
        return self._view(found)

    def split(self, size: int, dim: int = 0) -> tuple[Self, ...]:
        """Return parts of a dimension, each of this size."""
        dim = self.geometry.dim(dim)
        starts = range(0, self.shape[dim], size)
        # The last part may be smaller than the others.
        return tuple(
            self.narrow(dim, start, min(size, self.shape[dim] - start)) for start in starts
        )

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """Return the slices of a dimension."""
        dim = self.geometry.dim(dim)
        return tuple(map(partial(self.select, dim), range(self.shape[dim])))

    def chunk(self, count: int, dim: int = 0) -> tuple[Self, ...]:
        """Return so many parts of a dimension at most, of one size but for the last."""
        size = self.shape[self.geometry.dim(dim)]
        # The size is rounded up, so that there are no more parts than asked for. It is 1 for an
        # empty dimension, since `range` refuses a step of 0.
        return self.split(max(1, -(-size // count)), dim)

    def detach(self) -> Self:
        """Return the cells without their history."""
        return self._view(self.geometry, history=False)

    def numpy(self) -> Self:
        """Return the array of these cells: a tensor without a history."""
        if self.kind != "real" or self.negative or self.history:
            raise Refused("an array has real numbers without a history")
        return self._view(self.geometry, history=False)

    def detach_(self) -> Self:
        """Forget the history of the tensor itself."""
        self.history = False
        return self

    @property
    def data(self) -> Self:
        return self.detach()

    def conj(self) -> Self:
        """Return the conjugate, which reads the same cells."""
        if self.kind != "complex":
            return self
        return self._view(self.geometry, conjugate=not self.conjugate)

    @property
    def real(self) -> Self:
        """Return the real parts."""
        if self.kind != "complex":
            return self
        return self._view(self.geometry, kind="real", conjugate=False)

    @property
    def imag(self) -> Self:
        """Return the imaginary parts."""
        if self.kind != "complex":
            raise Refused("a real tensor has no imaginary part")
        # A conjugate negates the imaginary parts. Each is the second cell of its element.
        negative = self.negative != self.conjugate
        moved = replace(self.geometry, offset=self.geometry.offset + 1)
        return self._view(moved, kind="real", conjugate=False, negative=negative)

    @property
    def T(self) -> Self:
        return self.t()

    @property
    def mT(self) -> Self:
        return self.transpose(-2, -1)

    def __getitem__(self, index: Any) -> Self:
        keys = keys_of(index)
        if is_gathered(keys):
            return self._gathered(keys)
        geometry, dim = self.geometry, 0
        for key in self._with_all_dimensions(keys):
            if key is None:
                geometry, dim = geometry.insert(dim, 1, 1), dim + 1
            elif isinstance(key, slice):
                geometry, dim = geometry.cut(dim, key), dim + 1
            else:
                # an integer takes its dimension away, so the next key has the same number
                geometry = geometry.select(dim, key)
        return self._view(geometry)

    def _with_all_dimensions(self, keys: tuple[Any, ...]) -> list[Any]:
        """Return `keys`, with a whole slice for each dimension that they leave out."""
        given = sum(key is not None and key is not Ellipsis for key in keys)
        if given > self.dim():
            raise Refused(f"{self.dim()} dimensions take no {given} indices")
        whole = [slice(None)] * (self.dim() - given)
        if Ellipsis not in keys:
            return [*keys, *whole]
        place = keys.index(Ellipsis)
        return [*keys[:place], *whole, *keys[place + 1 :]]

    def _gathered(self, keys: tuple[Any, ...]) -> Self:
        """Return the rows of a list of indices, or the elements of a mask, as a new tensor."""
        rows = self._rows(keys)
        copies = itertools.chain.from_iterable(row.copies() for row in rows)
        return self.of(list(copies), self._shape_of_rows(rows), self.kind)

    def _shape_of_rows(self, rows: Sequence[Self]) -> Shape:
        """Return the shape of these rows one after another."""
        inner = self.shape[1:]
        if rows:
            inner = rows[0].shape
        return len(rows), *inner

    def _rows(self, keys: tuple[Any, ...]) -> list[Self]:
        """Return the rows at a list of indices, or the elements at which a mask is true."""
        if len(keys) != 1:
            raise Refused("one list of indices or one mask is known to the model")
        (key,) = keys
        if isinstance(key, list):
            return list(map(partial(self.select, 0), key))
        if key.kind != "bool" or key.shape != self.shape:
            raise Refused("a mask has the shape of its tensor")
        places = zip(self.geometry.places(), key.elements(), strict=True)
        return [self._view(Geometry((), (), place)) for place, chosen in places if chosen]


def keys_of(index: Any) -> tuple[Any, ...]:
    """Return what stands between the brackets, as a tuple."""
    return index if isinstance(index, tuple) else (index,)


def is_gathered(keys: tuple[Any, ...]) -> bool:
    """Return whether a list or a mask is among `keys`, so that the result is no view."""
    return any(isinstance(key, (list, Stored)) for key in keys)


def sizes_of(sizes: tuple[Any, ...]) -> Shape:
    """Return the sizes that a method got, as ``view(2, 3)`` or as ``view((2, 3))``."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        return tuple(sizes[0])
    return sizes
