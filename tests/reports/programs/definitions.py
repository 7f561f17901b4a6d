"""Elementwise ops against their definitions in arbitrary precision.

Derivatives at points where a formula divides zero by zero, squares what overflows, or subtracts
nearly equal numbers."""

import torch
import torch.nn.functional as F
from torch.autograd import grad

from tests.reports.report import report


@report("F60.1")
def mixed_derivative_of_a_power_at_exponent_zero():
    """The derivative of y·x^(y-1) by the exponent is 0 at exponent 0.

    The derivative by the base is replaced by 0 there, and so loses its own derivative by the
    exponent, which is 1 / x."""
    x = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    y = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    (by_base,) = grad(x**y, x, create_graph=True)
    (mixed,) = grad(by_base, y)
    return mixed, torch.tensor(0.5, dtype=torch.float64)


@report("F60.2")
def second_derivative_of_logaddexp_far_apart():
    """The second derivative of logaddexp is NaN where the arguments are far apart.

    It is s (1 - s) for the share s = 1 / (1 + eʸ⁻ˣ), which is 0 to the last digit here.
    """
    x = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    (first,) = grad(
        torch.logaddexp(x, torch.tensor(1000.0, dtype=torch.float64)), x, create_graph=True
    )
    (second,) = grad(first, x)
    return second, torch.tensor(0.0, dtype=torch.float64)


@report("F60.3")
def gradient_of_xlogy_at_zero():
    """The gradient of xlogy(0, y) by y is NaN at y = 0, and that of xlog1py at -1.

    xlogy(0, y) is defined as 0 for every y, so its derivative is 0.
    """
    y = torch.tensor(0.0, requires_grad=True)
    (gradient,) = grad(torch.xlogy(torch.tensor(0.0), y), y)
    return gradient, torch.tensor(0.0)


@report("F60.4")
def second_derivative_of_a_clamped_logit():
    """The second derivative of logit with eps is NaN at 0.

    There logit is the constant log(eps / (1 - eps)).
    """
    x = torch.tensor(0.0, requires_grad=True)
    (first,) = grad(torch.logit(x, 0.2), x, create_graph=True)
    (second,) = grad(first, x)
    return second, torch.tensor(0.0)


@report("F60.5")
def third_derivative_of_copysign_near_zero():
    """The third derivative of copysign is NaN at 1e-30 in float32.

    copysign(x, 1) is x for positive x. Its derivative is computed as the quotient of
    result and argument.
    """
    x = torch.tensor(1e-30, requires_grad=True)
    (first,) = grad(torch.copysign(x, torch.tensor(1.0)), x, create_graph=True)
    (second,) = grad(first, x, create_graph=True)
    (third,) = grad(second, x)
    return third, torch.tensor(0.0)


@report("F61.1")
def gradient_of_addcdiv_by_a_large_divisor():
    """The gradient of addcdiv by a divisor of 2e19 is 0 in float32.

    It is -x / y². The square of y overflows; x / y / y does not.
    """
    y = torch.tensor(2e19, requires_grad=True)
    (gradient,) = grad(torch.addcdiv(torch.tensor(0.0), torch.tensor(2e19), y), y)
    return gradient, torch.tensor(-5e-20)


@report("F61.2")
def second_derivative_of_hypot():
    """The second derivative of hypot(x, 1e-3) at 10000 is 0 in float32.

    It is y² / r³. The formula subtracts x² / r³ from 1 / r.
    """
    x = torch.tensor(1e4, requires_grad=True)
    (first,) = grad(torch.hypot(x, torch.tensor(1e-3)), x, create_graph=True)
    (second,) = grad(first, x)
    return second, torch.tensor(1e-18)


@report("F61.3", kernel=True)
def number_divided_by_a_tensor():
    """5e-39 / torch.tensor(1e-39) is infinite.

    It is computed as the product with a reciprocal, which overflows.
    """
    return 5e-39 / torch.tensor(1e-39), torch.tensor(5.0)


