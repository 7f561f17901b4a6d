"""Register the greater or lesser of two, and values between bounds.

At a tie the derivative is a choice, and torch has made another one with 2.14. So facts of the
installed torch decide, see :mod:`runtime.facts.lock`. A fact that no table here has is a
``KeyError``: somebody has to say what it means.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ...facts.lock import probe
from ..derive.families import diagonal
from ..record import asking

Compare = Callable[..., torch.Tensor]
Part = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Order(NamedTuple):
    """The comparisons that say which of two arguments is the result: ``GREATER`` or ``LESSER``."""

    reaches: Compare
    wins: Compare
    loses: Compare


GREATER = Order(operator.ge, operator.gt, operator.lt)
LESSER = Order(operator.le, operator.lt, operator.gt)


def _halves(
    mine: torch.Tensor, theirs: torch.Tensor, loses: torch.Tensor, g: torch.Tensor
) -> torch.Tensor:
    """Return ``g`` for the argument that wins, half of ``g`` if both are equal, 0 if it loses. At
    NaN both get ``g``, as in torch."""
    return torch.where(mine == theirs, g / 2, g).masked_fill(loses, 0)


def _of_two(op: str, other: str, first: Part, second: Part) -> None:
    """Register an op of ``self`` and ``other``. ``first(g, self, other)``: the gradient of
    ``self``, ``second``: that of ``other``."""
    asks = asking("g", "self", other)
    parts: dict[str, Any] = {"self": asks(first), other: asks(second)}
    diagonal(op, **parts)


def _in_halves(op: str, other: str, order: Order) -> None:
    """Register an op whose arguments get half of the gradient each at a tie."""
    _of_two(
        op,
        other,
        lambda g, x, y: _halves(x, y, order.loses(x, y), g),
        lambda g, x, y: _halves(y, x, order.loses(y, x), g),
    )


def _to_first(op: str, other: str, order: Order) -> None:
    """Register an op whose first argument gets the whole gradient at a tie."""
    _of_two(
        op,
        other,
        lambda g, x, y: torch.where(order.reaches(x, y), g, 0),
        lambda g, x, y: torch.where(order.loses(x, y), g, 0),
    )


def _in_halves_but_nan(op: str, other: str, order: Order) -> None:
    """Register an op as :func:`_in_halves`, where NaN loses.

    torch 2.14 gives both arguments the gradient at a NaN; 2.15 does not.
    """
    _of_two(
        op,
        other,
        # A comparison with NaN is false, so `loses` would be false for x = NaN, which loses here.
        lambda g, x, y: _halves(x, y, ~(order.reaches(x, y) | y.isnan()), g),
        lambda g, x, y: _halves(y, x, order.wins(x, y) | y.isnan(), g),
    )


def _to_first_but_nan(op: str, other: str, order: Order) -> None:
    """Register an op as :func:`_to_first`, where NaN loses."""
    _of_two(
        op,
        other,
        lambda g, x, y: g.masked_fill(~(order.reaches(x, y) | y.isnan()), 0),
        lambda g, x, y: g.masked_fill(order.reaches(x, y) | y.isnan(), 0),
    )


def _between_numbers(above: Compare, below: Compare) -> None:
    """Register the ops with numbers as bounds, which pass on the gradient of what is ``above`` the
    one and ``below`` the other."""

    def passes(g: torch.Tensor, self: torch.Tensor, min: Any, max: Any) -> torch.Tensor:
        """Return the gradient of the elements within the bounds, which may be None."""
        # at NaN no comparison is true, so it gets no gradient
        inside = torch.ones_like(self, dtype=torch.bool)
        if min is not None:
            inside = inside & above(self, min)
        if max is not None:
            inside = inside & below(self, max)
        return torch.where(inside, g, 0)

    diagonal("clamp", self=passes)
    diagonal("clamp_min", self=lambda g, self, min: torch.where(above(self, min), g, 0))
    diagonal("clamp_max", self=lambda g, self, max: torch.where(below(self, max), g, 0))


def _first_between() -> None:
    """Register ``clamp.Tensor``: at a tie the bound gets nothing."""

    def inside(
        g: torch.Tensor, self: torch.Tensor, min: torch.Tensor | None, max: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the gradient of the elements within the bounds, ties included."""
        passes = torch.ones_like(self, dtype=torch.bool)
        if min is not None:
            passes = passes & (self >= min)
        if max is not None:
            passes = passes & (self <= max)
        return torch.where(passes, g, 0)

    def low(g: torch.Tensor, self: torch.Tensor, min: Any, max: object) -> torch.Tensor:
        """Return the gradient of the lower bound."""
        # With bounds in the wrong order the upper one is the result.
        at = self < min
        if max is not None:
            at = at & (min < max)
        return torch.where(at, g, 0)

    def high(g: torch.Tensor, self: torch.Tensor, min: object, max: Any) -> torch.Tensor:
        """Return the gradient of the upper bound, which wins where bounds are in the wrong
        order."""
        at = self > max
        if min is not None:
            at = at | (max < min)
        return torch.where(at, g, 0)

    diagonal("clamp.Tensor", self=inside, min=low, max=high)


