"""Records of the backward ops of grid samplers. Their kernels have no derivative, so each
decomposes into the pullback of plain ops.

The decomposition calls ``vjp``. That is why these records are not in ``runtime.rules``, which may
not import transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..rules.derive.fixed_layouts import fold
from ..rules.layers.resampling import GRID_SAMPLERS
from ..rules.record import register
from .grad import vjp


def _pullback(sampled: Callable[..., torch.Tensor]) -> Callable[..., tuple[object, object]]:
    def decomposition(
        grad_output: object,
        input: object,
        grid: object,
        interpolation_mode: object,
        padding_mode: object,
        align_corners: object,
        output_mask: object,
    ) -> tuple[Any, Any]:
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
        decomposition=_pullback(_sampled),
        batch=fold(_rank),
        family="resampling",
    )
