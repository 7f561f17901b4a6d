"""A write refuses a result whose dtype does not fit, and memory that it shares with an argument, as
the kernel does.

    torch.zeros(3, dtype=torch.int64).add_(1.5)        # result type Float can't be cast to the
                                                       # desired output type Long
    torch.cat([x, y], out=y)                           # some elements of the input and the output
                                                       # are at one place of memory

The functional form of the op has no tensor to write to, so that it cannot ask. Ops have different
rules: a pointwise op converts float64 to float32, a matrix product does not; a sum may be written
to one of its terms, a concatenation not. So the op itself is asked, on zeros."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .overlap import shows_twice

_OF_MEMORY = ("unsupported operation",)
_OF_DTYPES = ("dtype", "scalar type", "out type", "can't be cast", "tensor out")


def refuse_unfit(
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    targets: Sequence[Any],
    results: Sequence[Any],
) -> None:
    """Raise the kernel's error if ``func`` cannot write ``results`` to ``targets`` because of their
    dtypes. Lists of tensors may be among both."""
    pairs = zip(pytree.tree_leaves(list(targets)), pytree.tree_leaves(list(results)), strict=False)
    if all(t is None or r is None or t.dtype is r.dtype for t, r in pairs):
        return
    with torch._C._DisableTorchDispatch():
        plain, named = pytree.tree_map_only(torch.Tensor, _zeros, (list(args), kwargs))
        _ask(func, plain, named, _OF_DTYPES)


def refuse_shared(
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    targets: Sequence[Any],
    memory: Callable[[Any], Any],
) -> None:
    """Raise the kernel's error if ``func`` cannot write to ``targets`` because of the places of
    memory that they share with one another or with other arguments. ``memory``: what the aliases of
    a tensor have in common, or None."""
    given = [t for t in pytree.tree_leaves((list(args), kwargs)) if isinstance(t, torch.Tensor)]
    if any(t.layout is not torch.strided for t in given):
        return
    of_given, written = list(map(memory, given)), list(map(memory, targets))
    apart = all(m is None or sum(m is other for other in of_given) < 2 for m in written)
    if None in [
        size for t in given for size in _known((*t.shape, *t.stride(), t.storage_offset()))
    ]:
        return  # a size that depends on values
    flat: dict[Any, torch.Tensor] = {}
    with torch._C._DisableTorchDispatch():
        if apart and not any(
            shows_twice(torch.empty_strided(_known(t.shape), _known(t.stride()), device="meta"))
            for t in targets
        ):
            return
        for t, m in zip(given, of_given, strict=True):
            key = (id(t if m is None else m), t.dtype)
            if key not in flat or len(flat[key]) < _reach(t):
                flat[key] = torch.zeros(_reach(t), dtype=t.dtype, device=t.device)

        def placed(t: torch.Tensor) -> torch.Tensor:
            m = memory(t)
            return flat[id(t if m is None else m), t.dtype].as_strided(
                _known(t.shape), _known(t.stride()), _known([t.storage_offset()])[0]
            )

        plain, named = pytree.tree_map_only(torch.Tensor, placed, (list(args), kwargs))
        _ask(func, plain, named, _OF_MEMORY)


def _ask(func: Any, args: Sequence[Any], kwargs: dict[str, Any], about: tuple[str, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the program's own call warns
        try:
            func(*args, **kwargs)
        except (RuntimeError, TypeError) as error:  # zeros may be refused as values, too
            if any(text in str(error) for text in about):
                raise


def _zeros(t: torch.Tensor) -> torch.Tensor:
    return torch.zeros(_known(t.shape), dtype=t.dtype, device=t.device)


def _known(sizes: Sequence[Any]) -> list[int]:
    """``sizes`` as they are in the arguments of the capture, without a guard."""
    return [s if isinstance(s, int) else s.node.hint for s in sizes]


def _reach(t: torch.Tensor) -> int:
    """How many elements of its memory ``t`` spans."""
    sizes, strides, (offset,) = _known(t.shape), _known(t.stride()), _known([t.storage_offset()])
    return offset + (
        1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) if all(sizes) else 0
    )
