"""Helpers of users' rules, by the names of torch: the calling convention, checks of arguments,
where gradients are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..seam.levels import Value
from ..session.tensor import SESSION, unwrap
from .delivery import add_to_grad_sample
from .weight import ExpandedWeight, check_batch_size, check_input, unpack_expanded_weight_or_tensor


def standard_kwargs(
    kwarg_names: Sequence[str], args: Sequence[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Split ``args`` into positional and keyword arguments. Its last values belong
    to ``kwarg_names``."""
    n = len(args) - len(kwarg_names)
    return tuple(args[:n]), dict(zip(kwarg_names, args[n:], strict=True))


def forward_helper(
    func: Callable[..., Any], expanded_args: Sequence[Any], expanded_kwargs: dict[str, Any]
) -> Any:
    """Check the arguments of a layer and run it on plain tensors."""
    check_input(func, expanded_args[0])
    check_batch_size(expanded_args, expanded_kwargs)
    return func(*map(plain, expanded_args), **{k: plain(a) for k, a in expanded_kwargs.items()})


def plain(a: Any) -> Any:
    """The tensor without history that an argument holds. Any other argument is
    returned as it is."""
    if isinstance(a, ExpandedWeight):
        return plain(a.orig_weight)
    if isinstance(a, Value):
        if a._level is not SESSION:
            raise RuntimeError(
                f"Expanded Weights are used inside {a._level.what}; "
                "take per-sample gradients outside of it"
            )
        return unwrap(a)
    return a.detach() if isinstance(a, torch.Tensor) else a


def set_grad_sample_if_exists(
    maybe_expanded_weight: object, per_sample_grad_fn: Callable[[Any], torch.Tensor]
) -> None:
    """Add ``per_sample_grad_fn(plain weight)``, of shape (batch, *weight), to ``grad_sample`` of an
    ExpandedWeight's original.

    If the loss is the mean of the samples' losses, the gradients are multiplied by the batch size.
    So they belong to each sample's own loss.
    """
    unpacked = unpack_expanded_weight_or_tensor(maybe_expanded_weight)
    if not isinstance(maybe_expanded_weight, ExpandedWeight):
        return
    weight = maybe_expanded_weight.orig_weight
    grad = per_sample_grad_fn(unpacked)
    if maybe_expanded_weight.loss_reduction == "mean":
        grad = grad * maybe_expanded_weight.batch_size
    add_to_grad_sample(weight, grad)


def sum_over_all_but_batch_and_last_n(tensor: torch.Tensor, n_dims: int) -> torch.Tensor:
    """Sum over all dimensions but the first and the last ``n_dims``: (batch, *summed,
    *rest) -> (batch, *rest)."""
    dims = tuple(range(1, tensor.dim() - n_dims))
    return tensor.sum(dims) if dims else tensor
