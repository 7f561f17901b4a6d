"""Dispatch keys that rules need back, and those that they must not see.

The dispatcher runs ``__torch_dispatch__`` with the keys above Python switched off. Its own guard restores the outer state when
``__torch_dispatch__`` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import DispatchKey

set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded
CONJUGATE, NEGATIVE = DispatchKey.Conjugate, DispatchKey.Negative
VIEWS = DispatchKey.ADInplaceOrView

# Composite ops whose results the version counter key marks as views itself: what they are composed of must not have done so before.
NARROW, CHUNK = torch.ops.aten.narrow.default, torch.ops.aten.chunk.default


def reopen_keys(func: torch._ops.OpOverload) -> None:
    """Switch three keys on again for the rule of ``func``: lazy conjugate and negative bits (else kernels read unconjugated memory) and
    version counters shared between a tensor and its views."""
    set_excluded(CONJUGATE, False)
    set_excluded(NEGATIVE, False)
    set_excluded(VIEWS, func is NARROW or func is CHUNK)


def uncounted(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``run(*args, **kwargs)`` without version counters: for a write that is counted by the caller's own pass through the dispatcher."""
    set_excluded(VIEWS, True)
    try:
        return run(*args, **kwargs)
    finally:
        set_excluded(VIEWS, False)
