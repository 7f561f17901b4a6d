"""Infinities, not-a-number and removable singularities."""

import math

import torch
import torch.nn.functional as F
from torch.autograd import grad
from torch.func import grad as func_grad
from torch.func import jvp, vjp

from tests.reports.report import report


@report("F17.1")
def gradient_of_logit_at_nan_under_func():
    """Under torch.func the gradient of logit with eps is 0 at NaN.

    NaN lies in no interval, so the gradient is NaN, as the plain engine says.
    """
    x = torch.full((5,), math.nan)
    return vjp(lambda x: torch.logit(x, 0.2), x)[1](torch.ones(5))[0], x


@report("F17.2")
def gradient_of_binary_cross_entropy_with_logits_at_minus_infinity():
    """Under torch.func the gradient of binary_cross_entropy_with_logits is NaN at minus infinity.

    It is sigmoid(x) - target = -0.5, as the plain engine says.
    """
    x = torch.tensor([-math.inf])
    gradient = vjp(lambda x: F.binary_cross_entropy_with_logits(x, torch.tensor([0.5])), x)[1](
        torch.tensor(1.0)
    )[0]
    return gradient, torch.tensor([-0.5])


@report("F17.3")
def derivative_of_the_tangent_of_safe_softmax():
    """The derivative of the tangent of _safe_softmax is NaN in a row of minus infinities.

    The op is constant 0 in such a row.
    """
    x = torch.tensor([[0.0, 1.0], [-math.inf, -math.inf]])

    def soft(x):
        return torch.ops.aten._safe_softmax.default(x, 1)

    second = vjp(lambda x: jvp(soft, (x,), (torch.ones(2, 2),))[1], x)[1](torch.ones(2, 2))[0]
    return second[1], torch.zeros(2)


@report("F17.4", "pytorch#49724")
def gradient_of_logaddexp_at_two_minus_infinities():
    """The gradient of logaddexp at two minus infinities is NaN.

    The probability of an impossible event is 0. logsumexp returns 0 for the same two numbers.
    """
    i = torch.tensor(-math.inf)
    return func_grad(lambda a: torch.logaddexp(a, i))(i), torch.tensor(0.0)


@report("F19.1", "pytorch#193753", kernel=True)
def fmod_of_a_long_tensor():
    """fmod(8.5e37, 0.1) is NaN in a tensor of 20 elements.

    A tensor of one element gives 0.0376, which double precision confirms.
    """
    x = torch.full((20,), 8.5e37)
    return torch.fmod(x, torch.full((20,), 0.1)), torch.fmod(x[:1], torch.tensor([0.1])).expand(20)


@report("F19.2", "pytorch#185770", kernel=True, capability="AVX512")
def gelu_of_infinity():
    """gelu of infinity is NaN in a tensor of nine elements.

    A tensor of one element gives infinity, the limit. The kernel for AVX512 is wrong, that
    for AVX2 is right.
    """
    return F.gelu(torch.full((9,), math.inf)), torch.full((9,), math.inf)


@report("F20.1", kernel=True)
def polygamma_at_infinity():
    """polygamma(2, inf) is NaN.

    It goes to 0 as its argument grows.
    """
    return torch.polygamma(2, torch.tensor([math.inf])), torch.tensor([0.0])


@report("F20.2", "pytorch#186640", kernel=True)
def polygamma_at_a_pole():
    """polygamma(1, -2) is 3.2e14.

    The trigamma function has a pole of second order there.
    """
    return torch.polygamma(1, torch.tensor([-2.0])), torch.tensor([math.inf])


@report("F35.1", "pytorch#49724")
def gradient_of_logsumexp_with_an_infinity():
    """The gradient of logsumexp is NaN by an infinite element.

    As that element grows the gradient goes to 1, and logaddexp returns 1.
    """
    x = torch.tensor([1.0, math.inf], requires_grad=True)
    return grad(torch.logsumexp(x, 0), x)[0], torch.tensor([0.0, 1.0])


@report("F35.2")
def gradient_of_logcumsumexp_of_leading_minus_infinities():
    """The gradient of logcumsumexp is NaN by a leading minus infinity.

    An impossible event has the probability 0, which logsumexp returns.
    """
    x = torch.tensor([-math.inf, 1.0], requires_grad=True)
    return grad(torch.logcumsumexp(x, 0).sum(), x)[0], torch.tensor([0.0, 1.0])


@report("F36.1", "pytorch#196703")
def second_derivative_of_sinc_at_zero():
    """The second derivative of sinc at 0 is NaN.

    sin(πx)/(πx) = 1 - π²x²/6 + …, so it is -π²/3.
    """
    x = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    (first,) = grad(torch.sinc(x), x, create_graph=True)
    return grad(first, x)[0], torch.tensor(-(math.pi**2) / 3)


