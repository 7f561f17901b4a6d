"""Helpers of layer rules: the calling convention, checks of arguments, and where per-sample gradients are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..seam.levels import Value
from ..session.tensor import SESSION, unwrap
from .weight import ExpandedWeight

MIXTURE = (
    "Expanded Weights does not support a mixture of ExpandedWeight parameters and normal Parameters. "
    "Found a parameter that requires grad and is not an ExpandedWeight; make it one, or detach it."
)


def standard_kwargs(kwarg_names: Sequence[str], args: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Split ``args`` into positional and keyword arguments. Its last values belong to ``kwarg_names``."""
    n = len(args) - len(kwarg_names)
    return tuple(args[:n]), dict(zip(kwarg_names, args[n:], strict=True))


def forward_helper(func: Callable[..., Any], expanded_args: Sequence[Any], expanded_kwargs: dict[str, Any]) -> Any:
    """Check the arguments of a layer and run it on plain tensors."""
    check_input(func, expanded_args[0])
    check_batch_size(expanded_args, expanded_kwargs)
    return func(*map(plain, expanded_args), **{k: plain(a) for k, a in expanded_kwargs.items()})


def check_input(func: Callable[..., Any], x: object) -> None:
    """Raise unless the first argument of a layer is a tensor with a batch dimension."""
    name = getattr(func, "__name__", repr(func))
    if isinstance(x, ExpandedWeight):
        raise RuntimeError(f"Expanded Weights do not support inputs that are also ExpandedWeights. Input of {name} must be a Tensor")
    if not isinstance(x, torch.Tensor):
        raise RuntimeError(f"Expanded Weights requires a Tensor as the first input to get the batch dimension, got {type(x)} in {name}")
    if x.dim() == 0:
        raise RuntimeError(f"Expanded Weights requires a batch dimension but got an input of size 0 dimensions in {name}")
    if x.shape[0] == 0:
        raise RuntimeError(f"0 is not a valid batch size for Expanded Weights but got an input of shape {list(x.shape)} in {name}")


def check_batch_size(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise unless the batch size of every ExpandedWeight is that of the first argument."""
    for a in (*args, *kwargs.values()):
        if isinstance(a, ExpandedWeight):
            size = args[0].shape[0 if a.batch_first else 1]
            if not (size == a.batch_size or (a.allow_smaller_batches and size < a.batch_size)):
                raise RuntimeError(
                    f"Expected ExpandedWeights to have batch size matching input but got input batch size of {size} with "
                    f"ExpandedWeight of batch size {a.batch_size}"
                )


def plain(a: Any) -> Any:
    """The tensor without history that an argument holds. Any other argument is returned as it is."""
    if isinstance(a, ExpandedWeight):
        return plain(a.orig_weight)
    if isinstance(a, Value):
        if a._level is not SESSION:
            raise RuntimeError(f"Expanded Weights are used inside {a._level.what}; take per-sample gradients outside of it")
        return unwrap(a)
    return a.detach() if isinstance(a, torch.Tensor) else a


def set_grad_sample_if_exists(maybe_expanded_weight: object, per_sample_grad_fn: Callable[[Any], torch.Tensor]) -> None:
    """Add ``per_sample_grad_fn(plain weight)``, of shape (batch, *weight), to ``grad_sample`` of an ExpandedWeight's original.

    If the loss is the mean of the samples' losses, the gradients are multiplied by the batch size. So they belong to each sample's own
    loss.
    """
    unpacked = unpack_expanded_weight_or_tensor(maybe_expanded_weight)
    if not isinstance(maybe_expanded_weight, ExpandedWeight):
        return
    weight = maybe_expanded_weight.orig_weight
    grad = per_sample_grad_fn(unpacked)
    size = maybe_expanded_weight.batch_size
    if maybe_expanded_weight.loss_reduction == "mean":
        grad = grad * size
    if maybe_expanded_weight.allow_smaller_batches and grad.shape[0] < size:
        grad = torch.cat([grad, grad.new_zeros(size - grad.shape[0], *grad.shape[1:])])
    old = getattr(weight, "grad_sample", None)
    weight.grad_sample = grad if old is None else old + grad


def unpack_expanded_weight_or_tensor(maybe_expanded_weight: object, func: Callable[[Any], Any] = lambda x: x) -> Any:
    """``func`` of the original of an ExpandedWeight, or of a tensor that needs no grad. None for anything else.

    A tensor that requires grad is a ``RuntimeError``.
    """
    if isinstance(maybe_expanded_weight, ExpandedWeight):
        return func(maybe_expanded_weight.orig_weight)
    if not isinstance(maybe_expanded_weight, torch.Tensor):
        return None
    if maybe_expanded_weight.requires_grad:
        raise RuntimeError(MIXTURE)
    return func(maybe_expanded_weight)


def sum_over_all_but_batch_and_last_n(tensor: torch.Tensor, n_dims: int) -> torch.Tensor:
    """Sum over all dimensions but the first and the last ``n_dims``: (batch, *summed, *rest) -> (batch, *rest)."""
    dims = tuple(range(1, tensor.dim() - n_dims))
    return tensor.sum(dims) if dims else tensor
