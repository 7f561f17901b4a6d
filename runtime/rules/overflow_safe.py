"""Products in which zero wins: ``0 · inf`` is 0, as it is where the infinity is an overflow of finite factors.

The derivative of ``x[0]·x[1]·…`` by one factor is the product of the others, and that by a second one the product of all but two. One of
these partial products may overflow where another has a zero. With ``times`` in place of ``*`` derivatives of any order are then zero
where they should be.
"""

from __future__ import annotations

import torch

from . import derive_batch as batch
from .derive import conj, elementwise
from .record import register

Tensor = torch.Tensor

_LIBRARY = torch.library.Library("runtime", "FRAGMENT")
_LIBRARY.define("times(Tensor self, Tensor other) -> Tensor")
_LIBRARY.define("running_product(Tensor self, int dim) -> Tensor")


def _times(self: Tensor, other: Tensor) -> Tensor:
    return (self * other).masked_fill_((self == 0) | (other == 0), 0)


def _running_product(self: Tensor, dim: int) -> Tensor:
    zero = self == 0
    return self.masked_fill(zero, 1).cumprod(dim).masked_fill_(zero.cumsum(dim) > 0, 0)


_LIBRARY.impl("times", _times, "CompositeExplicitAutograd")
_LIBRARY.impl("running_product", _running_product, "CompositeExplicitAutograd")
times = torch.ops.runtime.times.default
running_product = torch.ops.runtime.running_product.default


def recurrence(a: Tensor, b: Tensor, dim: int, product: bool = False) -> Tensor:
    """``h[0] = b[0]``, ``h[i] = a[i]·h[i-1] + b[i]`` along ``dim``, in log2(n) steps that each double the reach (Hillis and Steele 1986).

    Every step is a product and a sum, so the derivatives of a recurrence need no rule, and zeros in ``a`` are nothing special.
    ``product``: zero wins over an overflow of products of ``a``.
    """
    mul = times if product else torch.mul
    n = b.shape[dim]
    step = 1
    while step < n:
        head, tail = b.narrow(dim, 0, step), b.narrow(dim, step, n - step)
        reach = a.narrow(dim, step, n - step)
        b_next = torch.cat([head, tail + mul(reach, b.narrow(dim, 0, n - step))], dim)
        if 2 * step < n:
            a = torch.cat([a.narrow(dim, 0, step), mul(reach, a.narrow(dim, 0, n - step))], dim)
        b = b_next
        step *= 2
    return b


def reversed_recurrence(a: Tensor, b: Tensor, dim: int, product: bool = False) -> Tensor:
    """``h[n-1] = b[n-1]``, ``h[i] = a[i+1]·h[i+1] + b[i]``: the transpose of :func:`recurrence` for the same ``a``."""
    return recurrence(_later(a, dim).flip(dim), b.flip(dim), dim, product).flip(dim)


def _later(x: Tensor, dim: int) -> Tensor:
    """``x[i+1]`` at ``i``; the last element, which no caller reads, repeats."""
    n = x.shape[dim]
    return torch.cat([x.narrow(dim, 1, n - 1), x.narrow(dim, n - 1, 1)], dim) if n else x


def exclusive_product(x: Tensor, dim: int) -> Tensor:
    """The product of the elements before each along ``dim``."""
    if x.dim() == 0:
        return torch.ones_like(x)
    n = x.shape[dim]
    if n == 0:
        return x
    return torch.cat([torch.ones_like(x.narrow(dim, 0, 1)), running_product(x.narrow(dim, 0, n - 1), dim)], dim)


def product_of_others(x: Tensor, dim: int) -> Tensor:
    """For each element the product of all others along ``dim``: right where elements are zero, unlike ``result / x``."""
    product: Tensor = times(exclusive_product(x, dim), exclusive_product(x.flip(dim), dim).flip(dim))
    return product


def running_product_vjp(g: Tensor, x: Tensor, dim: int) -> Tensor:
    """``grad[i] = (product before i) · sum over k >= i of g[k] · (product from i+1 to k)``, conjugated."""
    x = x.to(g.dtype)
    if x.is_complex():
        x = x.conj()
    grad: Tensor = times(exclusive_product(x, dim), reversed_recurrence(x, g, dim, product=True))
    return grad


def running_product_jvp(t: Tensor, x: Tensor, dim: int) -> Tensor:
    """From ``y[k] = x[k]·y[k-1]``."""
    return recurrence(x, times(t, exclusive_product(x, dim)), dim, product=True)


elementwise(
    "runtime::times",
    {"self": lambda g, other: times(g, conj(other)), "other": lambda g, self: times(g, conj(self))},
    {"self": lambda self_t, other: times(self_t, other), "other": lambda other_t, self: times(self, other_t)},
)
register(
    "runtime::running_product",
    vjp={"self": lambda g, self, dim: running_product_vjp(g, self, dim)},
    jvp={"self": lambda self_t, self, dim: running_product_jvp(self_t, self, dim)},
    batch=batch.along(1),
    family="scan",
)
