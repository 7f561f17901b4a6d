"""Shapes, strides and the cells that they lead to.

    Geometry((2, 3), (3, 1)).places()   # [0, 1, 2, 3, 4, 5]

Strides and the offset count cells: an element of a complex tensor has two of them, its parts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

Shape = tuple[int, ...]


class Refused(Exception):
    """The model has no such tensor: shapes do not fit, or torch says nothing of the case."""


@dataclass(frozen=True)
class Geometry:
    """Which cells are the elements of a tensor, in the order of its elements."""

    shape: Shape
    # in cells, of which an element of a complex tensor has two
    strides: Shape
    offset: int = 0

    @staticmethod
    def packed(shape: Shape, step: int = 1) -> Geometry:
        """Return the geometry of new memory, in which an element has `step` cells."""
        strides = [step * math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
        return Geometry(shape, tuple(strides))

    def places(self) -> list[int]:
        """Return the cell of each element."""
        ranges = [
            # `range` refuses a step of 0, which a repeated dimension has.
            range(0, size * stride, stride) if stride else [0] * size
            for size, stride in zip(self.shape, self.strides, strict=True)
        ]
        return [self.offset + sum(steps) for steps in itertools.product(*ranges)]

    def dim(self, dim: int) -> int:
        """Return a dimension counted from the front."""
        if not -len(self.shape) <= dim < len(self.shape):
            raise Refused(f"{len(self.shape)} dimensions have no dimension {dim}")
        return dim % len(self.shape)

    def without(self, dim: int) -> Geometry:
        """Return the geometry without a dimension."""
        return replace(
            self,
            shape=self.shape[:dim] + self.shape[dim + 1 :],
            strides=self.strides[:dim] + self.strides[dim + 1 :],
        )

    def select(self, dim: int, index: int) -> Geometry:
        """Return one slice of a dimension."""
        size = self.shape[dim]
        if not -size <= index < size:
            raise Refused(f"a size of {size} has no index {index}")
        return replace(self.without(dim), offset=self.offset + (index % size) * self.strides[dim])

    def cut(self, dim: int, part: slice) -> Geometry:
        """Return a range of a dimension."""
        start, stop, step = part.indices(self.shape[dim])
        if step < 1:
            raise Refused("a step of a slice is at least 1")
        shape, strides = list(self.shape), list(self.strides)
        shape[dim] = len(range(start, stop, step))
        strides[dim] *= step
        offset = self.offset
        # An empty range may begin behind the last cell, where an offset would be out of range.
        if shape[dim] > 0:
            offset += start * self.strides[dim]
        return Geometry(tuple(shape), tuple(strides), offset)

    def insert(self, dim: int, size: int, stride: int) -> Geometry:
        """Return the geometry with one more dimension, at `d`."""
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(dim, size)
        strides.insert(dim, stride)
        return Geometry(tuple(shape), tuple(strides), self.offset)

    def permute(self, dims: Sequence[int]) -> Geometry:
        """Return the dimensions in another order."""
        order = [self.dim(dim) for dim in dims]
        if sorted(order) != list(range(len(self.shape))):
            raise Refused(f"{tuple(dims)} is no order of {len(self.shape)} dimensions")
        return replace(
            self,
            shape=tuple(self.shape[place] for place in order),
            strides=tuple(self.strides[place] for place in order),
        )

    def expand(self, shape: Shape) -> Geometry:
        """Return dimensions of size 1 repeated, and new ones in front."""
        front = len(shape) - len(self.shape)
        own = (*(1,) * front, *self.shape)
        fits = all(size in (1, wanted) for size, wanted in zip(own, shape, strict=False))
        if front < 0 or not fits:
            raise Refused(f"{self.shape} does not expand to {shape}")
        steps = zip(self.strides, self.shape, shape[front:], strict=True)
        # A dimension that is repeated gets the stride 0.
        strides = [stride * (size == wanted) for stride, size, wanted in steps]
        return Geometry(shape, (*(0,) * front, *strides), self.offset)

    def reshaped(self, shape: Shape) -> Geometry | None:
        """Return the same cells in another shape, or None if no strides lead to them."""
        # Without elements there is no cell whose step could be seen.
        if 0 in shape:
            return replace(Geometry.packed(shape), offset=self.offset)
        places = self.places()
        positions = Geometry.packed(shape)
        # The first element of the second slice of a dimension shows its step.
        strides = [
            places[step] - places[0] if size > 1 else 1
            for size, step in zip(shape, positions.strides, strict=True)
        ]
        found = Geometry(shape, tuple(strides), self.offset)
        return found if found.places() == places else None


def whole_shape(shape: Sequence[int], count: int) -> Shape:
    """Return `shape` for `count` elements, with its -1 filled in. ``Refused`` if none fits."""
    sizes = list(shape)
    known = math.prod(filter(lambda size: size != -1, sizes))
    if -1 in sizes and known:
        sizes[sizes.index(-1)] = count // known
    # A second -1, a remainder and an unknown size all lead to another count.
    if -1 in sizes or math.prod(sizes) != count:
        raise Refused(f"{count} elements have no shape {tuple(shape)}")
    return tuple(sizes)


def common_shape(*shapes: Shape) -> Shape:
    """Return the shape to which `shapes` broadcast."""
    length = max(map(len, shapes))
    padded = [(1,) * (length - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        others = {size for size in sizes if size != 1}
        if len(others) > 1:
            raise Refused(f"{shapes} do not broadcast")
        result.append(max(others, default=1))
    return tuple(result)
