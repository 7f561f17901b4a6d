"""The tensor of the model: a memory, a geometry, and the methods that programs call.

    a = Tensor.of([1.0, 2.0, 3.0, 4.0], (2, 2))
    a.t()[0].mul_(a[1])                 # as torch.Tensor, by its documented meaning

An element of a complex tensor is a pair of numbers, its parts. So conjugates, negatives and parts
of complex tensors are views of the same cells, as they are in torch.

A call raises :class:`~.cell_geometry.Refused` if shapes do not fit, or if torch does not say what
it gives. For example, torch does not say that of a write to cells which the call reads elsewhere.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gen.reference.model import chain_rule
from gen.reference.model.cell_geometry import Geometry, Refused, common_shape
from gen.reference.model.chain_rule import Cell, Number
from gen.reference.model.stored_cells import STEPS, Element, copy_of
from gen.reference.model.view_methods import Viewed, is_gathered, keys_of

Scalar = float | int | complex
Unary = Callable[[Cell], Cell]


def _by_element(function: Unary) -> Callable[[Tensor], Tensor]:
    """Return the method that applies a function to each element."""
    return lambda self: self._each(function)


def _in_place(name: str) -> Callable[..., Tensor]:
    """Return the method that writes the result of another one to the tensor."""

    def write(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.take(getattr(self, name)(*args, **kwargs), *args)

    return write


def _in_other_geometry(name: str) -> Callable[..., Tensor]:
    """Return the method that gives the tensor the geometry of a view of it."""

    def change(self: Tensor, *args: int) -> Tensor:
        self.geometry = getattr(self, name)(*args).geometry
        return self

    return change


class Tensor(Viewed):
    """A tensor with the methods of ``torch.Tensor`` that compute and write."""

    # --- results of their own ---------------------------------------------------------------------

    def _each(self, function: Unary) -> Tensor:
        """Return the function of each number, as a tensor of its own."""
        if self.kind != "real":
            raise Refused("the function is known of real numbers")
        try:
            found = list(map(function, self.numbers()))
        except (OverflowError, ValueError):
            raise Refused("numbers that are too large") from None
        return Tensor.of(found, self.shape)

    sin = _by_element(chain_rule.sine)
    cos = _by_element(chain_rule.cosine)
    tanh = _by_element(chain_rule.tanh)
    exp = _by_element(chain_rule.exponential)
    relu = _by_element(chain_rule.positive_part)
    abs = _by_element(chain_rule.magnitude)

    def neg(self) -> Tensor:
        """Return the negative."""
        return self.mul(-1.0)

    def square(self) -> Tensor:
        """Return the square."""
        return self.mul(self)

    def clamp(self, *, min: float) -> Tensor:
        """Return the numbers, but `min` where they are less."""
        self._require_no_truths()
        return self.where(self.gt(min), min)

    def clone(self) -> Tensor:
        """Return a copy, which has numbers of its own."""
        return Tensor.of(self.copies(), self.shape, self.kind)

    def to(self, dtype: str, *, copy: bool) -> Tensor:
        """Return a copy. The model does not round."""
        if self.kind != "real" or not copy:
            raise Refused("real numbers are converted")
        return self.clone()

    def item(self) -> float:
        """Return the one number without its history."""
        if self.numel() != 1 or self.kind != "real":
            raise Refused("one real number")
        (cell,) = self.numbers()
        return chain_rule.value_of(cell)

    def contiguous(self) -> Tensor:
        """Return the tensor itself if its cells lie in order, else a copy."""
        packed = Geometry.packed(self.shape, STEPS[self.kind])
        there = replace(packed, offset=self.geometry.offset)
        return self if there.places() == self.geometry.places() else self.clone()

    def mul(self, other: Tensor | Scalar) -> Tensor:
        """Return the product."""
        return self._with(other, _product)

    def add(self, other: Tensor | Scalar, *, alpha: float = 1.0) -> Tensor:
        """Return the sum with `other` times `alpha`."""
        return self._with(_tensor(other).mul(alpha), _sum)

    def sub(self, other: Tensor | Scalar) -> Tensor:
        """Return the difference."""
        return self.add(_tensor(other).mul(-1.0))

    def div(self, other: Tensor | Scalar) -> Tensor:
        """Return the quotient by numbers that are not near 0."""
        divisor = _tensor(other)
        if divisor.kind != "real" or _is_near_zero(divisor):
            raise Refused("a quotient near a pole")
        return self.mul(divisor._each(chain_rule.reciprocal))

    def gt(self, other: Tensor | Scalar) -> Tensor:
        """Return where the numbers are greater."""
        left, right = _broadcast(self, _tensor(other))
        if "complex" in (left.kind, right.kind):
            raise Refused("complex numbers have no order")
        pairs = zip(left.numbers(), right.numbers(), strict=True)
        truths = [chain_rule.value_of(one) > chain_rule.value_of(other) for one, other in pairs]
        return Tensor.of(list(map(float, truths)), left.shape, "bool")

    def lt(self, other: Tensor | Scalar) -> Tensor:
        """Return where the numbers are less."""
        return _tensor(other).gt(self)

    def _with_truths(self, other: Tensor, function: Callable[..., float]) -> Tensor:
        """Return a function of two truths for each element."""
        if (self.kind, other.kind) != ("bool", "bool"):
            raise Refused("truths are joined with truths")
        one, two = _broadcast(self, other)
        found = map(function, one.elements(), two.elements())
        return Tensor.of(list(found), one.shape, "bool")

    def where(self, condition: Tensor, other: Tensor | Scalar) -> Tensor:
        """Return the numbers where `condition` is true, and those of `other` elsewhere."""
        mine, theirs, chosen = _broadcast(self, _tensor(other), condition)
        mine, theirs = _alike(mine, theirs)
        found = map(_chosen, chosen.elements(), mine.elements(), theirs.elements())
        return Tensor.of(list(map(copy_of, found)), mine.shape, mine.kind)

    def masked_fill(self, mask: Tensor, value: float) -> Tensor:
        """Return the numbers, but `value` where the mask is true."""
        self._require_no_truths()
        _, shaped = _broadcast(self, mask)
        return _tensor(value).where(shaped, self)

    def sum(self, dim: int | None = None) -> Tensor:
        """Return the sum of a dimension, or of all."""
        self._require_no_truths()
        if dim is None:
            return Tensor.of([_total(self.elements(), self.kind)], (), self.kind)
        rows = self._moved_last(dim)
        totals = [_total(row.elements(), self.kind) for row in rows]
        return Tensor.of(totals, self.geometry.without(self.geometry.dim(dim)).shape, self.kind)

    def mean(self) -> Tensor:
        """Return the mean of all numbers."""
        if not self.numel():
            raise Refused("no elements have no mean")
        return self.sum().mul(1.0 / self.numel())

    def cumsum(self, dim: int) -> Tensor:
        """Return the sums up to each number of a dimension."""
        self._require_no_truths()
        rows = self._moved_last(dim)
        sums: list[Element] = []
        for row in rows:
            sums += itertools.accumulate(row.elements(), _sum)
        dim = self.geometry.dim(dim)
        last = (*self.shape[:dim], *self.shape[dim + 1 :], self.shape[dim])
        moved = Tensor.of(sums, last, self.kind)
        # The rows were read one after another, so their dimension is the last one of `moved`.
        order = list(range(self.dim() - 1))
        order.insert(dim, self.dim() - 1)
        return moved.permute(order).clone()

    def _moved_last(self, dim: int) -> list[Tensor]:
        """Return the lines of a dimension, in the order of the others."""
        dim = self.geometry.dim(dim)
        others = self.geometry.without(dim)
        size, stride = self.shape[dim], self.geometry.strides[dim]
        return [self._view(Geometry((size,), (stride,), place)) for place in others.places()]

    def matmul(self, other: Tensor) -> Tensor:
        """Return the product of two matrices."""
        if self.dim() != 2 or other.dim() != 2 or self.shape[1] != other.shape[0]:
            raise Refused("a product of two matrices that fit")
        rows, columns = self.unbind(0), other.unbind(1)
        products = [row.mul(column).sum() for row, column in itertools.product(rows, columns)]
        # Without parts, `joined` would have no shape to join by.
        if not products:
            return Tensor.of([], (len(rows), len(columns)), self.kind)
        return joined(products, 0, new=True).view(len(rows), len(columns))

    def flip(self, dim: int) -> Tensor:
        """Return a dimension in reverse, as a copy."""
        size = self.shape[self.geometry.dim(dim)]
        return self.index_select(dim, list(range(size))[::-1])

    def index_select(self, dim: int, indices: Sequence[int]) -> Tensor:
        """Return slices of a dimension, as a copy."""
        dim = self.geometry.dim(dim)
        slices = [self.select(dim, index).unsqueeze(dim) for index in indices]
        return joined(slices, dim) if slices else self.narrow(dim, 0, 0).clone()

    def softmax(self, dim: int) -> Tensor:
        """Return exponentials that have the sum 1 in a dimension."""
        # Numbers that are too large are refused, so no shift by the maximum is needed.
        whole = self.exp()
        return whole.div(whole.sum(dim).unsqueeze(dim))

    # --- copies with a part written ---------------------------------------------------------------

    def select_scatter(self, source: Tensor, dim: int, index: int) -> Tensor:
        """Return a copy with `source` as one slice."""
        return self._with_part(source, lambda whole: whole.select(dim, index))

    def slice_scatter(self, source: Tensor, dim: int, start: int, end: int) -> Tensor:
        """Return a copy with `source` as a range of a dimension."""
        return self._with_part(source, lambda whole: whole.narrow(dim, start, end - start))

    def diagonal_scatter(self, source: Tensor) -> Tensor:
        """Return a copy with `source` as the diagonal."""
        return self._with_part(source, Tensor.diagonal)

    def index_copy(self, dim: int, indices: Sequence[int], source: Tensor) -> Tensor:
        """Return a copy with slices of `source` at the indices."""
        return self.clone().index_copy_(dim, indices, source)

    def index_add(self, dim: int, indices: Sequence[int], source: Tensor) -> Tensor:
        """Return a copy with slices of `source` added at the indices."""
        return self.clone().index_add_(dim, indices, source)

    def index_fill(self, dim: int, indices: Sequence[int], value: float) -> Tensor:
        """Return a copy with one number in slices."""
        return self.clone().index_fill_(dim, indices, value)

    def _require_no_truths(self) -> None:
        if self.kind == "bool":
            raise Refused("truths are counted in integers")

    def _with_part(self, source: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Return a copy of the tensor, of which `source` is written to a part."""
        whole = self.clone()
        written = part(whole)
        if written.shape != source.shape or written.kind != source.kind:
            raise Refused("the source has the shape of the part")
        written.copy_(source)
        return whole

    def _with(self, other: Tensor | Scalar, function: Callable[..., Element]) -> Tensor:
        """Return a function of two tensors element by element, broadcast and made alike."""
        if self.kind == "bool" and _tensor(other).kind != "real":
            raise Refused("truths are computed with numbers alone")
        if self.kind == "bool" and not isinstance(other, Tensor):
            raise Refused("a truth and a plain number give an integer")
        left, right = _alike(*_broadcast(self, _tensor(other)))
        found = map(function, left.elements(), right.elements())
        result = Tensor.of(list(found), left.shape, left.kind)
        # Torch gives a result the order in memory of its arguments.
        result.memory.is_ordered = self.is_in_order and _tensor(other).keeps_order_of(self)
        return result

    # --- writes -----------------------------------------------------------------------------------

    def copy_(self, other: Tensor | Scalar) -> Tensor:
        """Write the numbers of `other`."""
        source = _tensor(other)
        if self.kind == "bool" and source.kind != "bool":
            raise Refused("numbers that become truths")
        if source.kind == "complex" and self.kind != "complex":
            raise Refused("a complex number in a real tensor")
        self._require_apart(source)
        spread = _alike(self, source.broadcast_to(self.shape))[1]
        return self._write(spread.copies())

    def take(self, result: Tensor, *read: Tensor | Scalar) -> Tensor:
        """Write a result of this shape, computed from this tensor and those of `read`."""
        if result.shape != self.shape or result.kind != self.kind:
            raise Refused(f"{result.kind}{result.shape} is not written to {self.kind}{self.shape}")
        self._require_apart(*[value for value in read if isinstance(value, Tensor)])
        return self._write(result.elements())

    mul_ = _in_place("mul")
    add_ = _in_place("add")
    sub_ = _in_place("sub")
    div_ = _in_place("div")
    sin_ = _in_place("sin")
    tanh_ = _in_place("tanh")
    relu_ = _in_place("relu")
    neg_ = _in_place("neg")
    cumsum_ = _in_place("cumsum")
    masked_fill_ = _in_place("masked_fill")
    square_ = _in_place("square")
    clamp_ = _in_place("clamp")
    exp_ = _in_place("exp")

    def fill_(self, value: Tensor | Scalar) -> Tensor:
        """Write one number everywhere."""
        if isinstance(value, Tensor) and value.dim():
            raise Refused("a tensor is filled with one number")
        return self.copy_(value)

    def zero_(self) -> Tensor:
        """Write 0 everywhere."""
        return self.copy_(0.0)

    def index_fill_(self, dim: int, indices: Sequence[int], value: float) -> Tensor:
        """Write one number to slices."""
        for index in set(indices):
            self.select(dim, index).fill_(value)
        return self

    def index_add_(self, dim: int, indices: Sequence[int], source: Tensor) -> Tensor:
        """Add a slice of `source` for each index."""
        for mine, part in self._slices_of(dim, indices, source):
            mine.add_(part)
        return self

    def index_copy_(self, dim: int, indices: Sequence[int], source: Tensor) -> Tensor:
        """Write a slice of `source` for each index."""
        if len(set(indices)) != len(indices):
            raise Refused("an index twice")
        for mine, part in self._slices_of(dim, indices, source):
            mine.copy_(part)
        return self

    def _slices_of(
        self, dim: int, indices: Sequence[int], source: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """Return the slices at `indices`, each with that of `source` which is written to it."""
        slices = source.unbind(dim)
        self._require_other_memory(source)
        if len(slices) != len(indices):
            raise Refused("as many slices as indices")
        if len(set(self.geometry.places())) < self.numel():
            raise Refused("slices that share cells are written in no order that torch states")
        pairs = [
            (self.select(dim, index), part) for index, part in zip(indices, slices, strict=True)
        ]
        if any(mine.shape != part.shape for mine, part in pairs):
            raise Refused("a slice of another shape")
        return pairs

    def _require_other_memory(self, source: Tensor) -> None:
        if source.memory is self.memory:
            raise Refused("slices are read and written in one memory")

    def __setitem__(self, index: Any, value: Tensor | Scalar) -> None:
        keys = keys_of(index)
        if not is_gathered(keys):
            self[index].copy_(value)
            return
        # ``self[index]`` would be a copy, so each row is written by itself.
        rows = self._rows(keys)
        if isinstance(value, Tensor):
            self._require_other_memory(value)
        spread = _tensor(value).broadcast_to(self._shape_of_rows(rows))
        for row, part in zip(rows, spread.unbind(), strict=True):
            row.copy_(part)

    def __bool__(self) -> bool:
        """Return whether the one number is not 0. Complex numbers are refused."""
        if self.numel() != 1 or self.kind == "complex":
            raise Refused("one number has a truth")
        (cell,) = self.numbers()
        return bool(chain_rule.value_of(cell))

    t_ = _in_other_geometry("t")
    squeeze_ = _in_other_geometry("squeeze")
    unsqueeze_ = _in_other_geometry("unsqueeze")
    transpose_ = _in_other_geometry("transpose")

    def register_hook(self, factor: float) -> None:
        """Multiply the derivative by this tensor with `factor`, as the hooks of programs do."""
        if not self.history:
            return
        if self.hooks:
            # Torch does not say what a later write makes of the hook, so such writes are refused.
            self.hooks[-1].append(factor)
            self.memory.writable = False
            return
        for cell in self.memory.cells:
            if isinstance(cell, Number):
                cell.factors.append(factor)

    # --- operators --------------------------------------------------------------------------------

    __add__ = __radd__ = add
    __mul__ = __rmul__ = mul
    __sub__ = sub
    __truediv__ = div
    __neg__ = neg
    __matmul__ = matmul
    __gt__ = gt
    __lt__ = lt
    __and__ = functools.partialmethod(_with_truths, function=min)
    __or__ = functools.partialmethod(_with_truths, function=max)
    __iadd__ = add_
    __imul__ = mul_


def joined(parts: Sequence[Tensor], dim: int, new: bool = False) -> Tensor:
    """Return tensors one after another in a dimension, as a new tensor.

    With `new`, the dimension is a new one, as for ``torch.stack``.
    """
    if new:
        parts = [part.unsqueeze(dim) for part in parts]
    slices = list(itertools.chain.from_iterable(part.unbind(dim) for part in parts))
    shapes = set(map(operator.attrgetter("shape"), slices))
    kinds = set(map(operator.attrgetter("kind"), parts))
    if len(shapes) != 1 or len(kinds) != 1:
        raise Refused("parts of one kind and shape")
    elements = itertools.chain.from_iterable(row.copies() for row in slices)
    first = Tensor.of(list(elements), (len(slices), *shapes.pop()), kinds.pop())
    # The slices lie in the first dimension here, but they belong in another one.
    order = list(range(1, first.dim()))
    order.insert(parts[0].geometry.dim(dim), 0)
    return first.permute(order).clone()


# --- elements -------------------------------------------------------------------------------------


def _product(x: Any, y: Any) -> Element:
    if not isinstance(x, tuple):
        return chain_rule.multiply(x, y)
    # (a + ib)·(c + id) = (ac - bd) + i(ad + bc)
    (a, b), (c, d) = x, y
    bd = chain_rule.multiply(b, d)
    real = chain_rule.add(chain_rule.multiply(a, c), chain_rule.scale(bd, -1.0))
    return real, chain_rule.add(chain_rule.multiply(a, d), chain_rule.multiply(b, c))


def _sum(x: Any, y: Any) -> Element:
    if not isinstance(x, tuple):
        return chain_rule.add(x, y)
    return chain_rule.add(x[0], y[0]), chain_rule.add(x[1], y[1])


def _total(elements: Sequence[Element], kind: str) -> Element:
    zero: dict[str, Element] = {"complex": (0.0, 0.0)}
    return functools.reduce(_sum, elements, zero.get(kind, 0.0))


def _chosen(condition: Element, one: Element, other: Element) -> Element:
    return one if condition else other


def _is_near_zero(tensor: Tensor) -> bool:
    return any(abs(value) < 0.1 for value in chain_rule.values_of(tensor.numbers()))


def _tensor(x: Tensor | Scalar) -> Tensor:
    """Return a tensor itself, or a number as a tensor without dimensions."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, complex):
        return Tensor.of([(x.real, x.imag)], (), "complex").in_order()
    return Tensor.of([float(x)], ()).in_order()


def _broadcast(*tensors: Tensor) -> list[Tensor]:
    shape = common_shape(*map(operator.attrgetter("shape"), tensors))
    return [tensor.broadcast_to(shape) for tensor in tensors]


def _alike(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return both as complex tensors if one of them is, and numbers in place of truths."""
    if first.kind == second.kind:
        return first, second
    if "complex" not in (first.kind, second.kind):
        return replace(first, kind="real"), replace(second, kind="real")
    return _complex(first), _complex(second)


def _complex(tensor: Tensor) -> Tensor:
    """Return a tensor with complex elements, of which the imaginary parts are 0 if it has none."""
    if tensor.kind == "complex":
        return tensor
    return Tensor.of([(number, 0.0) for number in tensor.numbers()], tensor.shape, "complex")
