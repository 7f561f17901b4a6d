"""Register cumulative sums, products, extrema and logsumexp."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..derive import batch_rules as batch
from ..derive.families import conj, linear
from ..elementwise.overflow_safe import (
    recurrence,
    reversed_recurrence,
    running_product_jvp,
    running_product_vjp,
)
from ..record import register


def _lift(rule: Callable[..., torch.Tensor]) -> Any:
    """Return ``rule(t, x, dim, …)`` as a function that also takes 0-d tensors. They are treated as
    vectors of one element."""

    def lift(t: torch.Tensor, *rest: object) -> torch.Tensor:
        """Run the rule, on vectors of one element in place of 0-d tensors."""
        if t.dim():
            return rule(t, *rest)
        vectors = [t, *rest]
        for index, argument in enumerate(vectors):
            if isinstance(argument, torch.Tensor):
                vectors[index] = argument.unsqueeze(0)
        return rule(*vectors).squeeze(0)

    return lift


def _cumprod_jvp(
    t: torch.Tensor, x: torch.Tensor, dim: int, dtype: torch.dtype | None
) -> torch.Tensor:
    # the kernel computes in `dtype`, too
    if dtype is not None:
        x, t = x.to(dtype), t.to(dtype)
    tangent: torch.Tensor = running_product_jvp(t, x, dim)
    return tangent


def _weights(
    self: torch.Tensor, result: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights of the recurrence for ``y = logcumsumexp(x)``: the decay ``exp(y[i-1] -
    y[i])`` of earlier elements, and the share ``exp(x[i] - y[i])`` of element i.

    For real ``y`` neither is larger than one. Elements of +inf get equal shares, elements of -inf
    get none.
    """
    n = result.shape[dim]
    if n == 0:  # there is no first element for the decay below
        return result, result
    before, after = result.narrow(dim, 0, n - 1), result.narrow(dim, 1, n - 1)
    first = torch.ones_like(result.narrow(dim, 0, 1))
    if self.is_complex():
        return torch.cat([first, (before - after).exp()], dim), (self - result).exp()
    # the difference of two infinities is no number, so these elements have formulas of their own
    infinite = result.isinf()
    top = self == math.inf
    part = top.to(result.dtype) / top.cumsum(dim).clamp(min=1)
    finite = torch.where(infinite, 0.0, result)
    share = torch.where(infinite, part, (torch.where(infinite, 0.0, self) - finite).exp())
    # behind a first +inf each further one takes its share, and the earlier ones keep the rest
    stays_infinite = (before == math.inf) & (after == math.inf)
    any_infinite = before.isinf() | after.isinf()
    ratio = (finite.narrow(dim, 0, n - 1) - finite.narrow(dim, 1, n - 1)).exp()
    # a step to +inf leaves nothing of the earlier elements, and one from -inf has none
    decay = torch.where(any_infinite, 0.0, ratio)
    decay = torch.where(stays_infinite, 1 - part.narrow(dim, 1, n - 1), decay)
    return torch.cat([first, decay], dim), share


def _logcumsumexp_vjp(
    g: torch.Tensor, self: torch.Tensor, result: torch.Tensor, dim: int
) -> torch.Tensor:
    """Return ``grad[i] = exp(x[i] - y[i]) · sum over k >= i of g[k]·exp(y[i] - y[k])``. No exponent
    is positive, so nothing overflows."""
    decay, share = _weights(self, result, dim)
    grad: torch.Tensor = conj(share) * reversed_recurrence(conj(decay), g, dim)
    return grad


def _logcumsumexp_jvp(
    t: torch.Tensor, self: torch.Tensor, result: torch.Tensor, dim: int
) -> torch.Tensor:
    decay, share = _weights(self, result, dim)
    return recurrence(decay, t * share, dim)


linear(
    "cumsum",
    {"self": lambda g, dim: g.flip(dim).cumsum(dim).flip(dim) if g.dim() else g},
    batch.along(1),
    cost="high",
    family="scan",
)
register(
    "cumprod",
    vjp={"self": lambda g, self, dim: _lift(running_product_vjp)(g, self, dim)},
    jvp={"self": lambda self_t, self, dim, dtype: _lift(_cumprod_jvp)(self_t, self, dim, dtype)},
    batch=batch.along(1),
    cost="high",
    family="scan",
)
register(
    "logcumsumexp",
    vjp={"self": lambda g, self, result, dim: _lift(_logcumsumexp_vjp)(g, self, result, dim)},
    jvp={
        "self": lambda self_t, self, result, dim: _lift(_logcumsumexp_jvp)(
            self_t, self, result, dim
        )
    },
    batch=batch.along(1),
    cost="high",
    family="scan",
)
# One element may be the extreme of many prefixes, so their cotangents are added.
for _name in ("cummax", "cummin"):
    register(
        _name,
        vjp={"self": lambda g, result1, dim: torch.zeros_like(g).scatter_add(dim, result1, g)},
        jvp=lambda self_t, result1, dim: (self_t.gather(dim, result1), None),
        batch=batch.along(1),
        cost="high",
        family="scan",
    )
