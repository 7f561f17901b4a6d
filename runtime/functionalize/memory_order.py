"""Follow the order of a tensor's dimensions in memory: in draws, and in the strides of elementwise
results.

The functional form of ``bernoulli_`` draws in the order of its target's memory.

    x.t().bernoulli_(0.5)       # the first number drawn is for x[0, 0], the second one for x[0, 1]

``bernoulli(x.t(), 0.5)`` returns a contiguous tensor and draws in the order of that. Other draws
have functional forms that keep the strides of their argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from ..seam.call_types import Arguments
from ..torch_private.dispatcher import OpOverload
from ..torch_private.mode_stacks import without_modes
from ..torch_private.native_functions import neg_view
from .overlap import shows_twice

aten = torch.ops.aten
_dense = aten.is_non_overlapping_and_dense
_RRELU = aten.rrelu_with_noise_functional.default
_BERNOULLI = aten.bernoulli.p
_RANDOM = getattr(aten.random, "from")


def in_order_of_memory(functional: OpOverload) -> Callable[..., object]:
    """Return ``functional``, or another function that draws as the op does which writes, and whose
    results have the same strides."""
    others: dict[object, Callable[..., object]] = {
        _BERNOULLI: _bernoulli,
        _RANDOM: _random_from,
        _RRELU: _rrelu,
    }
    run: Callable[..., object] = others.get(functional, functional)
    return run


def _rrelu(*args: object, **kwargs: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Run ``rrelu_with_noise``, with a contiguous result as that op has."""
    out, noise = _RRELU(*args, **kwargs)
    return out.contiguous(), noise


def _random_from(
    target: torch.Tensor, low: int, high: int | None, *, generator: object = None
) -> torch.Tensor:
    """Run ``random.from`` by ``random.to``: Python source cannot name an overload that is called
    ``from``, and a graph is printed as source."""
    drawn: torch.Tensor
    if high is None:
        drawn = _RANDOM(target, low, high, generator=generator)
        return drawn
    drawn = aten.random.to(target, high - low, generator=generator)
    if low:
        return drawn + low
    return drawn


def _bernoulli(target: torch.Tensor, p: float, *, generator: object = None) -> torch.Tensor:
    """Run ``bernoulli`` on the target with its dimensions in the order of memory."""
    # with MKL the CPU draws in the order of indices; all else draws in that of memory
    order = list(range(target.dim()))
    if target.device.type != "cpu" or _follows_memory():
        order = _order(target)
    out: torch.Tensor
    if order == sorted(order):
        out = _BERNOULLI(target, p, generator=generator)
    else:
        back = list(map(order.index, range(len(order))))
        out = _BERNOULLI(target.permute(order), p, generator=generator).permute(back)
    return out


def draws_in_turn(func: object, target: torch.Tensor) -> bool:
    """Return whether ``func`` draws other numbers for ``target``, which has gaps, than for a copy
    of it. On the CPU ``normal_`` draws 16 and more numbers at once, where there are no gaps between
    them."""
    if func is not aten.normal_.default or target.device.type != "cpu":
        return False
    return not _dense(target) and target.numel() >= 16


def filled(
    func: object, targets: Sequence[torch.Tensor], args: Arguments, kwargs: dict[str, object]
) -> list[Any] | None:
    """Return what ``func``, an op with ``out=``, fills ``targets`` with if that depends on their
    strides. None if it does not."""
    if func is not aten.bernoulli.out or targets[0].shape != args[0].shape:
        return None
    return [aten.bernoulli.Tensor(targets[0], *args, **kwargs)]


def laid_out_as(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return ``new`` with the strides of ``old``, since a write leaves those.

    The functional form of an op may return others: those of ``x.t().bernoulli_()`` and
    ``x[:, ::2].mul_(2)`` do. Later draws, views and strides of results depend on them. What shows
    an element several times has no such strides of its own. A write also leaves what is conjugated
    or negated lazily.
    """
    # First the lazy bits, then the strides. To conjugate twice, once in memory and once lazily,
    # leaves the numbers as they are.
    lazily = old.is_conj(), old.is_neg()
    if (new.is_conj(), new.is_neg()) != lazily:
        new = _make_lazy(_make_lazy(new, *lazily).resolve_conj().resolve_neg(), *lazily)
    if old.layout is not torch.strided or new.layout is not torch.strided:
        return new
    if new.stride() == old.stride():
        return new
    # a dimension of size 1 has no stride that matters
    strides = zip(new.stride(), old.stride(), old.shape, strict=True)
    differ = any(step != old_step for step, old_step, size in strides if size != 1)
    if differ and not shows_twice(old):
        # what `copy` returns is not lazy
        return _make_lazy(
            aten.copy.default(_make_lazy(old, *lazily), _make_lazy(new, *lazily)), *lazily
        )
    return new


def _make_lazy(t: torch.Tensor, conjugated: bool, negated: bool) -> torch.Tensor:
    """Return ``t`` as a view that is conjugated and negated lazily, or no more so if it is
    already."""
    if conjugated:
        t = torch.conj(t)
    if negated:
        t = neg_view(t)
    return t


def _order(tensor: torch.Tensor) -> list[int]:
    """Return the dimensions of ``tensor`` from the largest stride to the smallest. Those of size 1
    have no place in memory and stay where they are."""
    wide = [dim for dim in range(tensor.dim()) if tensor.shape[dim] != 1]
    ordered = iter(sorted(wide, key=tensor.stride().__getitem__, reverse=True))
    return [next(ordered) if dim in wide else dim for dim in range(tensor.dim())]


@cache
def _follows_memory() -> bool:
    """Return whether ``bernoulli_`` on the CPU draws in the order of memory. It does not on
    processors for which torch calls MKL."""
    # asked of the kernel itself, which decides by the processor
    with without_modes():
        plain, transposed = torch.zeros(8, 16), torch.zeros(8, 16)
        plain.bernoulli_(0.5, generator=torch.Generator().manual_seed(0))
        transposed.t().bernoulli_(0.5, generator=torch.Generator().manual_seed(0))
        return torch.equal(plain, transposed)
