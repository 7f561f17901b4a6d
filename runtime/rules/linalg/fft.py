"""Register Fourier transforms. Each is linear over the reals. Its transpose is the transform in the
other direction."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..derive.families import linear
from ..derive.fixed_layouts import dims

aten = torch.ops.aten


def _c2c_back(g: torch.Tensor, dim: object, normalization: int, forward: bool) -> object:
    # `normalization` says by what the sum is divided, whatever the direction.
    return aten._fft_c2c(g, dim, normalization, not forward)


def _r2c_back(
    g: torch.Tensor,
    self_shape: Sequence[int],
    dim: Sequence[int],
    normalization: int,
    onesided: bool,
) -> object:
    """Return the transpose of a real-to-complex transform. The half that a one-sided result leaves
    out has a cotangent of zero.

    The engine takes the real part.
    """
    if onesided:
        last = dim[-1] % g.dim()
        g = torch.constant_pad_nd(
            g, [*[0, 0] * (g.dim() - 1 - last), 0, self_shape[last] - g.shape[last]]
        )
    return aten._fft_c2c(g, dim, normalization, False)


def _c2r_back(
    g: torch.Tensor, self_shape: object, dim: Sequence[int], normalization: int, last_dim_size: int
) -> object:
    """Return the transpose of a complex-to-real transform. Inner frequencies count twice, because
    each also stands for its mirror image.

    The first frequency counts once, and so does the last one if ``last_dim_size`` is even.
    """
    half = aten._fft_r2c(g, dim, normalization, True)
    last = dim[-1] % g.dim()
    n = half.shape[last]
    twice = torch.arange(n, device=g.device)
    weight = torch.where((twice > 0) & (twice < last_dim_size - n + 1), 2, 1)
    return half * weight.reshape([n, *[1] * (g.dim() - 1 - last)])


linear("_fft_c2c", {"self": _c2c_back}, dims(1), cost="high")
linear("_fft_r2c", {"self": _r2c_back}, dims(1), cost="high")
linear("_fft_c2r", {"self": _c2r_back}, dims(1), cost="high")