def _halves_between() -> None:
    """Register ``clamp.Tensor``: at a tie with one bound both get a half. Where the bounds are in
    the wrong order the upper one is the result."""

    def inside(g: torch.Tensor, self: torch.Tensor, min: Any, max: Any) -> torch.Tensor:
        """Return the gradient of ``self``: half of it at a tie."""
        if min is None:
            return _halves(self, max, LESSER.loses(self, max), g)
        if max is None:
            return _halves(self, min, GREATER.loses(self, min), g)
        ties = ((self == min) | (self == max)) & (min < max)
        return torch.where(ties, g / 2, g).masked_fill((self < min) | (self > max), 0)

    def low(g: torch.Tensor, self: torch.Tensor, min: Any, max: object) -> torch.Tensor:
        """Return the gradient of the lower bound."""
        if max is None:
            return _halves(min, self, min < self, g)
        ties = (self == min) & (min < max)
        # equal bounds make no tie: `self` at both gets all, and below them the lower bound does
        return torch.where(ties, g / 2, g).where(ties | ((self < min) & (min <= max)), 0)

    def high(
        g: torch.Tensor, self: torch.Tensor, min: torch.Tensor | None, max: torch.Tensor
    ) -> torch.Tensor:
        """Return the gradient of the upper bound, which also wins over the lower one."""
        if min is None:
            return _halves(max, self, max > self, g)
        ties = (self == max) & (min < max)
        wins = ((self > max) & (min <= max)) | (min > max)
        return torch.where(ties, g / 2, g).where(ties | wins, 0)

    diagonal("clamp.Tensor", self=inside, min=low, max=high)


_in_halves("maximum", "other", GREATER)
_in_halves("minimum", "other", LESSER)
{
    "1.0": lambda: _between_numbers(operator.ge, operator.le),
    "0.0": lambda: _between_numbers(operator.gt, operator.lt),
}[probe("clamp_min", "gradient at [0.0]")]()
# A key is what the probe prints: the gradients of both arguments where they are equal.
_of_bound = {"1.0 0.0": _to_first, "0.5 0.5": _in_halves}[
    probe("clamp_min.Tensor", "gradients, equal")
]
_of_bound("clamp_min.Tensor", "min", GREATER)
_of_bound("clamp_max.Tensor", "max", LESSER)
{"1.0 1.0, 0.0 0.0, 0.0 0.0": _first_between, "0.5 0.5, 0.5 0.0, 0.0 0.5": _halves_between}[
    probe("clamp.Tensor", "gradients at its bounds")
]()
_beside_nan = {"1.0 0.0": _to_first_but_nan, "0.5 0.5": _in_halves_but_nan}[
    probe("fmax", "gradients, equal")
]
_beside_nan("fmax", "other", GREATER)
_beside_nan("fmin", "other", LESSER)
