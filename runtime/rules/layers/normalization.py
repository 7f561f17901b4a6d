"""Hold the derivatives that layer, group and batch normalization share.

Let x̂ = (x - mean)·rstd. If x changes by t, x̂ changes by P(t) =
``rstd·(t - mean(t) - x̂·mean(t·x̂))``. P is its own transpose, so one function serves the jvp and
the backward ops. First derivatives run on ATen's backward kernels. Derivatives of these kernels
treat them as functions of the cotangent, the input and the weight alone: the statistics are
computed from the input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from ..derive.optional import add_present, apply_weight, map_optional, multiply_present

Tensor = torch.Tensor
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""What a derivative of a layer gives for its input, its weight and its bias."""


def mean_over(t: Tensor, dims: list[int]) -> Tensor:
    """Return the mean over ``dims``, which stay as dimensions of size one. Without dimensions:
    ``t``."""
    if not dims:  # no dimension, which to ATen means all
        return t
    return t.mean(dims, keepdim=True)


def sum_over(t: Tensor, dims: list[int]) -> Tensor:
    """Return the sum over ``dims``. Without dimensions: ``t``."""
    if not dims:
        return t
    return t.sum(dims)


def projected(t: Tensor, unit: Tensor, rstd: Tensor, dims: list[int]) -> Tensor:
    """Return P(t), the derivative of x̂ = ``unit`` along ``t``. P is its own transpose.

    ``rstd``: the reciprocal standard deviation, shaped to broadcast. ``dims``: the dimensions of
    ``t`` over which x was normalized.
    """
    return rstd * (t - mean_over(t, dims) - unit * mean_over(t * unit, dims))


def projected_vjp(
    a: Tensor, t: Tensor, by_a: Tensor, by_t: Tensor, unit: Tensor, rstd: Tensor, dims: list[int]
) -> Tensor:
    """Return the gradient of ``sum(a·P(t))`` by x. ``by_a`` and ``by_t`` are P(a) and P(t); see
    :func:`projected`."""
    # sum(a·P(t)) is n·rstd·spread. Its derivative by x follows from those of rstd, which is
    # -rstd²·x̂/n, and of mean(a·x̂) for a fixed a, which is P(a)/n.
    au, tu = mean_over(a * unit, dims), mean_over(t * unit, dims)
    spread = mean_over(a * t, dims) - mean_over(a, dims) * mean_over(t, dims) - au * tu
    return -rstd * (rstd * spread * unit + by_a * tu + by_t * au)


def projected_jvp(
    t: Tensor, by_t: Tensor, by_x: Tensor, x_t: Tensor, unit: Tensor, rstd: Tensor, dims: list[int]
) -> Tensor:
    """Return the change of P(t) if x changes by ``x_t``. ``by_t`` and ``by_x`` are P(t) and
    P(x_t)."""
    # the product rule: rstd changes by -rstd²·mean(x̂·x_t), and x̂ by P(x_t)
    return -rstd * (
        mean_over(unit * x_t, dims) * by_t
        + mean_over(t * unit, dims) * by_x
        + mean_over(t * by_x, dims) * unit
    )


def statistics_vjp(
    g_mean: Tensor | None, g_rstd: Tensor | None, unit: Tensor, rstd: Tensor, n: int
) -> Any:
    """Return the gradient of the input through the returned mean and reciprocal standard deviation,
    both shaped to broadcast. ``n``: how many elements each of them is computed of."""
    # d mean/dx = 1/n and d rstd/dx = -rstd²·x̂/n
    by_mean = by_rstd = None
    if g_mean is not None:
        by_mean = g_mean / n
    if g_rstd is not None:
        by_rstd = -g_rstd * rstd * rstd * unit / n
    return add_present(by_mean, by_rstd)


