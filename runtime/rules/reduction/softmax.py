"""Register softmax and log-softmax. Their backward ops have records too, so derivatives of every
order run on ATen's fused kernels."""

from __future__ import annotations

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel
from ..derive import batch_rules as batch
from ..derive.families import conj
from ..record import kernels, register

aten = torch.ops.aten


def _sum(t: torch.Tensor, dim: int) -> torch.Tensor:
    if not t.dim():
        return t
    return t.sum(dim, keepdim=True)


def _backward_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: object
) -> object:
    """Run a backward op on a batch. The arguments are (grad, output, dim, dtype), and both tensors
    have the same shape."""
    g, out = (batch.expand(args[i], batched[i], size) for i in (0, 1))
    rank = g.dim() - 1
    if rank == 0:
        return func(g.unsqueeze(1), out.unsqueeze(1), 1, args[3]).squeeze(1)
    return func(g, out, batch.shift(args[2], rank), args[3])


# _safe_softmax returns zeros for rows of -inf. The same formula gives these rows a
# gradient of zero.
for _name in ("_softmax", "_safe_softmax"):
    register(
        _name,
        vjp={
            "self": lambda g, result, dim, self_dtype: kernels._softmax_backward_data(
                g, conj(result), dim, self_dtype
            )
        },
        jvp={"self": lambda self_t, result, dim: result * (self_t - _sum(self_t * result, dim))},
        batch=batch.along(1),
        fresh=True,
        family="softmax",
    )
# (g, y) -> y·(g - sum(g·y))
register(
    "_softmax_backward_data",
    vjp={
        "grad_output": lambda g, output, dim, input_dtype: kernels._softmax_backward_data(
            g, conj(output), dim, g.dtype
        ),
        "output": lambda g, grad_output, output, dim: (
            g * conj(grad_output - _sum(grad_output * output, dim))
            - conj(grad_output) * _sum(g * conj(output), dim)
        ),
    },
    jvp={
        "grad_output": lambda grad_output_t, output, dim, input_dtype: (
            kernels._softmax_backward_data(grad_output_t, output, dim, input_dtype)
        ),
        "output": lambda output_t, grad_output, output, dim: (
            output_t * (grad_output - _sum(grad_output * output, dim))
            - output * _sum(grad_output * output_t, dim)
        ),
    },
    batch=_backward_batch,
    fresh=True,
    family="softmax",
)
register(
    "_log_softmax",
    vjp={
        "self": lambda g, result, dim, self_dtype: kernels._log_softmax_backward_data(
            g, conj(result), dim, self_dtype
        )
    },
    jvp={"self": lambda self_t, result, dim: self_t - _sum(self_t * result.exp(), dim)},
    batch=batch.along(1),
    fresh=True,
    family="softmax",
)
# (g, y) -> g - exp(y)·sum(g)
register(
    "_log_softmax_backward_data",
    vjp={
        "grad_output": lambda g, output, dim: g - _sum(g * conj(output.exp()), dim),
        "output": lambda g, grad_output, output, dim: (
            -g * conj(output.exp() * _sum(grad_output, dim))
        ),
    },
    jvp={
        "grad_output": lambda grad_output_t, output, dim, input_dtype: (
            kernels._log_softmax_backward_data(grad_output_t, output, dim, input_dtype)
        ),
        "output": lambda output_t, grad_output, output, dim: (
            -output_t * output.exp() * _sum(grad_output, dim)
        ),
    },
    batch=_backward_batch,
    fresh=True,
    family="softmax",
)


def _masked_softmax(
    self: torch.Tensor, mask: torch.Tensor, dim: int | None = None, mask_type: int | None = None
) -> object:
    """Return the softmax with -inf in place of the elements at which ``mask`` is true.

    The mask has the shape (L, L) for type 0, (B, L) for type 1, and that of ``self`` for type 2.
    """
    if mask.shape == self.shape:
        pass  # a full mask is one for every type
    elif mask_type == 0:
        mask = mask.expand(self.shape)
    elif mask_type == 1:
        mask = mask[:, None, None, :].expand(self.shape)
    if dim is None:
        dim = self.dim() - 1
    # NaN if a whole row is masked
    return aten._softmax(self.masked_fill(mask, float("-inf")), dim, False)


register("_masked_softmax", decomposition=_masked_softmax, family="softmax")