@report("F61.4", kernel=True)
def hardswish_of_a_large_number():
    """hardswish(1e38) is infinite.

    It is x for x > 3. The kernel multiplies by 6 before it divides by 6.
    """
    return F.hardswish(torch.tensor(1e38)), torch.tensor(1e38)


@report("F61.5", kernel=True)
def round_of_a_large_number():
    """round(3e37, decimals=3) is infinite.

    The number has no decimals. It is multiplied by 1000, which overflows.
    """
    return torch.round(torch.tensor(3e37), decimals=3), torch.tensor(3e37)


@report("F62.1", kernel=True)
def tanhshrink_near_zero():
    """tanhshrink(1e-6) has four digits, and tanhshrink(1e-8) is 0.

    x - tanh(x) is x³ / 3 - 2 x⁵ / 15 + …
    """
    return F.tanhshrink(torch.tensor(1e-8, dtype=torch.float64)), torch.tensor(
        1e-24 / 3, dtype=torch.float64
    )


@report("F62.2", kernel=True)
def gradient_of_softsign():
    """The gradient of softsign at 1e8 is 0 in float32.

    softsign is x / (1 + |x|), differentiated as a quotient. The two terms cancel; the derivative is
    1 / (1 + |x|)²."""
    x = torch.tensor(1e8, requires_grad=True)
    (gradient,) = grad(F.softsign(x), x)
    return gradient, torch.tensor(1e-16)


@report("F62.3", kernel=True, rtol=1e-9)
def gradient_of_hardsigmoid_in_double():
    """The gradient of hardsigmoid in double precision is 1/6 in single precision.

    hardsigmoid is x / 6 + 1 / 2 between -3 and 3. The constant of the backward kernel is a float.
    """
    x = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    (gradient,) = grad(F.hardsigmoid(x), x)
    return gradient, torch.tensor(1 / 6, dtype=torch.float64)


@report("F62.4")
def gradient_of_i0e_far_out():
    """The gradient of i0e at 1e15 is -5.0e-24.

    It is about -i0e(x) / (2x), which is -(2x)⁻¹ / √(2πx). The formula subtracts i0e from i1e.
    """
    x = torch.tensor(1e15, dtype=torch.float64, requires_grad=True)
    (gradient,) = grad(torch.special.i0e(x), x)
    return gradient, torch.tensor(-0.5e-15 / (2 * torch.pi * 1e15) ** 0.5, dtype=torch.float64)


@report("F62.5")
def gradient_of_log_ndtr_far_below():
    """The gradient of log_ndtr at -1e30 is infinite.

    It is φ(x) / Φ(x), which is near -x there. The formula subtracts squares.
    """
    x = torch.tensor(-1e30, dtype=torch.float64, requires_grad=True)
    (gradient,) = grad(torch.special.log_ndtr(x), x)
    return gradient, torch.tensor(1e30, dtype=torch.float64)


@report("F63.1", kernel=True)
def bessel_j0_of_a_large_number():
    """bessel_j0(999999986991104) is 2.66e-09 in float32.

    The number is exact in float32. mpmath gives 1.96217e-08. The kernel computes the
    phase in float32.
    """
    return torch.special.bessel_j0(torch.tensor(999999986991104.0)), torch.tensor(
        1.9621668433863393e-08
    )


@report("F63.2", kernel=True)
def airy_ai_of_a_large_negative_number():
    """airy_ai(-1e30) is NaN in float32.

    Ai(x) goes to 0 as x goes to minus infinity. mpmath gives -2.97376e-09 for the float32 number
    nearest to -1e30."""
    return torch.special.airy_ai(torch.tensor(-1e30)), torch.tensor(-2.9737558443179808e-09)


@report("F63.3", kernel=True, rtol=1e-9)
def bessel_y0_near_a_zero():
    """bessel_y0(10) has nine digits in double precision.

    mpmath gives 0.055671167283599395.
    """
    return torch.special.bessel_y0(torch.tensor(10.0, dtype=torch.float64)), torch.tensor(
        0.055671167283599395, dtype=torch.float64
    )
