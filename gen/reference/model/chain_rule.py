"""Numbers that know what they were computed from.

    x = Number(3.0)
    y = multiply(x, x)
    derivatives([(y, 1.0)], [x])        # [a number of 6.0, itself a function of x]

A cell of the model holds a float, or a :class:`Number` if a derivative may be asked for. The slopes
of a number are computed from numbers again, so a derivative has derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

# Called only when a derivative is asked for. The slope of `exponential` is an exponential, which
# has a slope itself, and so on without an end.
Slope = Callable[[], "Cell"]


@dataclass(eq=False, slots=True)
class Number:
    """A real number with a history."""

    value: float
    # the numbers that it was computed from, each with the slope by it
    sources: tuple[tuple[Number, Slope], ...] = ()
    # factors of the derivative by this number, as hooks of a tensor multiply it
    factors: list[float] = field(default_factory=list)


Cell = float | Number


def value_of(cell: Cell) -> float:
    """Return the number without its history."""
    return cell.value if isinstance(cell, Number) else cell


def computed(value: float, *pairs: tuple[Cell, Slope]) -> Cell:
    """Return a number computed from the cells of `pairs`, each with the slope by it."""
    # Most of the time of a model is spent here, so the tuple is built from a list, which is faster
    # than from a generator.
    sources = tuple([(cell, slope) for cell, slope in pairs if isinstance(cell, Number)])
    return Number(value, sources) if sources else value


def sources_of(cell: Cell) -> tuple[tuple[Number, Slope], ...]:
    """Return the sources of a number that has the value of `cell` and is computed from it."""
    return ((cell, lambda: 1.0),) if isinstance(cell, Number) else ()


def add(first: Cell, second: Cell) -> Cell:
    """Return the sum."""
    return computed(value_of(first) + value_of(second), (first, lambda: 1.0), (second, lambda: 1.0))


def multiply(first: Cell, second: Cell) -> Cell:
    """Return the product."""
    return computed(
        value_of(first) * value_of(second), (first, lambda: second), (second, lambda: first)
    )


def values_of(cells: Iterable[Cell]) -> list[float]:
    """Return numbers without their histories."""
    return list(map(value_of, cells))


def scale(cell: Cell, factor: float) -> Cell:
    """Return a number times a constant. Times 1 it is the number itself."""
    if factor == 1.0:
        return cell
    return computed(value_of(cell) * factor, (cell, lambda: factor))


def same(cell: Cell) -> Cell:
    """Return a new number of the same value, as a copy of a tensor has it.

    A hook of the copy does not see the derivative by `cell`.
    """
    return computed(value_of(cell), (cell, lambda: 1.0))


def sine(cell: Cell) -> Cell:
    """Return the sine."""
    return computed(math.sin(value_of(cell)), (cell, lambda: cosine(cell)))


def cosine(cell: Cell) -> Cell:
    """Return the cosine."""
    return computed(math.cos(value_of(cell)), (cell, lambda: scale(sine(cell), -1.0)))


def tanh(cell: Cell) -> Cell:
    """Return the hyperbolic tangent."""

    def slope() -> Cell:
        y = tanh(cell)
        return add(1.0, scale(multiply(y, y), -1.0))

    return computed(math.tanh(value_of(cell)), (cell, slope))


def exponential(cell: Cell) -> Cell:
    """Return the exponential."""
    return computed(math.exp(value_of(cell)), (cell, lambda: exponential(cell)))


def reciprocal(cell: Cell) -> Cell:
    """Return 1 / `cell`."""

    def slope() -> Cell:
        y = reciprocal(cell)
        return scale(multiply(y, y), -1.0)

    return computed(1.0 / value_of(cell), (cell, slope))


def reciprocal_root(cell: Cell) -> Cell:
    """Return 1 / sqrt(`cell`)."""

    def slope() -> Cell:
        return scale(multiply(reciprocal_root(cell), reciprocal(cell)), -0.5)

    return computed(value_of(cell) ** -0.5, (cell, slope))


def positive_part(cell: Cell) -> Cell:
    """Return `cell` where it is positive, else 0."""
    # A plain 0.0 would have no history, but the result depends on `cell` with a derivative of 0.
    return same(cell) if value_of(cell) > 0 else scale(cell, 0.0)


def magnitude(cell: Cell) -> Cell:
    """Return the absolute value."""
    return scale(cell, math.copysign(1.0, value_of(cell)))


def with_slope(value: float, source: Cell, slope: float) -> Cell:
    """Return `value` with a slope by `source` that a handwritten backward states."""
    return computed(value, (source, lambda: slope))


def derivatives(roots: Iterable[tuple[Cell, Cell]], leaves: Sequence[Cell]) -> list[Cell]:
    """Return the derivative of the sum of ``root * weight`` by each of `leaves`.

    The chain rule leads from the roots to the leaves. Each number comes after all those that were
    computed from it.
    """
    totals: dict[int, Cell] = {}

    def count(number: Number, share: Cell) -> None:
        known = totals.get(id(number))
        totals[id(number)] = share if known is None else add(known, share)

    for root, weight in roots:
        if isinstance(root, Number):
            count(root, weight)
    for number in _from_last([root for root, _ in roots if isinstance(root, Number)]):
        # By now all shares have come in, since each number follows those computed from it.
        total = totals.get(id(number), 0.0)
        for factor in number.factors:
            total = scale(total, factor)
        totals[id(number)] = total
        for source, slope in number.sources:
            count(source, _share(total, slope()))
    # A number may be the share of several leaves, so each derivative is a new number.
    return [same(totals.get(id(leaf), 0.0)) for leaf in leaves]


def _share(total: Cell, slope: Cell) -> Cell:
    """Return the product. Most slopes are constants, and most of these are 1."""
    if isinstance(slope, Number):
        return multiply(total, slope)
    return scale(total, slope)


def _from_last(roots: Iterable[Number]) -> list[Number]:
    """Return the numbers that `roots` were computed from, each before its sources."""
    # A history may be deeper than Python's recursion, so the walk has its own stack.
    order: list[Number] = []
    seen: set[int] = set()
    for root in roots:
        stack = [(root, iter(root.sources))]
        if id(root) in seen:
            continue
        seen.add(id(root))
        while stack:
            number, sources = stack[-1]
            for source, _ in sources:
                if id(source) not in seen:
                    seen.add(id(source))
                    stack.append((source, iter(source.sources)))
                    break
            else:
                order.append(number)
                stack.pop()
    return order[::-1]
