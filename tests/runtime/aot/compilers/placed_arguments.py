"""The arguments that the code of a compiled program writes to while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from runtime import aot
from runtime.aot import nop


def placed(f: Callable[..., Any], *args: Any) -> dict[int, int]:
    """The arguments that a program writes to while it runs; it must do to them what ``f`` does."""
    found: list[dict[int, int]] = []

    def keep(module: Any, inputs: list[Any]) -> Any:
        run: Any = nop(module, inputs)
        found.append(dict(run.placed))
        return run

    mine, theirs = ([a.clone() if isinstance(a, Tensor) else a for a in args] for _ in range(2))
    compiled = aot.aot_function(f, keep)
    for _ in range(2):
        before = [(t._version, t.data_ptr()) for t in mine if isinstance(t, Tensor)]
        ours, expected = compiled(*mine), f(*theirs)
        for a, b in zip(
            [*tensors(ours), *tensors(mine)],
            [*tensors(expected), *tensors(theirs)],
            strict=True,
        ):
            assert torch.equal(a, b) and a.stride() == b.stride()
        assert [a._version for a in tensors(mine)] == [b._version for b in tensors(theirs)]
        assert [p for _, p in before] == [t.data_ptr() for t in tensors(mine)]
    assert len(found) == 1
    return found[0]


def tensors(tree: Any) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, Tensor)]
