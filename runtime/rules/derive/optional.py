"""Compute with values of a formula that may be absent.

A formula gets None for a cotangent or tangent that is zero, and for an optional argument that the
caller left out. For example, the tangent of a matrix product, of which either factor may have
none::

    add_present(
        map_optional(lambda x_t: x_t @ y, x_t),
        map_optional(lambda y_t: x @ y_t, y_t),
    )
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def map_optional(f: Callable[[Any], T], x: object) -> T | None:
    """Return ``f(x)``, or None if ``x`` is None."""
    if x is None:
        return None
    return f(x)


def add_present(*terms: object) -> Any:
    """Return the sum of the terms that are not None. None if all are."""
    total: Any = None
    for term in terms:
        if total is None:
            total = term
        elif term is not None:
            total = total + term
    return total


def multiply_present(tensor: Any, other: object) -> Any:
    """Return the product of two tensors, of which None is zero."""
    if tensor is None or other is None:
        return None
    return tensor * other


def apply_weight(t: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Return ``t * weight``, or ``t`` without a weight."""
    if weight is None:
        return t
    return t * weight


def zeros_if_none(t: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """Return ``t``, or zeros like another tensor in place of None."""
    if t is None:
        return torch.zeros_like(like)
    return t
