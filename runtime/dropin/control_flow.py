"""Provide ``map`` and ``scan`` with the signatures of torch's control flow. A graph has one call
of them, as a graph of torch has.

    make_fx(lambda xs: map(torch.sin, xs))(torch.ones(3, 2))
    # one call of torch.ops.higher_order.map_impl

A program that looks for these calls, or that compiles a body once for any length, finds them under
the drop-in as well. Where nothing is traced, both are loops in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..aot.control_flow import operators

__all__ = ["map", "scan"]


def map(f: Callable[..., Any], xs: Any, *args: object) -> Any:
    """Return ``f(x, *args)`` for each ``x`` along the first dimension of the tensors in ``xs``,
    stacked."""
    return operators.map(f, xs, *args, unroll=False)


def scan(
    combine_fn: Callable[[Any, Any], tuple[object, object]],
    init: object,
    xs: object,
    *,
    dim: int = 0,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Run ``carry, y = combine_fn(carry, x)`` for each ``x`` along ``dim``. Return the last carry
    and the ``y``, stacked."""
    return operators.scan(combine_fn, init, xs, dim=dim, reverse=reverse, unroll=False)
