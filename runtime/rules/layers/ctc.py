"""Register connectionist temporal classification. As in torch, first derivatives only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel
from ..derive import batch_rules as batch
from ..record import asking, overload, register

_ARGUMENTS = (
    "targets",
    "input_lengths",
    "target_lengths",
    "result0",
    "result1",
    "blank",
    "zero_infinity",
)


def _contract(t: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """Return the sum over time and classes of (T, N, C) or (T, C)."""
    if t.dim() == 3:
        return (t * local).sum((0, 2))
    return (t * local).sum((0, 1))


def _log_probs(t: torch.Tensor, batched: object, size: int) -> torch.Tensor:
    """Return physical log-probabilities of (T, N, C) or (T, C) as (T, B·N, C)."""
    t = batch.expand(t, batched, size).movedim(0, 1)
    if t.dim() == 4:
        return t.flatten(1, 2)
    return t


def _sequences(t: torch.Tensor, batched: object, size: int, alone: bool) -> torch.Tensor:
    """Return physical (N, …) as (B·N, …). ``alone``: an element is one sequence, without N."""
    t = batch.expand(t, batched, size)
    if alone:
        return t
    return t.flatten(0, 1)


def _lengths(t: object, batched: object, size: int) -> object:
    if isinstance(t, (list, tuple)):
        return list(t) * size
    return batch.expand(t, batched, size).reshape(-1)


def _forward_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: object
) -> object:
    """Run the loss on a batch, as one of more sequences."""
    x, targets, inputs, lengths, *rest = args
    # one sequence without a dimension of sequences: the batch becomes that dimension
    alone = x.dim() - batched[0] == 2
    loss, alpha = func(
        _log_probs(x, batched[0], size),
        _sequences(targets, batched[1], size, alone),
        _lengths(inputs, batched[2], size),
        _lengths(lengths, batched[3], size),
        *rest,
    )
    if alone:
        return loss, alpha
    return loss.unflatten(0, (size, -1)), alpha.unflatten(0, (size, -1))


def _backward_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: object
) -> object:
    """Run the backward op on a batch, as one of more sequences."""
    g, x, targets, inputs, lengths, loss, alpha, *rest = args
    # one sequence without a dimension of sequences: the batch becomes that dimension
    alone = x.dim() - batched[1] == 2
    out = func(
        _sequences(g, batched[0], size, alone),
        _log_probs(x, batched[1], size),
        _sequences(targets, batched[2], size, alone),
        _lengths(inputs, batched[3], size),
        _lengths(lengths, batched[4], size),
        _sequences(loss, batched[5], size, alone),
        _sequences(alpha, batched[6], size, alone),
        *rest,
    )
    if not alone:
        out = out.unflatten(1, (size, -1))
    return out.movedim(1, 0)


def _abstract(
    log_probs: torch.Tensor, target_lengths: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses (batch) and the logarithms of alpha (batch, time, labels with a blank
    around each)."""
    time, batch, _ = log_probs.shape
    return log_probs.new_empty(batch), log_probs.new_empty(
        (batch, time, 2 * max(target_lengths, default=0) + 1)
    )


for _suffix in ("", ".Tensor"):
    _op = overload(f"_ctc_loss_backward{_suffix}")

    # the defaults bind the op of this turn of the loop
    def _vjp(g: object, log_probs: object, *rest: object, op: Any = _op) -> object:
        return op(g, log_probs, *rest)

    def _jvp(t: torch.Tensor, log_probs: object, *rest: Any, op: Any = _op) -> object:
        # A cotangent of ones gives the gradient of each loss. Its product with the tangent is
        # summed. `rest` are `_ARGUMENTS`, of which number 3 are the losses.
        return _contract(t, op(torch.ones_like(rest[3]), log_probs, *rest)), None

    def _transpose(
        g: torch.Tensor, grad: torch.Tensor, *rest: object, op: Callable[..., torch.Tensor] = _op
    ) -> object:
        # The op multiplies the gradient of each loss by one number of `grad`.
        return _contract(g, op(torch.ones_like(grad), *rest))

    register(
        f"_ctc_loss{_suffix}",
        vjp={"log_probs": asking("g", "log_probs", *_ARGUMENTS)(_vjp)},
        jvp=asking("log_probs_t", "log_probs", *_ARGUMENTS)(_jvp),
        batch=_forward_batch,
        nondiff=(1,),
        # A tensor of target lengths does not tell the longest one, and so not the width of alpha.
        abstract=None if _suffix else _abstract,
        cost="high",
        family="loss",
    )
    _names = (
        "targets",
        "input_lengths",
        "target_lengths",
        "neg_log_likelihood",
        "log_alpha",
        "blank",
        "zero_infinity",
    )
    register(
        f"_ctc_loss_backward{_suffix}",
        # the loss and log_alpha get no gradient, as both are functions of the log-probabilities
        vjp={
            "grad": asking("g", "grad", "log_probs", *_names)(_transpose),
            ("neg_log_likelihood", "log_alpha"): lambda: (None, None),
        },
        batch=_backward_batch,
        abstract=lambda log_probs: torch.empty_like(log_probs),
        cost="high",
        family="loss",
    )
