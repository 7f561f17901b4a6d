"""Cumulative ops."""

from __future__ import annotations

from typing import Any

import torch

from . import derive_batch as batch
from .derive import linear
from .record import register


def recurrence(a: torch.Tensor, b: torch.Tensor, dim: int) -> torch.Tensor:
    """``h[0] = b[0]``, ``h[i] = a[i]·h[i-1] + b[i]`` along ``dim``, in log2(n) steps that each double the reach (Hillis and Steele 1986).

    Every step is a product and a sum, so the derivatives of a recurrence need no rule, and zeros in ``a`` are nothing special.
    """
    n = b.shape[dim]
    step = 1
    while step < n:
        head, tail = b.narrow(dim, 0, step), b.narrow(dim, step, n - step)
        reach = a.narrow(dim, step, n - step)
        b_next = torch.cat([head, tail + reach * b.narrow(dim, 0, n - step)], dim)
        if 2 * step < n:
            a = torch.cat([a.narrow(dim, 0, step), reach * a.narrow(dim, 0, n - step)], dim)
        b = b_next
        step *= 2
    return b


def reversed_recurrence(a: torch.Tensor, b: torch.Tensor, dim: int) -> torch.Tensor:
    """``h[n-1] = b[n-1]``, ``h[i] = a[i+1]·h[i+1] + b[i]``: the transpose of :func:`recurrence` for the same ``a``."""
    return recurrence(later(a, dim).flip(dim), b.flip(dim), dim).flip(dim)


def later(x: torch.Tensor, dim: int) -> torch.Tensor:
    """``x[i+1]`` at ``i``; the last element, which no caller reads, repeats."""
    n = x.shape[dim]
    return torch.cat([x.narrow(dim, 1, n - 1), x.narrow(dim, n - 1, 1)], dim) if n else x


def exclusive_product(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The product of the elements before each along ``dim``."""
    if x.dim() == 0:
        return torch.ones_like(x)
    n = x.shape[dim]
    if n == 0:
        return x
    return torch.cat([torch.ones_like(x.narrow(dim, 0, 1)), x.narrow(dim, 0, n - 1).cumprod(dim)], dim)


def _lifted(rule: Any) -> Any:
    """Run a rule on (first tensor, x, dim, …) with 0-d tensors as one element along dimension 0."""

    def lifted(t: torch.Tensor, *rest: Any) -> Any:
        if t.dim():
            return rule(t, *rest)
        return rule(*(v.unsqueeze(0) if isinstance(v, torch.Tensor) else v for v in (t, *rest))).squeeze(0)

    return lifted


def _cumprod_vjp(g: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    """``grad[i] = (product before i) · sum over k >= i of g[k] · (product from i+1 to k)``, conjugated."""
    x = x.to(g.dtype)
    if x.is_complex():
        x = x.conj()
    return exclusive_product(x, dim) * reversed_recurrence(x, g, dim)


def _cumprod_jvp(t: torch.Tensor, x: torch.Tensor, dim: int, dtype: Any) -> torch.Tensor:
    """From ``y[k] = x[k]·y[k-1]``."""
    if dtype is not None:
        x, t = x.to(dtype), t.to(dtype)
    return recurrence(x, t * exclusive_product(x, dim), dim)


def _decay(result: torch.Tensor, dim: int) -> torch.Tensor:
    """``exp(y[i-1] - y[i])`` at ``i``, for ``y = logcumsumexp(x)``: never more than one for real ``y``. Zero where nothing came before."""
    n = result.shape[dim]
    if n == 0:
        return result
    before, after = result.narrow(dim, 0, n - 1), result.narrow(dim, 1, n - 1)
    ratio = (before - after).exp()
    if not result.is_complex():
        ratio = torch.where(before == float("-inf"), 0, ratio)
    return torch.cat([torch.ones_like(result.narrow(dim, 0, 1)), ratio], dim)


def _share(self: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """``exp(x[i] - y[i])``: the part of element ``i`` in its own sum."""
    share = (self - result).exp()
    return share if self.is_complex() else torch.where(self == float("-inf"), 0, share)


def _logcumsumexp_vjp(g: torch.Tensor, self: torch.Tensor, result: torch.Tensor, dim: int) -> torch.Tensor:
    """``grad[i] = exp(x[i] - y[i]) · sum over k >= i of g[k]·exp(y[i] - y[k])``; no exponent is positive, so nothing overflows."""
    decay, share = _decay(result, dim), _share(self, result)
    if self.is_complex():
        decay, share = decay.conj(), share.conj()
    return share * reversed_recurrence(decay, g, dim)


def _logcumsumexp_jvp(t: torch.Tensor, self: torch.Tensor, result: torch.Tensor, dim: int) -> torch.Tensor:
    return recurrence(_decay(result, dim), t * _share(self, result), dim)


linear(
    "cumsum",
    {"self": lambda g, dim: g.flip(dim).cumsum(dim).flip(dim) if g.dim() else g},
    batch.along(1),
    family="scan",
)
register(
    "cumprod",
    vjp={"self": lambda g, self, dim: _lifted(_cumprod_vjp)(g, self, dim)},
    jvp={"self": lambda self_t, self, dim, dtype: _lifted(_cumprod_jvp)(self_t, self, dim, dtype)},
    batch=batch.along(1),
    family="scan",
)
register(
    "logcumsumexp",
    vjp={"self": lambda g, self, result, dim: _lifted(_logcumsumexp_vjp)(g, self, result, dim)},
    jvp={"self": lambda self_t, self, result, dim: _lifted(_logcumsumexp_jvp)(self_t, self, result, dim)},
    batch=batch.along(1),
    family="scan",
)
for _name in ("cummax", "cummin"):
    register(
        _name,
        vjp={"self": lambda g, result1, dim: torch.zeros_like(g).scatter_add(dim, result1, g)},
        jvp=lambda self_t, result1, dim: (self_t.gather(dim, result1), None),
        batch=batch.along(1),
        family="scan",
    )
