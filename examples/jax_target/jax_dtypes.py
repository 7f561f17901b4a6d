"""Dtypes of jax for those of torch, and the promotion of torch for arrays of jax.

    of_torch(torch.int8)                  # jnp.int8
    together(x, 2.5)                      # both in the dtype that torch computes with
    in_dtype(x, torch.float64)            # x in another dtype, or x for None

Which dtype a result has is a convention. jax has another one: for it an array without dimensions
counts as much as one with them, and integers with a number of Python are float64.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

__all__ = ["as_counted", "as_floats", "in_dtype", "of_torch", "together"]


def of_torch(dtype: torch.dtype) -> Any:
    """Return the dtype of jax of the same name."""
    name = str(dtype).removeprefix("torch.")
    return jnp.bool_ if name == "bool" else getattr(jnp, name)


def in_dtype(x: Any, dtype: torch.dtype | None) -> Any:
    """Return ``x`` in a dtype of torch. None leaves it as it is.

    A complex number that becomes a real one leaves its imaginary part.
    """
    if dtype is None:
        return x
    is_cut = jnp.iscomplexobj(x) and not dtype.is_complex and dtype is not torch.bool
    return (x.real if is_cut else x).astype(of_torch(dtype))


def as_floats(x: Any) -> Any:
    """Return integers as torch's default dtype, and other numbers as they are."""
    if isinstance(x, jax.Array) and not jnp.issubdtype(x.dtype, jnp.inexact):
        return x.astype(of_torch(torch.get_default_dtype()))
    return x


def as_counted(x: Any) -> Any:
    """Return integers as int64, in which torch adds and multiplies them."""
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.int64)


def together(x: Any, y: Any) -> tuple[Any, Any]:
    """Return two arrays or numbers in the dtype in which torch computes with them."""
    dtype = of_torch(torch.result_type(_stand_in(x), _stand_in(y)))
    return jnp.asarray(x, dtype), jnp.asarray(y, dtype)


def _stand_in(x: Any) -> Any:
    """Return a tensor without memory with the dtype and number of dimensions of an array."""
    if not isinstance(x, jax.Array):
        return x
    return torch.empty((1,) * x.ndim, dtype=getattr(torch, x.dtype.name), device="meta")
