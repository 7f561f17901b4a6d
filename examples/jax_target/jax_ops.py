"""Ops of torch in jax: what `jax_target` calls for an op of the matrix.

    OPS["torch.sin"](x)         # an array of jax

An entry adapts what is a matter of convention: torch computes functions of integers in its default
dtype, takes a dimension of a tensor without any, and has options that jax has not. The numbers are
those of jax.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import nn
from jax.scipy import special

__all__ = ["OPS"]

Op = Callable[..., Any]


def _of_floats(f: Op) -> Op:
    """Return ``f`` of numbers with a point: integers are float32 before it, as in torch."""

    @wraps(f)
    def run(*args: Any, **options: Any) -> Any:
        return f(*map(_as_floats, args), **options)

    return run


def _as_floats(x: Any) -> Any:
    if isinstance(x, jax.Array) and not jnp.issubdtype(x.dtype, jnp.inexact):
        return x.astype(jnp.float32)
    return x


def _along(f: Op) -> Op:
    """Return ``f(x, dim, …)``, for which an array without dimensions is one of one element."""

    @wraps(f)
    def run(x: Any, dim: Any, *args: Any, **options: Any) -> Any:
        if x.ndim:
            return f(x, dim, *args, **options)
        return f(x.reshape(1), dim, *args, **options).reshape(())

    return run


def _cumsum(x: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    return jnp.cumsum(_counted(x, dtype), dim)


def _cumprod(x: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    return jnp.cumprod(_counted(x, dtype), dim)


def _counted(x: Any, dtype: torch.dtype | None = None) -> Any:
    """Return integers as int64, in which torch adds and multiplies them, or in a given dtype."""
    if dtype is not None:
        return x.astype(str(dtype).removeprefix("torch."))
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    return x.astype(jnp.int64)


def _square(x: Any) -> Any:
    """Return squares: of truths int64, as in torch."""
    return jnp.square(_counted(x) if x.dtype == bool else x)


def _sign(x: Any) -> Any:
    """Return signs. A truth is its own sign."""
    return x if x.dtype == bool else jnp.sign(x)


def _logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    return special.logsumexp(_as_floats(x), dim, keepdims=keepdim)


def _softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    scaled = beta * x
    is_linear = scaled > threshold
    # the branch that is not taken has a finite derivative
    curved = nn.softplus(jnp.where(is_linear, 0, scaled)) / beta
    return jnp.where(is_linear, x, curved)


def _elu(x: Any, alpha: float = 1.0) -> Any:
    return nn.elu(x, alpha)


def _gelu(x: Any, approximate: str = "none") -> Any:
    return nn.gelu(x, approximate=approximate == "tanh")


def _add(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x + alpha * y


def _subtract(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x - alpha * y


def _softmax(x: Any, dim: int) -> Any:
    return nn.softmax(x, dim)


def _log_softmax(x: Any, dim: int) -> Any:
    return nn.log_softmax(x, dim)


_OF_FLOATS: dict[str, Op] = {
    "torch.acos": jnp.arccos,
    "torch.acosh": jnp.arccosh,
    "torch.asin": jnp.arcsin,
    "torch.asinh": jnp.arcsinh,
    "torch.atan": jnp.arctan,
    "torch.atan2": jnp.arctan2,
    "torch.atanh": jnp.arctanh,
    "torch.cos": jnp.cos,
    "torch.cosh": jnp.cosh,
    "torch.deg2rad": jnp.deg2rad,
    "torch.digamma": special.digamma,
    "torch.erf": special.erf,
    "torch.erfc": special.erfc,
    "torch.erfinv": special.erfinv,
    "torch.exp": jnp.exp,
    "torch.exp2": jnp.exp2,
    "torch.expm1": jnp.expm1,
    "torch.i0": special.i0,
    "torch.lgamma": special.gammaln,
    "torch.log": jnp.log,
    "torch.log10": jnp.log10,
    "torch.log1p": jnp.log1p,
    "torch.log2": jnp.log2,
    "torch.logaddexp": jnp.logaddexp,
    "torch.logaddexp2": jnp.logaddexp2,
    "torch.nn.functional.softsign": nn.soft_sign,
    "torch.rad2deg": jnp.rad2deg,
    "torch.rsqrt": jax.lax.rsqrt,
    "torch.sigmoid": nn.sigmoid,
    "torch.sin": jnp.sin,
    "torch.sinc": jnp.sinc,
    "torch.sinh": jnp.sinh,
    "torch.special.entr": special.entr,
    "torch.special.i0e": special.i0e,
    "torch.special.i1": special.i1,
    "torch.special.i1e": special.i1e,
    "torch.special.log_ndtr": special.log_ndtr,
    "torch.special.ndtr": special.ndtr,
    "torch.special.ndtri": special.ndtri,
    "torch.special.xlog1py": special.xlog1py,
    "torch.sqrt": jnp.sqrt,
    "torch.tan": jnp.tan,
    "torch.tanh": jnp.tanh,
    "torch.xlogy": special.xlogy,
}
"""Functions whose results have a point."""

_PLAIN: dict[str, Op] = {
    "torch.add": _add,
    "torch.ceil": jnp.ceil,
    "torch.copysign": jnp.copysign,
    "torch.dot": jnp.dot,
    "torch.floor": jnp.floor,
    "torch.fmax": jnp.fmax,
    "torch.fmin": jnp.fmin,
    "torch.hypot": jnp.hypot,
    "torch.kron": jnp.kron,
    "torch.linalg.det": jnp.linalg.det,
    "torch.linalg.inv": jnp.linalg.inv,
    "torch.matmul": jnp.matmul,
    "torch.maximum": jnp.maximum,
    "torch.minimum": jnp.minimum,
    "torch.mm": jnp.matmul,
    "torch.mul": jnp.multiply,
    "torch.mv": jnp.matmul,
    "torch.neg": jnp.negative,
    "torch.nn.functional.celu": nn.celu,
    "torch.nn.functional.elu": _elu,
    "torch.nn.functional.gelu": _gelu,
    "torch.nn.functional.logsigmoid": nn.log_sigmoid,
    "torch.nn.functional.mish": nn.mish,
    "torch.nn.functional.relu": nn.relu,
    "torch.nn.functional.selu": nn.selu,
    "torch.nn.functional.silu": nn.silu,
    "torch.nn.functional.softplus": _softplus,
    "torch.outer": jnp.outer,
    "torch.sgn": _sign,
    "torch.sign": _sign,
    "torch.square": _square,
    "torch.sub": _subtract,
    "torch.trunc": jnp.trunc,
}
"""Functions whose results have the dtype of their arguments."""

_ALONG: dict[str, Op] = {
    "torch.cumprod": _cumprod,
    "torch.cumsum": _cumsum,
    "torch.log_softmax": _log_softmax,
    "torch.logsumexp": _logsumexp,
    "torch.softmax": _softmax,
}
"""Functions of a tensor and a dimension."""

OPS: dict[str, Op] = {
    **{name: _of_floats(f) for name, f in _OF_FLOATS.items()},
    **_PLAIN,
    **{name: _along(f) for name, f in _ALONG.items()},
}
"""By the name of an op in the matrix."""
