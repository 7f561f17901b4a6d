"""What tests of forward mode share: dual tensors, their tangents, and torch's own."""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad as oracle

from runtime import wrap
from runtime.autograd import forward_ad as fw

close = torch.testing.assert_close


def rand(*shape: int, seed: int = 0) -> Any:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dual(x: torch.Tensor, t: torch.Tensor) -> Any:
    return fw.make_dual(wrap(x), wrap(t))


def tangent(v: Any) -> Any:
    return fw.unpack_dual(v).tangent


def through_torch(f: Callable[..., Any], x: torch.Tensor, t: torch.Tensor) -> tuple[Any, Any]:
    with oracle.dual_level():
        p, d = oracle.unpack_dual(f(oracle.make_dual(x.clone(), t.clone())))
        return p.detach().clone(), None if d is None else d.detach().clone()
