"""Register rounding to the values of a quantized type, as in quantization-aware training. The
gradient is ``g`` within range and 0 outside: the straight-through estimator."""

from __future__ import annotations

import torch

from ..record import register

register(
    (
        "fake_quantize_per_tensor_affine_cachemask "
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"
    ),
    vjp={"self": lambda g, result1: g * result1},
    nondiff=(1,),
    abstract=lambda self: (torch.empty_like(self), torch.empty_like(self, dtype=torch.bool)),
    family="quantization",
)
register(
    "fake_quantize_per_channel_affine_cachemask",
    vjp={"self": lambda g, result1: g * result1},
    nondiff=(1,),
    abstract=lambda self: (torch.empty_like(self), torch.empty_like(self, dtype=torch.bool)),
    family="quantization",
)
