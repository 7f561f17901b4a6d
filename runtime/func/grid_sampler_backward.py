"""Register the backward ops of grid samplers. Their kernels have no derivative, so each decomposes
into the pullback of plain ops.

The decomposition calls ``vjp``. That is why these records are not in ``runtime.rules``, which may
not import transforms.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..rules.derive.fixed_layouts import fold
from ..rules.layers.resampling import GRID_SAMPLERS
from ..rules.record import register
from .grad import vjp


def _backward_of(sampled: Callable[..., torch.Tensor]) -> Callable[..., tuple[object, object]]:
    """Return the backward op of a grid sampler as the pullback of ``sampled``, which computes the
    same samples by plain ops."""

    def decomposition(
        grad_output: object,
        input: object,
        grid: object,
        interpolation_mode: object,
        padding_mode: object,
        align_corners: object,
        output_mask: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients by ``input`` and ``grid``.

        ``output_mask`` says which of them the caller uses. Both are computed in any case.
        """
        _, pullback = vjp(
            lambda x, at: sampled(x, at, interpolation_mode, padding_mode, align_corners),
            input,
            grid,
        )
        by_input, by_grid = pullback(grad_output)
        return by_input, by_grid

    return decomposition


for _name, (_rank, _sampled) in GRID_SAMPLERS.items():
    register(
        f"{_name}_backward",
        decomposition=_backward_of(_sampled),
        batch=fold(_rank),
        family="resampling",
    )
