"""Batches of control flow: functions on all elements of a batch, and values that elements take
which do not run them.

    cond(x > 0, torch.sqrt, torch.neg, (x,))        x: a batch [4, -1]

Both branches run on the whole batch. The element -1 does not take ``sqrt``, so ``sqrt`` gets
another element's 4 in its place. On -1 it would give a NaN, whose gradient would reach what the
elements share, and a loop might never stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...autograd.function_rules import VmapInfo
from ...func.vmap import vmap
from .branches import Branch, draws
from .torch_operators import Tensors, run, transformable


def batched(
    branch: Branch,
    info: VmapInfo,
    in_dims: Sequence[int | None],
    out_dims: Sequence[int | None] | None = None,
) -> Callable[..., Any]:
    """``branch`` on a batch. Its results are batches along dimension 0, or as ``out_dims`` says."""
    outs = tuple(out_dims) if out_dims is not None else (0,) * len(branch.results())

    def on_all(*args: torch.Tensor) -> Tensors:
        if any(d is not None for d in in_dims):
            found = vmap(
                transformable(branch.module),
                in_dims=tuple(in_dims),
                out_dims=outs,
                randomness=info.randomness,
            )(*args)
        elif draws(branch):
            count = torch.empty(info.batch_size)
            module = transformable(branch.module)
            found = vmap(lambda _: module(*args), out_dims=outs, randomness=info.randomness)(count)
        else:
            plain = run(branch, args)
            found = tuple(
                r if d is None else r.expand(info.batch_size, *r.shape)
                for r, d in zip(plain, outs, strict=True)
            )
        return found  # type: ignore[no-any-return]

    return on_all


def of_active_lanes(
    active: torch.Tensor, operands: Sequence[Any], dims: Sequence[int | None]
) -> list[Any]:
    """``operands`` as batches along dimension 0, in which each element that is not ``active`` has
    the values of the first one that is. No gradient reaches it."""
    first = active.to(torch.int8).argmax().reshape(1)
    found = []
    for tensor, dim in zip(operands, dims, strict=True):
        if dim is None:
            tensor = tensor.expand(active.shape[0], *tensor.shape)
            other = tensor
        else:
            other = tensor.index_select(0, first)
        found.append(torch.where(_along(active, tensor), tensor, other.detach()))
    return found


def chosen_lanes(
    mask: torch.Tensor, where_true: Sequence[Any], where_false: Sequence[Any]
) -> Tensors:
    """Batches of the elements of ``where_true`` where ``mask`` is true, else of ``where_false``."""
    return tuple(
        torch.where(_along(mask, a), a, b) for a, b in zip(where_true, where_false, strict=True)
    )


def _along(mask: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return mask.reshape(-1, *[1] * (tensor.dim() - 1))
