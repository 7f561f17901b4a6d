"""A write refuses a result whose dtype does not fit, as the kernel does.

    torch.zeros(3, dtype=torch.int64).add_(1.5)        # result type Float can't be cast to the desired output type Long

The functional form of the op has no tensor to write to, so that it cannot ask. Ops have different rules: a pointwise op converts float64
to float32, a matrix product does not. So the op itself is asked, on zeros.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

_OF_DTYPES = ("dtype", "scalar type", "out type", "can't be cast", "tensor out")


def refuse_unfit(func: Any, args: Sequence[Any], kwargs: dict[str, Any], targets: Sequence[Any], results: Sequence[Any]) -> None:
    """Raise the kernel's error if ``func`` cannot write ``results`` to ``targets`` because of their dtypes. Lists of tensors may be among
    both."""
    pairs = zip(pytree.tree_leaves(list(targets)), pytree.tree_leaves(list(results)), strict=False)
    if all(t is None or r is None or t.dtype is r.dtype for t, r in pairs):
        return
    with torch._C._DisableTorchDispatch():
        plain, named = pytree.tree_map_only(torch.Tensor, _zeros, (list(args), kwargs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the program's own call warns
            try:
                func(*plain, **named)
            except (RuntimeError, TypeError) as error:  # zeros may be refused as values, too
                if any(text in str(error) for text in _OF_DTYPES):
                    raise


def _zeros(t: torch.Tensor) -> torch.Tensor:
    sizes = [s if isinstance(s, int) else s.node.hint for s in t.shape]
    return torch.zeros(sizes, dtype=t.dtype, device=t.device)
