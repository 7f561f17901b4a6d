"""Multiply so that a zero wins over an infinity: ``times(0, inf)`` is 0.

The derivative of ``x[0]·x[1]·…`` by one factor is the product of all others. A second derivative is
the product of all but two. These products are computed from partial products. One partial product
may overflow to infinity although another one has a zero factor. The exact product is then 0, and
``*`` gives NaN. With ``times`` derivatives of every order are 0 there.
"""

from __future__ import annotations

import torch

from ..derive import batch_rules as batch
from ..derive.families import conj, elementwise
from ..record import register

Tensor = torch.Tensor

_LIBRARY = torch.library.Library("torch_transform_matrix", "FRAGMENT")
# Ops with records of their own. Written in plain ops, a derivative of `times` would again contain
# `*`.
_LIBRARY.define("times(Tensor self, Tensor other) -> Tensor")
_LIBRARY.define("running_product(Tensor self, int dim) -> Tensor")


def _times(self: Tensor, other: Tensor) -> Tensor:
    return (self * other).masked_fill_((self == 0) | (other == 0), 0)


def _running_product(self: Tensor, dim: int) -> Tensor:
    zero = self == 0
    # A plain cumprod that has overflowed is NaN from the first zero on.
    return self.masked_fill(zero, 1).cumprod(dim).masked_fill_(zero.cumsum(dim) > 0, 0)


_LIBRARY.impl("times", _times, "CompositeExplicitAutograd")
_LIBRARY.impl("running_product", _running_product, "CompositeExplicitAutograd")
times = torch.ops.torch_transform_matrix.times.default
running_product = torch.ops.torch_transform_matrix.running_product.default


def recurrence(a: Tensor, b: Tensor, dim: int, product: bool = False) -> Tensor:
    """Return h with ``h[0] = b[0]``, ``h[i] = a[i]·h[i-1] + b[i]`` along ``dim``, in log2(n) steps
    (Hillis and Steele 1986).

    Each step is a product and a sum. So the derivatives need no rule, and zeros in ``a`` are no
    special case. ``product``: zeros win over overflows in products of ``a``.
    """
    mul = times if product else torch.mul
    n = b.shape[dim]
    step = 1
    while step < n:
        head, tail = b.narrow(dim, 0, step), b.narrow(dim, step, n - step)
        reach = a.narrow(dim, step, n - step)
        # two spans of `step` elements become one; the last turn needs no further products of `a`
        b_next = torch.cat([head, tail + mul(reach, b.narrow(dim, 0, n - step))], dim)
        if 2 * step < n:
            a = torch.cat([a.narrow(dim, 0, step), mul(reach, a.narrow(dim, 0, n - step))], dim)
        b = b_next
        step *= 2
    return b


def reversed_recurrence(a: Tensor, b: Tensor, dim: int, product: bool = False) -> Tensor:
    """Return h with ``h[n-1] = b[n-1]``, ``h[i] = a[i+1]·h[i+1] + b[i]``: the transpose of
    :func:`recurrence` for the same ``a``."""
    return recurrence(_later(a, dim).flip(dim), b.flip(dim), dim, product).flip(dim)


def _later(x: Tensor, dim: int) -> Tensor:
    """Return ``x[i+1]`` at ``i``. The last element is repeated; no caller reads it."""
    n = x.shape[dim]
    if not n:
        return x
    return torch.cat([x.narrow(dim, 1, n - 1), x.narrow(dim, n - 1, 1)], dim)


def exclusive_product(x: Tensor, dim: int) -> Tensor:
    """Return for each element the product of the elements before it along ``dim``."""
    if x.dim() == 0:
        return torch.ones_like(x)
    n = x.shape[dim]
    if n == 0:
        return x
    return torch.cat(
        [torch.ones_like(x.narrow(dim, 0, 1)), running_product(x.narrow(dim, 0, n - 1), dim)], dim
    )


def product_of_others(x: Tensor, dim: int) -> Tensor:
    """Return for each element the product of all others along ``dim``. Unlike ``result / x`` it is
    right if elements are zero."""
    product: Tensor = times(
        exclusive_product(x, dim), exclusive_product(x.flip(dim), dim).flip(dim)
    )
    return product


def running_product_vjp(g: Tensor, x: Tensor, dim: int) -> Tensor:
    """Return ``grad[i] = (product before i) · sum over k >= i of g[k] · (product from i+1 to k)``,
    conjugated."""
    x = x.to(g.dtype)
    if x.is_complex():
        x = x.conj()
    grad: Tensor = times(exclusive_product(x, dim), reversed_recurrence(x, g, dim, product=True))
    return grad


def running_product_jvp(t: Tensor, x: Tensor, dim: int) -> Tensor:
    """Return the tangent of the running product y, from ``y[k] = x[k]·y[k-1]``."""
    return recurrence(x, times(t, exclusive_product(x, dim)), dim, product=True)


elementwise(
    "torch_transform_matrix::times",
    {"self": lambda g, other: times(g, conj(other)), "other": lambda g, self: times(g, conj(self))},
    {
        "self": lambda self_t, other: times(self_t, other),
        "other": lambda other_t, self: times(self, other_t),
    },
)
register(
    "torch_transform_matrix::running_product",
    vjp={"self": lambda g, self, dim: running_product_vjp(g, self, dim)},
    jvp={"self": lambda self_t, self, dim: running_product_jvp(self_t, self, dim)},
    batch=batch.along(1),
    family="scan",
)
