"""Run branches on all elements of a batch, with harmless values for elements that do not take them.

    cond(x > 0, torch.sqrt, torch.neg, (x,))        x: a batch [4, -1]

Both branches run on the whole batch. The element -1 does not take ``sqrt``, so ``sqrt`` gets
another element's 4 in its place. On -1 it would give a NaN, whose gradient would reach what the
elements share, and a loop might never stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
) -> Callable[..., Tensors]:
    """Return ``branch`` as a function on a batch.

    ``in_dims``: of each argument the batch dimension, None for one that is no batch. Its results
    are batches along dimension 0, or as ``out_dims`` says.
    """
    result_dims: tuple[int | None, ...] = (0,) * len(branch.results())
    if out_dims is not None:
        result_dims = tuple(out_dims)

    def on_all(*args: torch.Tensor) -> Tensors:
        """Run the branch on all elements."""
        if any(dim is not None for dim in in_dims):
            results = vmap(
                transformable(branch.module),
                in_dims=tuple(in_dims),
                out_dims=result_dims,
                randomness=info.randomness,
            )(*args)
        # no argument is a batch, but each element draws for itself
        elif draws(branch):
            count = torch.empty(info.batch_size)  # its length is the only thing that is used
            module = transformable(branch.module)
            on_batch = vmap(
                lambda _: module(*args), out_dims=result_dims, randomness=info.randomness
            )
            results = on_batch(count)
        else:
            plain = run(branch, args)
            results = tuple(
                result if dim is None else result.expand(info.batch_size, *result.shape)
                for result, dim in zip(plain, result_dims, strict=True)
            )
        return results  # type: ignore[no-any-return]

    return on_all


def of_active_lanes(
    active: torch.Tensor, operands: Sequence[torch.Tensor], dims: Sequence[int | None]
) -> list[torch.Tensor]:
    """Return ``operands`` as batches along dimension 0 for a function that active elements run.

    Each element that is not ``active`` has the values of the first one that is. No gradient reaches
    these values.
    """
    # of several maxima argmax gives the first; it takes no bool
    first = active.to(torch.int8).argmax().reshape(1)
    batches = []
    for tensor, dim in zip(operands, dims, strict=True):
        if dim is None:
            tensor = tensor.expand(active.shape[0], *tensor.shape)
            other = tensor
        else:
            other = tensor.index_select(0, first)
        batches.append(torch.where(_along(active, tensor), tensor, other.detach()))
    return batches


def chosen_lanes(
    mask: torch.Tensor, where_true: Sequence[torch.Tensor], where_false: Sequence[torch.Tensor]
) -> Tensors:
    """Return batches with the elements of ``where_true`` where ``mask`` is true, else those of
    ``where_false``."""
    return tuple(
        torch.where(_along(mask, on_true), on_true, on_false)
        for on_true, on_false in zip(where_true, where_false, strict=True)
    )


def _along(mask: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return ``mask`` so that it broadcasts along the other dimensions of ``tensor``."""
    return mask.reshape(-1, *[1] * (tensor.dim() - 1))
