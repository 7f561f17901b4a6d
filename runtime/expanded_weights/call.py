"""Run a module so that the next backward pass computes per-sample gradients of its parameters:
``call_for_per_sample_grads``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from ..torch_private.pytrees import pytree
from .delivery import Delivery


def call_for_per_sample_grads(
    module: torch.nn.Module,
    *,
    batch_size: int | None = None,
    loss_reduction: str = "sum",
    batch_first: bool = True,
) -> Callable[..., Any]:
    """Return ``module`` as a function whose backward pass computes per-sample gradients. As in
    ``torch.nn.utils._per_sample_grad``.

    >>> model = torch.nn.Linear(2, 1)
    >>> call_for_per_sample_grads(model)(torch.ones(3, 2)).sum().backward()
    >>> model.weight.grad_sample.shape
    torch.Size([3, 1, 2])

    The function returns ``module(*args)``. After the backward pass of a loss, every parameter that
    the loss depends on has ``grad_sample``, of shape (B, *parameter). It holds the gradient of each
    sample's own loss. ``loss_reduction``: whether the loss is the "sum" or the "mean" of these.

    ``batch_size``: None for that of the arguments, which must then all be batches.
    ``batch_first``: the batch is dimension 0 of the arguments, else dimension 1. From there on the
    samples are followed through every op, as in :class:`runtime.per_sample.per_sample`.
    ``RuntimeError`` for other arguments, for batches of different sizes, where samples mix, and if
    ``grad_sample`` already holds gradients.
    """
    _check_arguments(module, batch_size, loss_reduction)

    @wraps(module.forward)
    def wrapper(*args: object, **kwargs: object) -> Any:
        """Call the module, and note its parameters for the next backward pass."""
        dim = 1
        if batch_first:
            dim = 0
        size = batch_size
        if size is None:
            size = _batch_size(args, kwargs, dim)
        # pytree does not look into data classes, so neither does `_batch_size`
        _check_fields(args, kwargs, dim, size, batch_size is not None)
        params = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        # the context ends before the backward pass, in which the delivery runs
        with Delivery(params, dim, loss_reduction, batch_size) as grads:
            grads.expect(_smaller(args, kwargs, dim, size))
            return module(*args, **kwargs)

    return wrapper


def _check_arguments(module: object, batch_size: object, loss_reduction: object) -> None:
    """Raise ``RuntimeError`` for wrong options, and if a parameter already has ``grad_sample``."""
    if not isinstance(module, torch.nn.Module):
        raise RuntimeError(f"Module passed must be nn.Module, got {type(module).__name__}")
    if not (batch_size is None or isinstance(batch_size, int)):
        raise RuntimeError(
            f"Batch size passed must be None or an integer, got {type(batch_size).__name__}"
        )
    if batch_size is not None and batch_size < 1:
        raise RuntimeError(f"Batch size must be positive, got {batch_size}")
    if loss_reduction not in ("sum", "mean"):
        raise RuntimeError(
            f"Expected loss_reduction argument to be sum or mean, got {loss_reduction}"
        )
    for name, parameter in module.named_parameters():
        if getattr(parameter, "grad_sample", None) is not None:
            raise RuntimeError(
                f"Expanded Weights accumulates: grad_sample of {name} would be incorrect for "
                "multiple calls. Set it to None first."
            )


def _is_packed(argument: object) -> bool:
    # a leaf, as a PackedSequence is a namedtuple of tensors that are no batches
    return isinstance(argument, PackedSequence)


def _tensors(arguments: Any, dim: int) -> list[torch.Tensor]:
    """Return the tensors that may be batches. A packed sequence has as many samples as sequences,
    so it is none."""
    tensors: list[torch.Tensor] = []
    for leaf in pytree.tree_leaves(arguments, is_leaf=_is_packed):
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
        else:
            tensors += _field_tensors(leaf)
    return [tensor for tensor in tensors if tensor.dim() > dim]


def _batch_size(args: tuple[object, ...], kwargs: dict[str, object], dim: int) -> int:
    """Return the size of the batch, which all tensors and packed sequences must agree on."""
    size: int | None = None
    for argument in pytree.tree_leaves((args, kwargs), is_leaf=_is_packed):
        if isinstance(argument, PackedSequence):
            # every sequence has a first time step
            count = int(argument.batch_sizes[0])
        # a tensor of fewer dimensions is no batch
        elif isinstance(argument, torch.Tensor) and argument.dim() > dim:
            count = argument.shape[dim]
        else:
            continue
        if size is not None and count != size:
            raise RuntimeError(
                "When computing batch size, found at least one input with batch size "
                f"{size} and one with batch size {count}. Say which it is with batch_size=..."
            )
        size = count
    if size is None:
        raise RuntimeError(
            "ExpandedWeights cannot compute the batch size from the inputs: none is a tensor "
            "in a known container. Pass it as call_for_per_sample_grads(module, batch_size=...)"
        )
    return size


def _smaller(args: tuple[object, ...], kwargs: dict[str, object], dim: int, size: int) -> int:
    """Return the size of the batch. As in torch, a batch may be smaller than what ``batch_size``
    says: the last one of an epoch."""
    sizes = {tensor.shape[dim] for tensor in _tensors((args, kwargs), dim)}
    if len(sizes) == 1 and max(sizes) < size:
        return sizes.pop()
    return size


def _field_tensors(argument: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in the fields of a data class, and of those in its fields."""
    if not is_dataclass(argument) or isinstance(argument, type):
        return
    for field in fields(argument):
        value = getattr(argument, field.name)
        if isinstance(value, torch.Tensor):
            yield value
        else:
            yield from _field_tensors(value)


def _check_fields(
    args: tuple[object, ...], kwargs: dict[str, object], dim: int, size: int, smaller: bool
) -> None:
    """Raise unless the tensors in data classes have the size of the batch.

    ``smaller``: whether they may also have fewer samples.
    """
    for leaf in pytree.tree_leaves((args, kwargs)):
        for tensor in _field_tensors(leaf):
            count = size  # a tensor without that dimension is no batch
            if tensor.dim() > dim:
                count = tensor.shape[dim]
            if count != size and not (smaller and count < size):
                raise RuntimeError(
                    "Expected ExpandedWeights to have batch size matching input but got input "
                    f"batch size of {count} with ExpandedWeight of batch size {size}"
                )
