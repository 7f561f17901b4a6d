"""What the tests of the boundary share: a program compiled, beside itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from runtime.aot import aot_function, nop


def compiled(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return aot_function(f, fw_compiler=nop, bw_compiler=nop, **options)


def both(f: Callable[..., Any], program: Callable[[Callable[..., Any]], Any]) -> tuple[Any, Any]:
    """What ``program`` gives with ``f``, and with ``f`` compiled."""
    return program(f), program(compiled(f))


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a.detach(), b.detach())
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)
