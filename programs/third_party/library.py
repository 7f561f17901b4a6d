"""An op of torch.library with several outputs."""

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("third_party::sin_cos", mutates_args=())
def sin_cos(x: Tensor) -> tuple[Tensor, Tensor]:
    """sin x and cos x."""
    return x.sin(), x.cos()


@sin_cos.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def _sin_cos_setup(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output)


def _sin_cos_backward(ctx: Any, of_sin: Tensor, of_cos: Tensor) -> Tensor:
    sin, cos = ctx.saved_tensors
    result: Tensor = of_sin * cos - of_cos * sin
    return result


sin_cos.register_autograd(_sin_cos_backward, setup_context=_sin_cos_setup)


@sin_cos.register_vmap
def _(info: Any, in_dims: tuple[int | None], x: Tensor) -> Any:
    return sin_cos(x), (in_dims[0], in_dims[0])
