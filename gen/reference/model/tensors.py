"""The tensor of the model: a memory, a geometry, and the methods that programs call.

    a = Tensor.of([1.0, 2.0, 3.0, 4.0], (2, 2))
    a.t()[0].mul_(a[1])                 # as torch.Tensor, by its documented meaning

An element of a complex tensor is a pair of numbers, its parts. So conjugates, negatives and parts
of complex tensors are views of the same cells, as they are in torch.

A call for which shapes do not fit, or of which torch does not say what it gives, raises
:class:`~.geometry.Refused`: a write to cells that it reads elsewhere, or to a history that no
longer records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gen.reference.model import numbers as n
from gen.reference.model.geometry import Geometry, Refused, common_shape
from gen.reference.model.numbers import Cell, Number
from gen.reference.model.stored import Element, copy_of
from gen.reference.model.views import Viewed

Scalar = float | int | complex
Unary = Callable[[Cell], Cell]


class Tensor(Viewed):
    """A tensor with the methods of ``torch.Tensor`` that compute and write."""

    # --- results of their own ---------------------------------------------------------------------

    def _each(self, function: Unary) -> Tensor:
        if self.kind == "complex":
            raise Refused("the function is known of real numbers")
        return Tensor.of([function(x) for x in self.elements()], self.shape)  # type: ignore[arg-type]

    def sin(self) -> Tensor:
        return self._each(n.sine)

    def cos(self) -> Tensor:
        return self._each(n.cosine)

    def tanh(self) -> Tensor:
        return self._each(n.tanh)

    def exp(self) -> Tensor:
        return self._each(n.exponential)

    def relu(self) -> Tensor:
        return self._each(n.positive_part)

    def abs(self) -> Tensor:
        return self._each(n.magnitude)

    def neg(self) -> Tensor:
        return self.mul(-1.0)

    def clone(self) -> Tensor:
        return Tensor.of(self.copies(), self.shape, self.kind)

    def contiguous(self) -> Tensor:
        packed = Geometry.packed(self.shape, 2 if self.kind == "complex" else 1)
        there = replace(packed, offset=self.geometry.offset)
        return self if there.places() == self.geometry.places() else self.clone()

    def mul(self, other: Tensor | Scalar) -> Tensor:
        return self._with(other, _product)

    def add(self, other: Tensor | Scalar, *, alpha: float = 1.0) -> Tensor:
        return self._with(_tensor(other) if alpha == 1.0 else _tensor(other).mul(alpha), _sum)

    def sub(self, other: Tensor | Scalar) -> Tensor:
        return self.add(_tensor(other).mul(-1.0))

    def div(self, other: Tensor | Scalar) -> Tensor:
        divisor = _tensor(other)
        if divisor.kind != "real" or any(abs(n.value_of(x)) < 0.1 for x in divisor.numbers()):
            raise Refused("a quotient near a pole")
        return self.mul(divisor._each(n.reciprocal))

    def gt(self, other: Tensor | Scalar) -> Tensor:
        one, two = _broadcast(self, _tensor(other))
        if "complex" in (one.kind, two.kind):
            raise Refused("complex numbers have no order")
        pairs = zip(one.numbers(), two.numbers(), strict=True)
        return Tensor.of(
            [float(n.value_of(x) > n.value_of(y)) for x, y in pairs], one.shape, "bool"
        )

    def where(self, condition: Tensor, other: Tensor | Scalar) -> Tensor:
        one, two, chosen = _broadcast(self, _tensor(other), condition)
        one, two = _alike(one, two)
        pairs = zip(chosen.elements(), one.elements(), two.elements(), strict=True)
        return Tensor.of([copy_of(x if c else y) for c, x, y in pairs], one.shape, one.kind)

    def masked_fill(self, mask: Tensor, value: float) -> Tensor:
        _, shaped = _broadcast(self, mask)
        return _tensor(value).where(shaped, self)

    def sum(self, d: int | None = None) -> Tensor:
        if d is None:
            return Tensor.of([_total(self.elements(), self.kind)], (), self.kind)
        rows = self._moved_last(d)
        return Tensor.of(
            [_total(row.elements(), self.kind) for row in rows],
            self.geometry.without(self.geometry.dim(d)).shape,
            self.kind,
        )

    def mean(self) -> Tensor:
        if not self.numel():
            raise Refused("no elements have no mean")
        return self.sum().mul(1.0 / self.numel())

    def cumsum(self, d: int) -> Tensor:
        rows = self._moved_last(d)
        sums = [
            _total(row.elements()[: i + 1], self.kind) for row in rows for i in range(row.numel())
        ]
        d = self.geometry.dim(d)
        last = (*self.shape[:d], *self.shape[d + 1 :], self.shape[d])
        moved = Tensor.of(sums, last, self.kind)
        order = list(range(self.dim() - 1))
        order.insert(d, self.dim() - 1)
        return moved.permute(order).clone()

    def _moved_last(self, d: int) -> list[Tensor]:
        """Return the lines of a dimension, in the order of the others."""
        d = self.geometry.dim(d)
        others = self.geometry.without(d)
        size, stride = self.shape[d], self.geometry.strides[d]
        return [self._view(Geometry((size,), (stride,), place)) for place in others.places()]

    def matmul(self, other: Tensor) -> Tensor:
        if self.dim() != 2 or other.dim() != 2 or self.shape[1] != other.shape[0]:
            raise Refused("a product of two matrices that fit")
        rows, columns = self.unbind(0), other.unbind(1)
        products = [row.mul(column).sum() for row, column in itertools.product(rows, columns)]
        kind = products[0].kind if products else self.kind
        return Tensor.of([p.elements()[0] for p in products], (len(rows), len(columns)), kind)

    def flip(self, d: int) -> Tensor:
        size = self.shape[self.geometry.dim(d)]
        return self.index_select(d, list(range(size))[::-1])

    def index_select(self, d: int, indices: Sequence[int]) -> Tensor:
        d = self.geometry.dim(d)
        slices = [self.select(d, index).unsqueeze(d) for index in indices]
        return joined(slices, d) if slices else self.narrow(d, 0, 0).clone()

    def _with(self, other: Tensor | Scalar, function: Callable[..., Element]) -> Tensor:
        one, two = _alike(*_broadcast(self, _tensor(other)))
        pairs = zip(one.elements(), two.elements(), strict=True)
        return Tensor.of([function(x, y) for x, y in pairs], one.shape, one.kind)

    # --- writes -----------------------------------------------------------------------------------

    def copy_(self, other: Tensor | Scalar) -> Tensor:
        source = _tensor(other)
        if source.kind == "complex" != self.kind:
            raise Refused("a complex number in a real tensor")
        self._require_apart(source)
        spread = _alike(self, source.broadcast_to(self.shape))[1]
        return self._write(spread.copies())

    def _take(self, result: Tensor, *read: Tensor | Scalar) -> Tensor:
        """Write a result of this shape, computed from this tensor and those of `read`."""
        if result.shape != self.shape or result.kind != self.kind:
            raise Refused(f"{result.kind}{result.shape} is not written to {self.kind}{self.shape}")
        self._require_apart(*[x for x in read if isinstance(x, Tensor)])
        return self._write(result.elements())

    def mul_(self, other: Tensor | Scalar) -> Tensor:
        return self._take(self.mul(other), other)

    def add_(self, other: Tensor | Scalar, *, alpha: float = 1.0) -> Tensor:
        return self._take(self.add(other, alpha=alpha), other)

    def sub_(self, other: Tensor | Scalar) -> Tensor:
        return self._take(self.sub(other), other)

    def div_(self, other: Tensor | Scalar) -> Tensor:
        return self._take(self.div(other), other)

    def sin_(self) -> Tensor:
        return self._take(self.sin())

    def tanh_(self) -> Tensor:
        return self._take(self.tanh())

    def relu_(self) -> Tensor:
        return self._take(self.relu())

    def neg_(self) -> Tensor:
        return self._take(self.neg())

    def cumsum_(self, d: int) -> Tensor:
        return self._take(self.cumsum(d))

    def fill_(self, value: Tensor | Scalar) -> Tensor:
        if isinstance(value, Tensor) and value.dim():
            raise Refused("a tensor is filled with one number")
        return self.copy_(value)

    def zero_(self) -> Tensor:
        return self.copy_(0.0)

    def masked_fill_(self, mask: Tensor, value: float) -> Tensor:
        return self._take(self.masked_fill(mask, value), mask)

    def index_fill_(self, d: int, indices: Sequence[int], value: float) -> Tensor:
        for index in set(indices):
            self.select(d, index).fill_(value)
        return self

    def index_add_(self, d: int, indices: Sequence[int], source: Tensor) -> Tensor:
        slices = source.unbind(d)
        if len(slices) != len(indices):
            raise Refused("as many slices as indices")
        self._require_other_memory(source)
        for index, part in zip(indices, slices, strict=True):
            if self.select(d, index).shape != part.shape:
                raise Refused("a slice of another shape")
        for index, part in zip(indices, slices, strict=True):
            self.select(d, index).add_(part)
        return self

    def index_copy_(self, d: int, indices: Sequence[int], source: Tensor) -> Tensor:
        slices = source.unbind(d)
        if len(slices) != len(indices) or len(set(indices)) != len(indices):
            raise Refused("as many slices as indices, and each index once")
        self._require_other_memory(source)
        for index, part in zip(indices, slices, strict=True):
            if self.select(d, index).shape != part.shape:
                raise Refused("a slice of another shape")
        for index, part in zip(indices, slices, strict=True):
            self.select(d, index).copy_(part)
        return self

    def _require_other_memory(self, source: Tensor) -> None:
        if source.memory is self.memory:
            raise Refused("slices are read and written in one memory")

    def __setitem__(self, index: Any, value: Tensor | Scalar) -> None:
        keys = index if isinstance(index, tuple) else (index,)
        if not any(isinstance(key, (list, Tensor)) for key in keys):
            self[index].copy_(value)
            return
        rows = self._rows(keys)
        if isinstance(value, Tensor):
            self._require_other_memory(value)
        inner = rows[0].shape if rows else self.shape[1:]
        spread = _tensor(value).broadcast_to((len(rows), *inner))
        for row, part in zip(rows, spread.unbind() if rows else (), strict=True):
            row.copy_(part)

    def _become(self, other: Tensor) -> Tensor:
        self.geometry = other.geometry
        return self

    def t_(self) -> Tensor:
        return self._become(self.t())

    def unsqueeze_(self, d: int) -> Tensor:
        return self._become(self.unsqueeze(d))

    def transpose_(self, first: int, second: int) -> Tensor:
        return self._become(self.transpose(first, second))

    def register_hook(self, factor: float) -> None:
        """Multiply the derivative by this tensor with `factor`, as the hooks of programs do."""
        if len(self.memory.cells) != self.numel() or self.conjugate or self.negative:
            raise Refused("a hook of a view is of the view alone")
        for cell in self.memory.cells:
            if isinstance(cell, Number):
                cell.factors.append(factor)

    # --- operators --------------------------------------------------------------------------------

    def __add__(self, other: Tensor | Scalar) -> Tensor:
        return self.add(other)

    def __mul__(self, other: Tensor | Scalar) -> Tensor:
        return self.mul(other)

    def __sub__(self, other: Tensor | Scalar) -> Tensor:
        return self.sub(other)

    def __truediv__(self, other: Tensor | Scalar) -> Tensor:
        return self.div(other)

    def __neg__(self) -> Tensor:
        return self.neg()

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.matmul(other)

    def __gt__(self, other: Tensor | Scalar) -> Tensor:
        return self.gt(other)

    def __iadd__(self, other: Tensor | Scalar) -> Tensor:
        return self.add_(other)

    def __imul__(self, other: Tensor | Scalar) -> Tensor:
        return self.mul_(other)

    __radd__, __rmul__ = __add__, __mul__


def joined(parts: Sequence[Tensor], d: int, new: bool = False) -> Tensor:
    """Return tensors one after another in a dimension, as a new tensor."""
    if new:
        parts = [part.unsqueeze(d) for part in parts]
    if len({part.kind for part in parts}) > 1 or len({part.dim() for part in parts}) > 1:
        raise Refused("parts of one kind")
    slices = [row for part in parts for row in part.unbind(d)]
    if len({row.shape for row in slices}) != 1:
        raise Refused("parts of one shape")
    d = parts[0].geometry.dim(d)
    elements = [copy_of(x) for row in slices for x in row.elements()]
    first = Tensor.of(elements, (len(slices), *slices[0].shape), parts[0].kind)
    order = [*range(1, d + 1), 0, *range(d + 1, parts[0].dim())]
    return first.permute(order).clone()


# --- elements -------------------------------------------------------------------------------------


def _product(x: Any, y: Any) -> Element:
    if not isinstance(x, tuple):
        return n.multiply(x, y)
    real = n.add(n.multiply(x[0], y[0]), n.scale(n.multiply(x[1], y[1]), -1.0))
    return real, n.add(n.multiply(x[0], y[1]), n.multiply(x[1], y[0]))


def _sum(x: Any, y: Any) -> Element:
    if not isinstance(x, tuple):
        return n.add(x, y)
    return n.add(x[0], y[0]), n.add(x[1], y[1])


def _total(elements: Sequence[Element], kind: str) -> Element:
    total: Element = (0.0, 0.0) if kind == "complex" else 0.0
    for element in elements:
        total = _sum(total, element)
    return total


def _tensor(x: Tensor | Scalar) -> Tensor:
    if isinstance(x, Tensor):
        return x
    if isinstance(x, complex):
        return Tensor.of([(x.real, x.imag)], (), "complex")
    return Tensor.of([float(x)], ())


def _broadcast(*tensors: Tensor) -> list[Tensor]:
    shape = common_shape(*[tensor.shape for tensor in tensors])
    return [tensor.broadcast_to(shape) for tensor in tensors]


def _alike(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """Return both as complex tensors if one of them is, and numbers in place of truths."""
    if one.kind == two.kind:
        return one, two
    if "complex" not in (one.kind, two.kind):
        return replace(one, kind="real"), replace(two, kind="real")
    return _complex(one), _complex(two)


def _complex(tensor: Tensor) -> Tensor:
    if tensor.kind == "complex":
        return tensor
    return Tensor.of([(x, 0.0) for x in tensor.numbers()], tensor.shape, "complex")