@report(
    "F36.2",
    "pytorch#92075",
    runtime="a norm has the derivative 0 at 0 by convention, and so has its derivative",
)
def second_derivative_of_a_squared_norm_at_zero():
    """The second derivative of a squared norm at 0 is NaN.

    norm(x)² is the sum of squares, whose second derivative is 2.
    """
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    (first,) = grad(torch.linalg.vector_norm(x) ** 2, x, create_graph=True)
    return grad(first.sum(), x)[0], torch.tensor([2.0, 2.0])


@report("F37.1", "pytorch#160876", kernel=True)
def activations_of_minus_infinity():
    """silu, hardswish and mish of minus infinity are NaN.

    Each is x times a factor that vanishes faster than x grows. The limit is 0.
    """
    x = torch.tensor(-math.inf)
    return [F.silu(x), F.hardswish(x), F.mish(x)], [torch.tensor(0.0)] * 3


@report("F37.2", kernel=True)
def gradient_of_silu_at_infinity():
    """The gradient of silu at infinity is NaN.

    It is s + x s (1 - s) with s = sigmoid(x), whose limit is 1.
    """
    x = torch.tensor(math.inf, requires_grad=True)
    return grad(F.silu(x), x)[0], torch.tensor(1.0)


@report("F37.3", "pytorch#185770", kernel=True)
def gradient_of_gelu_at_infinity():
    """The gradient of gelu at infinity is NaN.

    It is the distribution function of x plus x times its density, whose limit is 1.
    """
    x = torch.tensor(math.inf, requires_grad=True)
    return grad(F.gelu(x), x)[0], torch.tensor(1.0)


@report("F37.4", kernel=True)
def gradient_of_gelu_by_tanh_at_a_large_number():
    """The gradient of gelu(approximate="tanh") at 1e20 is NaN.

    The function is x there, since tanh has saturated at 10.
    """
    x = torch.tensor(1e20, requires_grad=True)
    return grad(F.gelu(x, approximate="tanh"), x)[0], torch.tensor(1.0)


@report("F37.5", kernel=True)
def softsign_of_infinity():
    """softsign of infinity is NaN.

    x / (1 + |x|) goes to 1.
    """
    return F.softsign(torch.tensor(math.inf)), torch.tensor(1.0)


@report("F37.6", kernel=True)
def hardsigmoid_gradient_at_nan():
    """The gradient of hardsigmoid at NaN is 0.

    hardsigmoid(NaN) is NaN, which no constant piece of the function gives. The gradient of relu6,
    whose shape it has, is NaN."""
    x = torch.tensor(math.nan, requires_grad=True)
    return grad(F.hardsigmoid(x), x)[0], torch.tensor(math.nan)


@report("F38.1", kernel=True)
def sinc_of_infinity():
    """sinc of infinity is NaN.

    |sin(πx)/(πx)| is at most 1/(πx).
    """
    return torch.sinc(torch.tensor(math.inf)), torch.tensor(0.0)


@report("F38.2", kernel=True)
def modified_bessel_functions_at_infinity():
    """i0 and i1 of infinity are NaN.

    Both grow as eˣ / sqrt(2πx); torch's own i0 of 1000 is infinite.
    """
    x = torch.tensor(math.inf)
    return [torch.i0(x), torch.special.i1(x)], [x, x]


@report("F38.3", kernel=True)
def bessel_functions_at_infinity():
    """bessel_j0, j1, y0 and y1 of infinity are NaN.

    All four decay as sqrt(2/(πx)).
    """
    x = torch.tensor(math.inf, dtype=torch.float64)
    bessel = (
        torch.special.bessel_j0,
        torch.special.bessel_j1,
        torch.special.bessel_y0,
        torch.special.bessel_y1,
    )
    return [f(x) for f in bessel], [torch.tensor(0.0)] * 4


@report("F38.4", kernel=True)
def airy_function_at_infinity():
    """airy_ai of infinity is NaN.

    It decays as exp(-2/3 x^1.5).
    """
    return torch.special.airy_ai(torch.tensor(math.inf)), torch.tensor(0.0)


@report("F38.5", "pytorch#187294", kernel=True)
def zeta_of_an_infinite_shift():
    """zeta(2, inf) is NaN.

    The sum of 1/(q + k)² over k is about 1/q.
    """
    return torch.special.zeta(torch.tensor(2.0), torch.tensor(math.inf)), torch.tensor(0.0)


