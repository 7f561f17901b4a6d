"""What Inductor makes of each op before it writes code: other ops, by a function of Python.

celu(x, alpha)   ->   where(x > 0, x, expm1(x / alpha) * alpha)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch._inductor.decomposition import select_decomp_table
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Decomposed"]


@cache
def _table() -> Mapping[Any, Callable[..., Any]]:
    """Return Inductor's function for each overload that it takes apart."""
    return select_decomp_table()


class Decomposed(TorchDispatchMode):
    """Run each op by Inductor's decomposition, at once and without a compiler.

    An op without a decomposition runs its kernel, and so does one whose decomposition declines.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return what the decomposition of `func` gives, which may have decompositions itself."""
        options = kwargs or {}
        decompose = _table().get(func)
        if decompose is None:
            return func(*args, **options)
        with self:
            result = decompose(*args, **options)
        if result is NotImplemented:
            return func(*args, **options)
        return result
