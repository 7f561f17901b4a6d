"""Elementwise ops."""

from __future__ import annotations

import torch

from .derive import diagonal, elementwise, nondifferentiable, pointwise

# arithmetic
elementwise(
    "add.Tensor",
    {"self": lambda g: g, "other": lambda g, alpha: g if alpha == 1 else g * alpha},
    {"self": lambda self_t: self_t, "other": lambda other_t, alpha: other_t if alpha == 1 else other_t * alpha},
)
elementwise("add.Scalar", {"self": lambda g: g}, {"self": lambda self_t: self_t})
elementwise(
    "sub.Tensor",
    {"self": lambda g: g, "other": lambda g, alpha: -g * alpha},
    {"self": lambda self_t: self_t, "other": lambda other_t, alpha: -other_t * alpha},
)
elementwise("sub.Scalar", {"self": lambda g: g}, {"self": lambda self_t: self_t})
elementwise(
    "rsub.Tensor",
    {"self": lambda g, alpha: -g * alpha, "other": lambda g: g},
    {"self": lambda self_t, alpha: -self_t * alpha, "other": lambda other_t: other_t},
)
pointwise("rsub.Scalar", self=lambda alpha: -alpha)
pointwise("div.Tensor", self=lambda other: 1 / other, other=lambda other, result: -result / other)
pointwise("div.Scalar", self=lambda other: 1 / other)
pointwise("mul.Tensor", self=lambda other: other, other=lambda self: self)
pointwise("mul.Scalar", self=lambda other: other)
pointwise("neg", self=lambda: -1)
pointwise("sin", self=lambda self: self.cos())
pointwise("cos", self=lambda self: -self.sin())
pointwise("exp", self=lambda result: result)
pointwise("tanh", self=lambda result: 1 - result * result)
diagonal("relu", self=lambda g, result: torch.where(result > 0, g, 0))
nondifferentiable("eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar")
nondifferentiable("gt.Tensor gt.Scalar ge.Tensor ge.Scalar")
