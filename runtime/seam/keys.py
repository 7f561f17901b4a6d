"""Switches dispatch keys on or off before a level runs a rule.

The dispatcher runs ``__torch_dispatch__`` with the keys above Python switched off. Its own guard
restores the outer state when ``__torch_dispatch__`` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..torch_private.dispatcher import DispatchKey, OpOverload, set_excluded

CONJUGATE, NEGATIVE = DispatchKey.Conjugate, DispatchKey.Negative
ZERO = DispatchKey.ZeroTensor
VIEWS = DispatchKey.ADInplaceOrView

# Composite ops whose results the key `ADInplaceOrView` marks as views itself. The ops in them must
# not have marked the results before.
NARROW, CHUNK = torch.ops.aten.narrow.default, torch.ops.aten.chunk.default


def reopen_keys(func: OpOverload) -> None:
    """Switch four keys on again for the rule of ``func``.

    Two handle lazy conjugate and negative bits: without them kernels read unconjugated memory. One
    handles zeros without memory, such as tangents in the forward mode of torch: without it kernels
    read where nothing is. The last lets a tensor and its views share a version counter. It stays
    off for ``narrow`` and ``chunk``.
    """
    set_excluded(CONJUGATE, False)
    set_excluded(NEGATIVE, False)
    set_excluded(ZERO, False)
    set_excluded(VIEWS, func is NARROW or func is CHUNK)


def uncounted(run: Callable[..., object], *args: object, **kwargs: object) -> Any:
    """Call ``run(*args, **kwargs)`` without counting versions. For a write that the dispatcher
    counts when the caller returns to it."""
    set_excluded(VIEWS, True)
    try:
        return run(*args, **kwargs)
    finally:
        set_excluded(VIEWS, False)