@report("F39.1", "pytorch#133998", kernel=True)
def quantile_with_infinities():
    """The largest quantile of a sample with two infinities is NaN.

    quantile(x, 1) is the maximum. It interpolates between infinity and infinity, whose
    difference is NaN.
    """
    x = torch.tensor([1.0, math.inf, math.inf])
    return torch.quantile(x, 1.0), x.max()


@report("F39.2", kernel=True)
def a_negative_power_of_minus_zero():
    """(-0.0) ** -0.5 is minus infinity.

    IEEE 754 gives plus infinity for a power that is no odd integer. torch gives plus infinity for
    the power -0.25."""
    x = torch.tensor([-0.0])
    return x**-0.5, torch.tensor([math.inf])


@report("F38.6", "pytorch#138464", kernel=True)
def zeta_of_nan():
    """zeta(NaN, -inf) is infinite.

    A function of NaN is NaN, as zeta(NaN, 1) is.
    """
    return torch.special.zeta(torch.tensor(math.nan), torch.tensor(-math.inf)), torch.tensor(
        math.nan
    )


@report("F38.7", "pytorch#132614", kernel=True)
def incomplete_gamma_functions_of_nan():
    """gammainc(inf, NaN), gammainc(NaN, 0) and gammaincc(NaN, inf) are 0.

    A function of NaN is NaN, as gammainc(1, NaN) is.
    """
    nan, inf, zero = torch.tensor(math.nan), torch.tensor(math.inf), torch.tensor(0.0)
    answers = (
        torch.special.gammainc(inf, nan),
        torch.special.gammainc(nan, zero),
        torch.special.gammaincc(nan, inf),
    )
    return answers, [nan] * 3


@report("F38.8", "pytorch#127978", kernel=True)
def complex_addr_of_infinity():
    """addr of a complex number and infinite vectors is NaN in the real part.

    It is the number plus the outer product, whose real part is infinite.
    """
    x, a, b = (
        torch.tensor(1.1, dtype=torch.complex64),
        torch.tensor([math.inf]),
        torch.tensor([1.0, 2.0]),
    )
    return torch.addr(x, a, b).real, (x + torch.outer(a, b)).real


@report("F108.1", torch="==2.14.*")
def gradient_of_fmax_beside_nan():
    """The gradient of fmax goes to both arguments where one of them is NaN.

    fmax gives the other argument there, so its derivative by the NaN is 0.
    """
    x = torch.tensor(math.nan, requires_grad=True)
    y = torch.tensor(2.0, requires_grad=True)
    return torch.stack(grad(torch.fmax(x, y), (x, y))), torch.tensor([0.0, 1.0])


@report("F108.2", torch="==2.14.*")
def gradient_of_fmin_beside_nan():
    """The gradient of fmin goes to both arguments where one of them is NaN.

    fmin gives the other argument there, so its derivative by the NaN is 0.
    """
    x = torch.tensor(2.0, requires_grad=True)
    y = torch.tensor(math.nan, requires_grad=True)
    return torch.stack(grad(torch.fmin(x, y), (x, y))), torch.tensor([1.0, 0.0])


@report("F109.1", kernel=True)
def hardswish_of_minus_infinity():
    """hardswish of minus infinity is NaN.

    It is 0 for x up to -3 by its documentation. The kernel multiplies x by 0 there.
    """
    x = torch.tensor([-math.inf, -4.0])
    return torch.nn.functional.hardswish(x), torch.zeros(2)


@report("F109.2", kernel=True)
def sign_of_a_remainder_of_zero():
    """A remainder of 0 has the sign of the dividend.

    It is Python's modulus by its documentation, which has the sign of the divisor.
    """
    x, y = [0.0, -0.0, 2.0, -2.0], [-2.5, 2.5, -2.0, 2.0]
    found = torch.remainder(torch.tensor(x), torch.tensor(y))
    python = torch.tensor([a % b for a, b in zip(x, y, strict=True)])
    return torch.copysign(torch.ones(4), found), torch.copysign(torch.ones(4), python)


@report("F110.1", kernel=True)
def fmod_of_a_subnormal_number():
    """fmod by a subnormal number is NaN, and so is that of the largest number by a small one.

    C's fmod is exact, and its result is smaller than the divisor. The kernel has another algorithm
    for vectors, and the right result for a single number."""
    x, y = [1.0, -2.5, torch.finfo(torch.float32).max], [2.0**-149, 2.0**-149, 0.5]
    found = torch.fmod(torch.tensor(x * 8), torch.tensor(y * 8))[:3]
    return found, torch.tensor([math.fmod(a, b) for a, b in zip(x, y, strict=True)])
