"""The arguments that the code of a compiled program writes to while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from runtime import aot
from runtime.aot import nop


def placed(f: Callable[..., Any], *args: Any) -> dict[int, int]:
    """Return the arguments that a program writes to while it runs, with the line of the write.

    The compiled program must do to its arguments what ``f`` does, in two calls.
    """
    found: list[dict[int, int]] = []

    def keep(module: Any, inputs: list[Any]) -> Any:
        run: Any = nop(module, inputs)
        found.append(dict(run.placed))
        return run

    mine, theirs = copies(args), copies(args)
    compiled = aot.aot_function(f, keep)
    for _ in range(2):
        compare_calls(compiled, mine, f, theirs)
    assert len(found) == 1
    return found[0]


def copies(args: tuple[Any, ...]) -> list[Any]:
    return [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]


def compare_calls(
    compiled: Callable[..., Any], mine: list[Any], f: Callable[..., Any], theirs: list[Any]
) -> None:
    """Raise ``AssertionError`` if results, arguments or versions of the two calls differ."""
    memory = [t.data_ptr() for t in tensors(mine)]
    ours, expected = compiled(*mine), f(*theirs)
    pairs = zip(tensors((ours, mine)), tensors((expected, theirs)), strict=True)
    for a, b in pairs:
        assert torch.equal(a, b) and a.stride() == b.stride()
    assert [t._version for t in tensors(mine)] == [t._version for t in tensors(theirs)]
    assert [t.data_ptr() for t in tensors(mine)] == memory


def tensors(tree: Any) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, Tensor)]