def scaled(
    out_t: Tensor | None,
    unit: Tensor,
    weight: Tensor | None,
    weight_t: Tensor | None,
    bias_t: Tensor | None,
) -> Any:
    """Return the tangent of ``x̂·weight + bias``, from the tangent ``out_t`` of x̂ = ``unit``. Each
    tangent may be None, for zero. ``weight`` and its tangent are shaped to broadcast."""
    if out_t is not None and weight is not None:
        out_t = out_t * weight
    return add_present(out_t, multiply_present(unit, weight_t), bias_t)


class Normalized(ABC):
    """The normalized input of a backward op of layer or group norm, and what its derivatives use,
    in the shape in which the input is normalized: over ``dims``. ``unit``: x̂."""

    dims: list[int]
    unit: Tensor
    rstd: Tensor
    weight: Tensor | None

    def weighted(self, t: Tensor) -> Tensor:
        """Return ``t`` times the weight."""
        return apply_weight(t, self.weight)

    @abstractmethod
    def projected(self, t: Tensor) -> Any:
        """Return :func:`projected` of ``t``, computed by ATen's kernel."""

    @abstractmethod
    def parameter(self, t: Tensor | None) -> Any:
        """Return a weight or bias, shaped to broadcast."""

    @abstractmethod
    def parameter_sum(self, t: Tensor) -> Tensor:
        """Return the inverse of the broadcast of :meth:`parameter`."""

    def backward_vjp(
        self,
        g: Tensor,
        by_x: Tensor | None,
        by_weight: Tensor | None,
        by_bias: Tensor | None,
        needs: frozenset[str],
    ) -> Gradients:
        """Return the gradients of the cotangent ``g``, the input and the weight, by those of the
        backward op's results.

        ``g`` and ``by_x`` have the shape in which the input is normalized. ``by_weight`` and
        ``by_bias`` have that of the parameters. ``needs``: the arguments whose gradients are
        wanted, by name.
        """
        # the gradient of x is a projection of the weighted cotangent, and linear in that
        of_g = of_x = of_weight = None
        if by_x is not None:
            back = self.projected(by_x)
            of_g = self.weighted(back)
            if "weight" in needs:
                of_weight = self.parameter_sum(g * back)
            if "input" in needs:
                t = self.weighted(g)
                by_t = self.projected(t)
                of_x = projected_vjp(by_x, t, back, by_t, self.unit, self.rstd, self.dims)
        # that of the weight is a sum of the cotangent times the normalized values
        if by_weight is not None:
            factor = self.parameter(by_weight)
            of_g = add_present(of_g, self.unit * factor)
            if "input" in needs:
                of_x = add_present(of_x, self.projected(g * factor))
        if by_bias is not None:
            of_g = add_present(of_g, self.parameter(by_bias).expand(g.shape))
        return of_g, of_x, of_weight

    def backward_jvp(
        self,
        g: Tensor,
        g_t: Tensor | None,
        x_t: Tensor | None,
        weight_t: Tensor | None,
        mask: Sequence[bool],
    ) -> Gradients:
        """Return the tangents of the backward op's results that ``mask`` asks for: the gradients of
        input, weight and bias. ``g`` is the cotangent; ``g_t``, ``x_t`` and ``weight_t`` are
        tangents of the op's arguments, None for zero."""
        # how the normalized values move
        by_x = map_optional(self.projected, x_t)
        of_x = of_weight = of_bias = None
        if mask[0]:
            t_t = add_present(
                map_optional(self.weighted, g_t), multiply_present(g, self.parameter(weight_t))
            )
            of_x = map_optional(self.projected, t_t)
            if by_x is not None and x_t is not None:
                t = self.weighted(g)
                by_t = self.projected(t)
                moved = projected_jvp(t, by_t, by_x, x_t, self.unit, self.rstd, self.dims)
                of_x = add_present(of_x, moved)
        if mask[1]:
            change = add_present(multiply_present(g_t, self.unit), multiply_present(g, by_x))
            of_weight = map_optional(self.parameter_sum, change)
        if mask[2] and g_t is not None:
            of_bias = self.parameter_sum(g_t)
        return of_x, of_weight, of_bias
