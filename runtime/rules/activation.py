"""Activation functions, elementwise. Their first derivatives use ATen's own backward kernels, each with a record in other ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .derive import conj, diagonal, elementwise
from .derive_batch import elementwise as broadcast
from .derive_batch import shift
from .record import register

aten = torch.ops.aten


def kernel(name: str, decomposition: Callable[..., Any]) -> None:
    """An elementwise backward kernel of ATen: differentiated through ``decomposition``, batched as it is."""
    register(name, decomposition=decomposition, batch=broadcast, family="kernel")


diagonal("relu", self=lambda g, result: aten.threshold_backward(g, result, 0))
diagonal("threshold", self=lambda g, self, threshold: aten.threshold_backward(g, self, threshold))
diagonal(
    "threshold_backward",
    grad_output=lambda g, self, threshold: aten.threshold_backward(g, self, threshold),
    self=lambda g: torch.zeros_like(g),
)

elementwise(
    "sigmoid",
    {"self": lambda g, result: aten.sigmoid_backward(g, result)},
    {"self": lambda self_t, result: self_t * (result * (1 - result))},
)
kernel("sigmoid_backward", lambda grad_output, output: grad_output * conj(output * (1 - output)))
elementwise(
    "tanh",
    {"self": lambda g, result: aten.tanh_backward(g, result)},
    {"self": lambda self_t, result: self_t * (1 - result * result)},
)
kernel("tanh_backward", lambda grad_output, output: grad_output * conj(1 - output * output))


def _silu_slope(self: torch.Tensor) -> torch.Tensor:
    s = self.sigmoid()
    return s * (1 + self * (1 - s))


elementwise(
    "silu",
    {"self": lambda g, self: g * conj(_silu_slope(self)) if self.is_complex() else aten.silu_backward(g, self)},
    {"self": lambda self_t, self: self_t * _silu_slope(self)},
)
kernel("silu_backward", lambda grad_output, self: grad_output * _silu_slope(self))


def _mish_slope(self: torch.Tensor) -> torch.Tensor:
    t = torch.nn.functional.softplus(self).tanh()
    return t + self * self.sigmoid() * (1 - t * t)


diagonal("mish", self=lambda g, self: g * _mish_slope(self))


def gelu_slope(self: torch.Tensor, approximate: str) -> torch.Tensor:
    """Φ(x) + x·φ(x), or the derivative of the tanh approximation."""
    if approximate == "none":
        return 0.5 * (1 + torch.erf(self * math.sqrt(0.5))) + self * torch.exp(-0.5 * self * self) / math.sqrt(2 * math.pi)
    a, b = math.sqrt(2 / math.pi), 0.044715
    t = torch.tanh(a * (self + b * self**3))
    return 0.5 * (1 + t) + 0.5 * self * (1 - t * t) * a * (1 + 3 * b * self * self)


def _gelu(g: torch.Tensor, self: torch.Tensor, approximate: str) -> Any:
    return aten.gelu_backward(g, self, approximate=approximate)


diagonal("gelu", self=_gelu)
kernel("gelu_backward", lambda grad_output, self, approximate="none": grad_output * gelu_slope(self, approximate))
diagonal("hardsigmoid", self=lambda g, self: torch.where((self > -3) & (self < 3), g / 6, 0))
diagonal("hardswish", self=lambda g, self: torch.where(self < -3, 0, torch.where(self <= 3, g * (self / 3 + 0.5), g)))
diagonal("hardtanh", self=lambda g, self, min_val, max_val: torch.where((self > min_val) & (self < max_val), g, 0))
diagonal("hardshrink", self=lambda g, self, lambd: torch.where((self >= -lambd) & (self <= lambd), 0, g))
diagonal("softshrink", self=lambda g, self, lambd: torch.where((self >= -lambd) & (self <= lambd), 0, g))
diagonal("leaky_relu", self=lambda g, self, negative_slope: torch.where(self > 0, g, g * negative_slope))


def _elu(g: torch.Tensor, self: torch.Tensor, alpha: float, scale: float, input_scale: float) -> torch.Tensor:
    return torch.where(self <= 0, g * (alpha * scale * input_scale) * torch.exp(self.clamp(max=0) * input_scale), g * scale)


diagonal("elu", self=_elu)
diagonal("celu", self=lambda g, self, alpha: _elu(g, self, alpha, 1.0, 1.0 / alpha))


def _softplus(g: torch.Tensor, self: torch.Tensor, beta: float, threshold: float) -> torch.Tensor:
    scaled = self * beta
    return torch.where(scaled > threshold, g, g * torch.sigmoid(scaled))


diagonal("softplus", self=_softplus)
diagonal(
    "_prelu_kernel",
    self=lambda g, self, weight: torch.where(self > 0, g, g * weight),
    weight=lambda g, self: torch.where(self > 0, 0, g * self),
)
register(
    "log_sigmoid_forward",
    vjp={"self": lambda gs, self: None if gs[0] is None else gs[0] * torch.sigmoid(-self)},
    jvp=lambda self_t, self, result1: (self_t * torch.sigmoid(-self), torch.zeros_like(result1)),
    batch=broadcast,
    nondiff=(1,),
    family="pointwise",
)


def _glu_slopes(self: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    value, gate = self.chunk(2, dim)
    s = gate.sigmoid()
    return s, value * s * (1 - s)


def _glu_vjp(g: torch.Tensor, self: torch.Tensor, dim: int) -> torch.Tensor:
    by_value, by_gate = _glu_slopes(self, dim)
    return torch.cat([g * by_value, g * by_gate], dim)


def _glu_jvp(self_t: torch.Tensor, self: torch.Tensor, dim: int) -> torch.Tensor:
    by_value, by_gate = _glu_slopes(self, dim)
    value, gate = self_t.chunk(2, dim)
    return value * by_value + gate * by_gate


register(
    "glu",
    vjp={"self": _glu_vjp},
    jvp={"self": _glu_jvp},
    batch=lambda f, n, b, a, k: f(a[0], shift(a[1] if len(a) > 1 else -1, a[0].dim() - 1)),
    family="activation",
)
