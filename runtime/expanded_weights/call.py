"""``call_for_per_sample_grads``: runs a module so that the next backward pass computes per-sample gradients of its parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn.utils.stateless import _functional_call  # the public one is torch.func's
from torch.utils import _pytree as pytree

from ..session.leaf import as_leaf
from .fallback import by_sample
from .weight import ExpandedWeight, UnhandledFunction


def call_for_per_sample_grads(
    module: torch.nn.Module,
    *,
    batch_size: int | None = None,
    loss_reduction: str = "sum",
    batch_first: bool = True,
    fallback: bool = False,
) -> Callable[..., Any]:
    """``module`` as a function whose backward pass computes per-sample gradients. As in ``torch.nn.utils._per_sample_grad``.

    >>> model = torch.nn.Linear(2, 1)
    >>> call_for_per_sample_grads(model)(torch.ones(3, 2)).sum().backward()
    >>> model.weight.grad_sample.shape
    torch.Size([3, 1, 2])

    The function returns ``module(*args)``. After the backward pass of a loss, every parameter that requires grad has ``grad_sample``, of
    shape (B, *parameter). It holds the gradient of each sample's own loss. ``loss_reduction``: whether the loss is the "sum" or the "mean"
    of these.

    ``batch_size``: found from the arguments if None. ``batch_first``: the batch is dimension 0 of the inputs, else dimension 1.
    ``fallback``: run a function that has no rule by ``vmap(vjp)``. If such a function has no batched argument, the whole module runs by
    ``vmap(vjp)``, so the module must have no side effects. ``RuntimeError`` for other arguments, for batches of different sizes, and if
    ``grad_sample`` already holds gradients. ``UnhandledFunction`` names a function without a rule.
    """
    _check_arguments(module, batch_size, loss_reduction)

    @wraps(module.forward)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        size = _batch_size(args, kwargs, 0 if batch_first else 1) if batch_size is None else batch_size
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: as_leaf(t) if t.requires_grad else t, (args, kwargs))
        params: dict[str, Any] = {}
        for name, p in module.named_parameters():
            params[name] = p
            if p.requires_grad:
                params[name] = weight = ExpandedWeight(p, size, loss_reduction, fallback=by_sample if fallback else None)
                weight.batch_first = batch_first
                weight.allow_smaller_batches = batch_size is not None

        def run(params: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return _functional_call(module, params, args, kwargs)

        try:
            return run(params, args, kwargs)
        except UnhandledFunction:
            if not fallback:
                raise
            return by_sample(run, (params, args, kwargs), {})

    return wrapper


def _check_arguments(module: object, batch_size: object, loss_reduction: object) -> None:
    if not isinstance(module, torch.nn.Module):
        raise RuntimeError(f"Module passed must be nn.Module, got {type(module).__name__}")
    if not (batch_size is None or isinstance(batch_size, int)):
        raise RuntimeError(f"Batch size passed must be None or an integer, got {type(batch_size).__name__}")
    if batch_size is not None and batch_size < 1:
        raise RuntimeError(f"Batch size must be positive, got {batch_size}")
    if loss_reduction not in ("sum", "mean"):
        raise RuntimeError(f"Expected loss_reduction argument to be sum or mean, got {loss_reduction}")
    for name, p in module.named_parameters():
        if getattr(p, "grad_sample", None) is not None:
            raise RuntimeError(
                f"Expanded Weights accumulates: grad_sample of {name} would be incorrect for multiple calls. Set it to None first."
            )


def _batch_size(args: tuple[Any, ...], kwargs: dict[str, Any], dim: int) -> int:
    found: int | None = None
    for t in pytree.tree_leaves((args, kwargs)):
        if isinstance(t, torch.Tensor) and t.dim() > dim:
            if found is not None and t.shape[dim] != found:
                raise RuntimeError(
                    "When computing batch size, found at least one input with batch size "
                    f"{found} and one with batch size {t.shape[dim]}. Say which it is with batch_size=..."
                )
            found = t.shape[dim]
    if found is None:
        raise RuntimeError(
            "ExpandedWeights cannot compute the batch size from the inputs: none is a tensor in a known container. "
            "Pass it as call_for_per_sample_grads(module, batch_size=...)"
        )
    return found
