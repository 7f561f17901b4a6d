"""Derivatives and values in the tails.

A formula that starts from the op's own result loses what the result has rounded away. The right
value is an ordinary number there."""

import math

import torch
import torch.nn.functional as F
from torch.autograd import grad

from tests.reports.report import report


@report("F33.1", "pytorch#195681", "pytorch#195527", kernel=True)
def gradient_of_sigmoid():
    """The gradient of sigmoid is 0 from 37 on, in float32 from 17 on.

    It is computed as y (1 - y), and y has rounded to 1. The closed form is e⁻ˣ / (1 + e⁻ˣ)².
    """
    x = torch.tensor(40.0, dtype=torch.float64, requires_grad=True)
    (gradient,) = grad(torch.sigmoid(x), x)
    return gradient, torch.tensor(math.exp(-40) / (1 + math.exp(-40)) ** 2, dtype=torch.float64)


@report("F33.2", "pytorch#195685", "pytorch#195527", kernel=True)
def gradient_of_tanh():
    """The gradient of tanh is 0 from 20 on, in float32 from 9.1 on.

    It is computed as 1 - y², and y has rounded to 1. The closed form is 1 / cosh².
    """
    x = torch.tensor(20.0, dtype=torch.float64, requires_grad=True)
    (gradient,) = grad(torch.tanh(x), x)
    return gradient, torch.tensor(math.cosh(20) ** -2, dtype=torch.float64)


@report("F33.3", "pytorch#192406")
def gradient_of_expm1():
    """The gradient of expm1 is 0 below -37.

    It is computed as y + 1, and y has rounded to -1. The closed form is eˣ.
    """
    x = torch.tensor(-40.0, dtype=torch.float64, requires_grad=True)
    (gradient,) = grad(torch.expm1(x), x)
    return gradient, torch.tensor(math.exp(-40), dtype=torch.float64)


@report("F33.4", "pytorch#195679", "pytorch#195530")
def second_derivative_of_logsigmoid():
    """The second derivative of logsigmoid is 0 from 37 on.

    It is -sigmoid(x) sigmoid(-x), an even function.
    """
    x = torch.tensor(40.0, dtype=torch.float64, requires_grad=True)
    (first,) = grad(F.logsigmoid(x), x, create_graph=True)
    (second,) = grad(first, x)
    return second, torch.tensor(-math.exp(-40) / (1 + math.exp(-40)) ** 2, dtype=torch.float64)


@report("F33.5", "pytorch#195682")
def second_derivative_of_silu():
    """The second derivative of silu is 0 from 37 on.

    With s = sigmoid(x) it is s (1 - s) (2 + x (1 - 2s)), which is about (2 - x) e⁻ˣ there.
    """
    x = torch.tensor(40.0, dtype=torch.float64, requires_grad=True)
    (first,) = grad(F.silu(x), x, create_graph=True)
    (second,) = grad(first, x)
    return second, torch.tensor((2 - 40) * math.exp(-40), dtype=torch.float64)


@report("F33.6", "pytorch#192408")
def second_derivative_of_exp2_where_exp2_overflows():
    """The second derivative of exp2 at 1024 is infinite.

    It is (log 2)² 2¹⁰²⁴ = 8.637e307, below the largest double.
    """
    x = torch.tensor(1024.0, dtype=torch.float64, requires_grad=True)
    (first,) = grad(torch.exp2(x), x, create_graph=True)
    (second,) = grad(first, x)
    return second, torch.tensor(math.log(2) ** 2 * 2.0**1023, dtype=torch.float64) * 2


@report("F33.7")
def gradient_of_elu_in_place():
    """The gradient of elu_ is 0 below -37.

    In place only the result is left, from which it is computed as y + 1. The closed form is eˣ.
    """
    x = torch.tensor(-40.0, dtype=torch.float64, requires_grad=True)
    (gradient,) = grad(F.elu_(x * 1), x)
    return gradient, torch.tensor(math.exp(-40), dtype=torch.float64)


@report("F33.8", runtime="the gradient has ATen's order of operations, for the same bits as torch")
def gradient_of_binary_cross_entropy_with_logits():
    """The gradient of binary_cross_entropy_with_logits for a target of 1 is 0 from 37 on.

    It is computed as sigmoid(x) - 1. The closed form is -sigmoid(-x).
    """
    x = torch.tensor(40.0, dtype=torch.float64, requires_grad=True)
    (gradient,) = grad(
        F.binary_cross_entropy_with_logits(x, torch.tensor(1.0, dtype=torch.float64)), x
    )
    return gradient, torch.tensor(-math.exp(-40) / (1 + math.exp(-40)), dtype=torch.float64)


