"""The functional form of ``bernoulli_`` draws in the order of its target's memory.

    x.t().bernoulli_(0.5)       # the first number drawn is for x[0, 0], the second one for x[0, 1]

``bernoulli(x.t(), 0.5)`` returns a contiguous tensor and draws in the order of that. Other draws have functional forms that keep the
strides of their argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

aten = torch.ops.aten
_BERNOULLI = aten.bernoulli.p
_RANDOM = getattr(aten.random, "from")


def in_order_of_memory(functional: Any) -> Callable[..., Any]:
    """``functional``, or for ``bernoulli`` a function that draws as ``bernoulli_`` of its first argument does."""
    return _bernoulli if functional is _BERNOULLI else _random_from if functional is _RANDOM else functional


def _random_from(target: torch.Tensor, low: int, high: int | None, *, generator: Any = None) -> torch.Tensor:
    """``random.from`` by ``random.to``: Python source cannot name an overload that is called ``from``, and a graph is printed as source."""
    drawn: torch.Tensor
    if high is None:
        drawn = _RANDOM(target, low, high, generator=generator)
        return drawn
    drawn = aten.random.to(target, high - low, generator=generator)
    return drawn + low if low else drawn


def _bernoulli(target: torch.Tensor, p: float, *, generator: Any = None) -> torch.Tensor:
    order = _order(target) if target.device.type != "cpu" or _follows_memory() else list(range(target.dim()))
    out: torch.Tensor
    if order == sorted(order):
        out = _BERNOULLI(target, p, generator=generator)
    else:
        out = _BERNOULLI(target.permute(order), p, generator=generator).permute([order.index(d) for d in range(len(order))])
    return out


def filled(func: Any, targets: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any] | None:
    """What ``func``, an op with ``out=``, fills ``targets`` with if that depends on their strides. None if it does not."""
    if func is not aten.bernoulli.out or targets[0].shape != args[0].shape:
        return None
    return [aten.bernoulli.Tensor(targets[0], *args, **kwargs)]


def _order(t: torch.Tensor) -> list[int]:
    """The dimensions of ``t`` from the largest stride to the smallest. Those of size 1 have no place in memory and stay where they are."""
    wide = [d for d in range(t.dim()) if t.shape[d] != 1]
    ordered = iter(sorted(wide, key=t.stride().__getitem__, reverse=True))
    return [next(ordered) if d in wide else d for d in range(t.dim())]


@cache
def _follows_memory() -> bool:
    """Whether ``bernoulli_`` on the CPU draws in the order of memory. It does not on processors for which torch calls MKL."""
    with _disable_current_modes():
        plain, turned = torch.zeros(8, 16), torch.zeros(8, 16)
        plain.bernoulli_(0.5, generator=torch.Generator().manual_seed(0))
        turned.t().bernoulli_(0.5, generator=torch.Generator().manual_seed(0))
        return torch.equal(plain, turned)
