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
from jax_arrays import ARRAY_OPS
from jax_dtypes import as_counted, as_floats, in_dtype, together
from jax_reductions import REDUCTIONS

__all__ = ["OPS"]

Op = Callable[..., Any]


def _of_floats(f: Op) -> Op:
    """Return ``f`` of numbers with a point: integers are float32 before it, as in torch."""

    @wraps(f)
    def run(*args: Any, **options: Any) -> Any:
        return f(*map(as_floats, args), **options)

    return run


def _of_two(f: Op, floats: bool = False) -> Op:
    """Return ``f`` of two arrays in the dtype in which torch computes with them."""

    @wraps(f)
    def run(x: Any, y: Any, **options: Any) -> Any:
        pair = together(x, y)
        return f(*(map(as_floats, pair) if floats else pair), **options)

    return run


def _along(f: Op) -> Op:
    """Return ``f(x, dim, …)``, for which an array without dimensions is one of one element."""

    @wraps(f)
    def run(x: Any, dim: Any, *args: Any, **options: Any) -> Any:
        if x.ndim:
            return f(x, dim, *args, **options)
        return f(x.reshape(1), dim, *args, **options).reshape(())

    return run


def _cumsum(x: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    return jnp.cumsum(as_counted(x) if dtype is None else in_dtype(x, dtype), dim)


def _cumprod(x: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    return jnp.cumprod(as_counted(x) if dtype is None else in_dtype(x, dtype), dim)


def _square(x: Any) -> Any:
    """Return squares: of truths int64, as in torch."""
    return jnp.square(as_counted(x) if x.dtype == bool else x)


def _sign(x: Any) -> Any:
    """Return signs. A truth is its own sign."""
    return x if x.dtype == bool else jnp.sign(x)


def _logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    return special.logsumexp(as_floats(x), dim, keepdims=keepdim)


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
    return x + y if alpha == 1 else _plus_scaled(x, y, alpha)


def _subtract(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x - y if alpha == 1 else _plus_scaled(x, y, -alpha)


def _plus_scaled(x: Any, y: Any, alpha: Any) -> Any:
    """Return ``x + alpha * y``, rounded once: a number of 16 bits is one of 32 in between."""
    is_half = x.dtype in (jnp.float16, jnp.bfloat16)
    dtype = jnp.float32 if is_half else x.dtype
    total = x.astype(dtype) + jnp.asarray(alpha, dtype) * y.astype(dtype)
    return total.astype(x.dtype)


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """Bound from below, then from above: torch's order where the bounds cross."""
    for bound, nearer in ((min, jnp.maximum), (max, jnp.minimum)):
        if bound is not None:
            x = nearer(*together(x, bound))
    return x


def _round(x: Any, *, decimals: int = 0) -> Any:
    return jnp.round(x, decimals)


def _divide(x: Any, y: Any, rounding_mode: None = None) -> Any:
    return jnp.true_divide(x, y)


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
    "torch.reciprocal": jnp.reciprocal,
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
    "torch.abs": jnp.abs,
    "torch.ceil": jnp.ceil,
    "torch.clamp": _clamp,
    "torch.dot": jnp.dot,
    "torch.floor": jnp.floor,
    "torch.kron": jnp.kron,
    "torch.linalg.det": jnp.linalg.det,
    "torch.linalg.inv": jnp.linalg.inv,
    "torch.logical_and": jnp.logical_and,
    "torch.logical_not": jnp.logical_not,
    "torch.matmul": jnp.matmul,
    "torch.mm": jnp.matmul,
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
    "torch.round": _round,
    "torch.sgn": _sign,
    "torch.sign": _sign,
    "torch.square": _square,
    "torch.trunc": jnp.trunc,
}
"""Functions whose results have the dtype of their arguments."""

_OF_TWO: dict[str, Op] = {
    "torch.add": _add,
    "torch.copysign": jnp.copysign,
    "torch.eq": jnp.equal,
    "torch.fmax": jnp.fmax,
    "torch.fmin": jnp.fmin,
    "torch.gt": jnp.greater,
    "torch.hypot": jnp.hypot,
    "torch.lt": jnp.less,
    "torch.maximum": jnp.maximum,
    "torch.minimum": jnp.minimum,
    "torch.mul": jnp.multiply,
    "torch.pow": jnp.power,
    "torch.sub": _subtract,
}
"""Functions of two arrays, or an array and a number."""

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
    **{name: _of_two(f) for name, f in _OF_TWO.items()},
    "torch.div.no_rounding_mode": _of_two(_divide, floats=True),
    **{name: _along(f) for name, f in _ALONG.items()},
    **ARRAY_OPS,
    **REDUCTIONS,
}
"""By the name of an op in the matrix."""