@report("F33.9", kernel=True)
def gradient_of_log_softmax():
    """The gradient of log_softmax by a dominant element is 0.

    It is computed as 1 - exp(y). The closed form is the probability of the others,
    e⁻⁴⁰ / (1 + e⁻⁴⁰).
    """
    x = torch.tensor([40.0, 0.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = grad(torch.log_softmax(x, 0)[0], x)
    return gradient[0], torch.tensor(math.exp(-40) / (1 + math.exp(-40)), dtype=torch.float64)


@report("F33.10", kernel=True)
def gradient_of_softmax():
    """The gradient of softmax by a dominant element is 0.

    It is computed as y (1 - y). The closed form for two elements is that of sigmoid.
    """
    x = torch.tensor([40.0, 0.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = grad(torch.softmax(x, 0)[0], x)
    return gradient[0], torch.tensor(math.exp(-40) / (1 + math.exp(-40)) ** 2, dtype=torch.float64)


@report("F34.1")
def gradient_of_asinh_of_a_large_number():
    """The gradient of asinh at 1e200 is 0, in float32 at 1e20.

    It is computed as 1 / sqrt(x² + 1), where x² overflows. It is 1 / x to all digits.
    """
    x = torch.tensor(1e200, dtype=torch.float64, requires_grad=True)
    (gradient,) = grad(torch.asinh(x), x)
    return gradient, torch.tensor(1e-200, dtype=torch.float64)


@report("F34.2")
def gradient_of_acosh_of_a_large_number():
    """The gradient of acosh at 1e20 in float32 is 0.

    It is computed as 1 / sqrt(x² - 1), where x² overflows. It is 1 / x to all digits.
    """
    x = torch.tensor(1e20, requires_grad=True)
    (gradient,) = grad(torch.acosh(x), x)
    return gradient, torch.tensor(1e-20)


@report("F34.3", "pytorch#193040", rtol=1e-3)
def gradient_of_atan2_of_small_halves():
    """The gradient of atan2 in float16 is infinite at (0.002, 0.002).

    It is computed as y times 1 / (x² + y²), where the second factor overflows. It is 1 / 2x = 250.
    """
    y, x = torch.tensor([2e-3, 2e-3], dtype=torch.float16).requires_grad_().unbind()
    gradient = grad(torch.atan2(y, x), y)[0]
    return gradient, 0.5 / x.detach().double()


@report("F34.4")
def gradient_of_atan2_of_tiny_numbers():
    """The gradient of atan2 at (1e-30, 1e-30) in float32 is 0.

    x² + y² is 0 in float32, and a mask then takes the point for the origin. The gradient is 1 / 2x.
    """
    y, x = torch.tensor(1e-30, requires_grad=True), torch.tensor(1e-30)
    return grad(torch.atan2(y, x), y)[0], torch.tensor(0.5e30)


@report("F34.5")
def gradient_of_erfcx_of_a_large_number():
    """The gradient of erfcx at 1e10 is 0.

    It is computed as 2x erfcx(x) - 2/sqrt(pi), two numbers that cancel. It goes as
    -1 / (sqrt(pi) x²).
    """
    x = torch.tensor(1e10, dtype=torch.float64, requires_grad=True)
    (gradient,) = grad(torch.special.erfcx(x), x)
    return gradient, torch.tensor(-1e-20 / math.sqrt(math.pi), dtype=torch.float64)


@report("F34.6", kernel=True)
def softplus_above_a_high_threshold():
    """The gradient of softplus with a threshold of 1000 is NaN at 800.

    Its kernel divides exp(x) by exp(x) + 1, both infinite. The gradient is sigmoid(x), 1 here.
    """
    x = torch.tensor(800.0, dtype=torch.float64, requires_grad=True)
    (gradient,) = grad(F.softplus(x, threshold=1000), x)
    return gradient, torch.tensor(1.0, dtype=torch.float64)


@report("F34.7", "pytorch#187806", kernel=True)
def ndtr_in_the_left_tail():
    """The normal distribution function is 0 at -10.

    It is computed as (1 + erf) / 2. The closed form erfc(10 / sqrt(2)) / 2 is 7.6e-24.
    """
    return torch.special.ndtr(torch.tensor(-10.0, dtype=torch.float64)), torch.tensor(
        math.erfc(10 / math.sqrt(2)) / 2
    )


@report("F34.8", "pytorch#187806", kernel=True)
def gelu_in_the_left_tail():
    """gelu is 0 at -10, in float32 at -6.

    It is computed as x (1 + erf) / 2. The closed form with erfc is -7.6e-23.
    """
    return F.gelu(torch.tensor(-10.0, dtype=torch.float64)), torch.tensor(
        -5 * math.erfc(10 / math.sqrt(2))
    )


@report("F34.9", kernel=True)
def log1p_of_a_subnormal_number():
    """log1p of the smallest float is 0.

    log(1 + x) is x to all digits there. torch.expm1 and torch.sin do return x.
    """
    x = torch.tensor(2.0**-149)
    return torch.log1p(x), x


@report("F34.10", kernel=True)
def sigmoid_of_minus_100():
    """sigmoid(-100) is 0 in float32.

    exp(100) overflows. The right value 3.8e-44 is a subnormal number that torch.exp(-100) returns.
    """
    x = torch.tensor(-100.0)
    return torch.sigmoid(x), torch.exp(x)


@report("F34.11")
def gradient_of_sinc_near_zero():
    """The gradient of sinc is 0 at 1e-9.

    cos(πx)/x - sin(πx)/(πx²) cancels. The series of sinc gives -π² x / 3.
    """
    x = torch.tensor(1e-9, dtype=torch.float64, requires_grad=True)
    return grad(torch.sinc(x), x)[0], torch.tensor(-(math.pi**2) / 3 * 1e-9, dtype=torch.float64)


@report("F34.12", "pytorch#192293", kernel=True)
def modified_bessel_functions_near_overflow():
    """i0 and i1 of 713 are infinite.

    They are 6.705e307 and 6.700e307, by mpmath, below the largest double.
    """
    x = torch.tensor(713.0, dtype=torch.float64)
    right = torch.tensor([6.705128263670996e307, 6.700424559186402e307], dtype=torch.float64)
    return torch.stack([torch.i0(x), torch.special.i1(x)]), right


@report("F34.13", "pytorch#171249", kernel=True)
def softplus_with_a_large_beta():
    """softplus of 0.5 with beta and threshold 1e30 is infinite.

    It is log(1 + exp(beta x)) / beta, which is x to all digits.
    """
    x = torch.tensor([0.5])
    return F.softplus(x, beta=1e30, threshold=1e30), x
