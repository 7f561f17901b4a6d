"""`shift_scale`, opaque to torch, and `log_cosh`, which torch can look into.

Every transform of the opaque one depends on the formulas registered here; those of the other follow
from its parts."""

from typing import Any

import torch
from torch import Tensor

from runtime.extend import pointwise


@torch.library.custom_op("third_party::shift_scale", mutates_args=())
def shift_scale(x: Tensor, shift: Tensor, scale: float) -> Tensor:
    """(x + shift)·scale; x and shift broadcast, as of any op that is entered as pointwise below."""
    return (x + shift) * scale


@shift_scale.register_fake
def _(x: Tensor, shift: Tensor, scale: float) -> Tensor:
    return torch.empty_like(x + shift)


def _shift_scale_setup(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
    x, shift, ctx.scale = inputs
    ctx.shapes = x.shape, shift.shape


def _shift_scale_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    each = (grad * ctx.scale).sum_to_size
    return each(ctx.shapes[0]), each(ctx.shapes[1]), None


shift_scale.register_autograd(_shift_scale_backward, setup_context=_shift_scale_setup)


@shift_scale.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], x: Tensor, shift: Tensor, scale: float
) -> tuple[Tensor, int]:
    def front(t: Tensor, dim: int | None) -> Tensor:
        return (
            t.movedim(dim, 0)
            if dim is not None
            else t.unsqueeze(0).expand(info.batch_size, *t.shape)
        )

    return torch.ops.third_party.shift_scale(
        front(x, in_dims[0]).clone(), front(shift, in_dims[1]).clone(), scale
    ), 0


# The same facts for this project's runtime: one line gives it the vjp, the jvp and
# the batching rule.
pointwise("third_party::shift_scale", x=lambda scale: scale, shift=lambda scale: scale)


torch.library.define("third_party::log_cosh", "(Tensor x) -> Tensor")


@torch.library.impl("third_party::log_cosh", "CompositeImplicitAutograd")
def _log_cosh(x: Tensor) -> Tensor:
    size = x.abs()
    return size + torch.log1p(torch.exp(-2 * size)) - 0.6931471805599453


def log_cosh(x: Tensor) -> Tensor:
    """log cosh x, elementwise, in the form that does not overflow."""
    result: Tensor = torch.ops.third_party.log_cosh(x)
    return result
