"""Register activation functions. First derivatives use ATen's backward kernels. Each of these
kernels has a record too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..derive.batch_rules import aligned, shift
from ..derive.batch_rules import elementwise as broadcast
from ..derive.families import conj, diagonal, elementwise
from ..record import asking, kernels, register

aten = torch.ops.aten


def kernel(
    name: str, decomposition: Callable[..., object], batch: Callable[..., object] = broadcast
) -> None:
    """Register an elementwise backward kernel of ATen. ``decomposition`` gives its derivatives,
    ``batch`` is its batch rule."""
    register(name, decomposition=decomposition, batch=batch, family="kernel")


def slope_kernel(
    name: str, at: str, curvature: Callable[..., object], batch: Callable[..., object] = broadcast
) -> None:
    """Register a backward kernel ``g·conj(slope(x))``. ``at`` is the name of the argument x.

    The kernel is linear in ``g``, so it computes its own derivative by ``g``. ``curvature`` is the
    derivative of the slope, a function of ``x`` and the keyword-only arguments.
    """
    func = getattr(aten, name)
    options = tuple(
        argument.name for argument in func.default._schema.arguments if argument.kwarg_only
    )
    asks = (at, *options)

    def run(g: torch.Tensor, x: torch.Tensor, *values: object) -> Any:
        """Call the kernel, which takes its options by name alone."""
        return func(g, x, **dict(zip(options, values, strict=True)))

    def by_x(g: torch.Tensor, grad_output: torch.Tensor, x: torch.Tensor, *values: object) -> Any:
        """Return the gradient by x, from the curvature."""
        # `g` and not the product is conjugated, because the kernel is antiholomorphic in x.
        return conj(g) * grad_output * conj(curvature(x, *values))

    register(
        name,
        vjp={
            # The transpose multiplies by slope(x), which is the conjugate of slope(conj(x)).
            "grad_output": asking("g", *asks)(lambda g, x, *values: run(g, conj(x), *values)),
            at: asking("g", "grad_output", *asks)(by_x),
        },
        jvp={
            "grad_output": asking("grad_output_t", *asks)(run),
            at: asking(f"{at}_t", "grad_output", *asks)(
                lambda t, grad_output, x, *values: grad_output * conj(t * curvature(x, *values))
            ),
        },
        batch=batch,
        elementwise=batch is broadcast,
        family="kernel",
    )


# From the result, as in torch: `relu_` overwrites its argument.
diagonal("relu", self=lambda g, result: kernels.threshold_backward(g, result, 0))
diagonal(
    "threshold", self=lambda g, self, threshold: kernels.threshold_backward(g, self, threshold)
)
diagonal(
    "threshold_backward",
    grad_output=lambda g, self, threshold: kernels.threshold_backward(g, self, threshold),
    self=lambda g: torch.zeros_like(g),
)

# Both slopes are functions of the result y: y·(1 - y) and 1 - y². These are their derivatives.
for _name, _curvature in (
    ("sigmoid", lambda output: 1 - 2 * output),
    ("tanh", lambda output: -2 * output),
):
    _backward = getattr(kernels, f"{_name}_backward")
    elementwise(
        _name,
        {"self": asking("g", "result")(_backward)},
        {
            "self": asking("self_t", "result")(
                lambda t, result, backward=_backward: backward(t, conj(result))
            )
        },
    )
    slope_kernel(f"{_name}_backward", "output", _curvature)


def _silu_slope(self: torch.Tensor) -> torch.Tensor:
    s = self.sigmoid()
    return s * (1 + self * (1 - s))


def _silu_curvature(self: torch.Tensor) -> torch.Tensor:
    s = self.sigmoid()
    return s * self.neg().sigmoid() * (2 + self * (1 - 2 * s))  # not 1 - s, which is 0 in the tail


# ATen's backward kernel does not conjugate the slope, so complex numbers do not use it.
elementwise(
    "silu",
    {
        "self": lambda g, self: (
            g * conj(_silu_slope(self)) if self.is_complex() else kernels.silu_backward(g, self)
        )
    },
    {
        "self": lambda self_t, self: (
            self_t * _silu_slope(self) if self.is_complex() else kernels.silu_backward(self_t, self)
        )
    },
)
slope_kernel("silu_backward", "self", _silu_curvature)


def _mish_curvature(self: torch.Tensor) -> torch.Tensor:
    # mish(x) = x·tanh(u) with u = softplus(x), whose derivative is s
    u, s = torch.nn.functional.softplus(self), self.sigmoid()
    # not 1 - tanh², which is 0 in the tail
    return s * u.cosh().reciprocal().square() * (2 + self * (1 - s - 2 * s * u.tanh()))


diagonal("mish", self=lambda g, self: kernels.mish_backward(g, self))
slope_kernel("mish_backward", "self", _mish_curvature)


def _gelu_curvature(self: torch.Tensor, approximate: str) -> torch.Tensor:
    """Return φ(x)·(2 - x²), or the second derivative of the tanh approximation."""
    square = self * self
    if approximate == "none":
        return torch.exp(-0.5 * square) * (2 - square) / math.sqrt(2 * math.pi)
    # the second derivative of x/2·(1 + tanh(u)) with u = a·(x + b·x³)
    a, b = math.sqrt(2 / math.pi), 0.044715
    t = torch.tanh(a * self * (1 + b * square))
    inner = a * (1 + 3 * b * square)
    return (1 - t * t) * (inner + self * (3 * a * b * self - t * inner * inner))


def _gelu(g: torch.Tensor, self: torch.Tensor, approximate: str) -> object:
    return kernels.gelu_backward(g, self, approximate=approximate)


diagonal("gelu", elementwise=False, self=_gelu)
slope_kernel("gelu_backward", "self", _gelu_curvature, aligned)


def piecewise(name: str, slope: Callable[..., torch.Tensor]) -> None:
    """Register an activation with the ATen backward kernel ``NAME_backward(g, self, …)``. Second
    derivatives use ``slope``, its derivative.

    First derivatives run on the kernel so that NaN gives the same gradient as in torch. Its
    vectorized and scalar paths treat NaN differently.
    """
    backward = getattr(aten, f"{name}_backward")
    options = [argument.name for argument in getattr(aten, name).default._schema.arguments[1:]]

    def apply(g: torch.Tensor, self: torch.Tensor, *values: object) -> Any:
        """Call the kernel: it computes a gradient, and as well a tangent."""
        return backward(g, self, *values)

    rule = asking("g", "self", *options)(apply)
    diagonal(name, elementwise=False, self=rule)
    kernel(
        f"{name}_backward",
        lambda grad_output, self, *values: grad_output * slope(self, *values),
        aligned,
    )


def _between(self: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return ((self > low) & (self < high)).to(self.dtype)


def _beyond(self: torch.Tensor, lambd: float) -> torch.Tensor:
    return ((self < -lambd) | (self > lambd)).to(self.dtype)


piecewise("hardsigmoid", lambda self: _between(self, -3, 3) / 6)
piecewise(
    "hardswish",
    # at the ends as the kernel of the derivative has it: 0 and 1
    lambda self: torch.where(self <= -3, 0, torch.where(self >= 3, 1, self / 3 + 0.5)),
)
piecewise("hardtanh", _between)
piecewise("hardshrink", _beyond)
piecewise("softshrink", _beyond)
diagonal(
    "leaky_relu", self=lambda g, self, negative_slope: torch.where(self > 0, g, g * negative_slope)
)


def _elu(
    g: torch.Tensor, self: torch.Tensor, alpha: object, scale: object, input_scale: object
) -> object:
    return kernels.elu_backward(g, alpha, scale, input_scale, False, self)


def _elu_decomposed(
    grad_output: torch.Tensor,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    self_or_result: torch.Tensor,
) -> torch.Tensor:
    """Return the backward of elu for the form with ``self``. The form with the result belongs to
    ``elu_``, which has the record of ``elu``."""
    assert not is_result
    # not clamp: the second derivative of the kernel is zero at zero
    negative = torch.where(self_or_result >= 0, 0, self_or_result)
    bent = (alpha * scale * input_scale) * torch.exp(negative * input_scale)
    return grad_output * torch.where(self_or_result > 0, scale, bent)


diagonal("elu", elementwise=False, self=_elu)
# celu is elu with its argument divided by alpha
diagonal(
    "celu", elementwise=False, self=lambda g, self, alpha: _elu(g, self, alpha, 1.0, 1.0 / alpha)
)
kernel("elu_backward", _elu_decomposed, aligned)


def _softplus_backward_decomposed(
    grad_output: torch.Tensor, self: torch.Tensor, beta: int, threshold: int
) -> torch.Tensor:
    """Return the cotangent of softplus, ``g·sigmoid(beta·x)``.

    For a positive argument the logistic function is computed from its distance to one, so that its
    derivatives do not round to zero.
    """
    z = self * beta
    logistic = torch.where(z > 0, 1 - torch.sigmoid(-z), torch.sigmoid(z))
    return grad_output * torch.where(z > threshold, 1, logistic)


diagonal(
    "softplus",
    elementwise=False,
    self=lambda g, self, beta, threshold: kernels.softplus_backward(g, self, beta, threshold),
)
kernel("softplus_backward", _softplus_backward_decomposed, aligned)
diagonal(
    "_prelu_kernel",
    self=lambda g, self, weight: torch.where(self > 0, g, g * weight),
    weight=lambda g, self: torch.where(self > 0, 0, g * self),
)
register(
    "log_sigmoid_forward",
    # Not 1 - sigmoid(x), which is 0 for large x. The second result is a buffer of the kernel.
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

# The kernel writes ``noise`` during the call, so it is saved afterwards. The backward kernel
# is linear in its first argument and so serves as jvp as well. Batches of both run by
# torch's decompositions.
register(
    "rrelu_with_noise",
    vjp={
        "self": lambda g, self, noise, lower, upper, training: kernels.rrelu_with_noise_backward(
            g, self, noise, lower, upper, training, False
        )
    },
    jvp={
        "self": lambda self_t, self, noise, lower, upper, training: (
            kernels.rrelu_with_noise_backward(self_t, self, noise, lower, upper, training, False)
        )
    },
    draws="values",
)
