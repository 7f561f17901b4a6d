"""``call_for_per_sample_grads``: a module whose parameters get per-sample gradients from the next backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn.utils.stateless import _functional_call  # the public name is torch.func's
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
    """``module`` as a function whose backward pass computes per-sample gradients, as ``torch.nn.utils._per_sample_grad`` has it.

    >>> model = torch.nn.Linear(2, 1)
    >>> call_for_per_sample_grads(model)(torch.ones(3, 2)).sum().backward()
    >>> model.weight.grad_sample.shape
    torch.Size([3, 1, 2])

    The result is ``module(*args)``. After ``backward`` of a loss of it, every parameter that requires grad has ``grad_sample``, of shape
    (B, *parameter): the gradients of each sample's own loss, whatever ``loss_reduction`` ("sum", "mean") combined them.

    ``batch_size``: found from the arguments if None. ``batch_first``: the batch is dimension 0 of the inputs, else 1. ``fallback``: run a
    function without a rule by ``vmap(vjp)``. A function of weights alone then takes the whole module through it, which needs a module
    without effects of its own. ``RuntimeError`` for other arguments, for batches of different sizes, and if ``grad_sample`` holds
    gradients already. ``UnhandledFunction`` names a function without a rule.
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
