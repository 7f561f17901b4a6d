"""Laws of random numbers, ``torch.distributions``."""

import math

import torch
import torch.distributions as td

from tests.reports.report import report


@report("F148.1", "pytorch#186826", kernel=True)
def quantile_of_what_is_no_probability():
    """The quantile of the probability 1.25 is a number: -1 for Cauchy, 1.25 for a uniform law that
    ends at 1.

    No number has it. Values outside of the support are refused, and these are not. The normal law
    gives NaN.
    """
    q = torch.tensor(1.25, dtype=torch.float64)
    cauchy, uniform = td.Cauchy(0.0, 1.0).icdf(q), td.Uniform(0.0, 1.0).icdf(q)
    return (cauchy, uniform), (torch.tensor(math.nan), torch.tensor(math.nan))


@report("F148.2", "pytorch#186824", kernel=True)
def quantiles_at_the_ends_of_gumbel():
    """The quantiles of 0 and 1 of a Gumbel law are -6.6 and 36.

    Its support has no ends.
    """
    one = torch.ones((), dtype=torch.float64)
    found = td.Gumbel(0 * one, one).icdf(torch.tensor([0.0, 1.0], dtype=torch.float64))
    return found, torch.tensor([-math.inf, math.inf])


@report("F148.3", kernel=True)
def gradient_of_the_median_of_laplace():
    """The gradient of the quantile function of Laplace is 0 at 1/2.

    It is 1 over the density, which is 1/2 there.
    """
    q = torch.tensor(0.5, requires_grad=True)
    (found,) = torch.autograd.grad(td.Laplace(0.0, 1.0).icdf(q), q)
    return found, torch.tensor(2.0)


@report("F149.1", kernel=True)
def gradient_of_the_probability_of_a_continuous_bernoulli():
    """The gradient of the cdf of ContinuousBernoulli is 0 at 1/2.

    At x = 1/2 the cdf is 1 / (1 + (p / (1 - p)) ** 0.5). Its slope by p is -1/2 there.
    """
    p = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(td.ContinuousBernoulli(p).cdf(0.5 * torch.ones_like(p)), p)
    return found, torch.tensor(-0.5)


@report("F149.2", kernel=True)
def gradient_of_a_draw_of_the_generalized_pareto_law():
    """The gradient of a draw of GeneralizedPareto by its concentration is 0 at 0.

    A draw is ((1 - u)**-c - 1) / c, which goes to z = -log(1 - u). Its slope goes to z**2 / 2.
    """
    torch.manual_seed(0)
    c = torch.tensor(0.0, requires_grad=True)
    draw = td.GeneralizedPareto(torch.tensor(0.0), torch.tensor(1.0), c).rsample()
    (found,) = torch.autograd.grad(draw, c)
    return found, draw.detach() ** 2 / 2


@report("F150.1", "pytorch#198185", kernel=True, raises="Double did not match Float")
def density_of_the_generalized_pareto_law_in_double_precision():
    """GeneralizedPareto has no density in double precision.

    With the concentration 1 it is 1 / (1 + x)**2.
    """
    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    return td.GeneralizedPareto(zero, one, one).log_prob(one), torch.tensor(-2 * math.log(2))


@report("F150.2", kernel=True)
def negative_temperature_of_a_relaxed_law():
    """A relaxed Bernoulli law takes a negative temperature, and its density is NaN.

    A negative scale of another law raises an error.
    """
    try:
        law = td.RelaxedBernoulli(torch.tensor(-1.0), probs=torch.tensor(0.3))
        found = float(law.log_prob(torch.tensor(0.3)))
    except ValueError:
        found = "refused"
    return found, "refused"


@report("F150.3", kernel=True)
def divergence_of_two_laws_with_the_same_support():
    """The divergence of a uniform law between 0 and 1 and the continuous Bernoulli law is infinite.

    They have the same support, and with p = 1/2 they are the same law.
    """
    same, uniform = td.ContinuousBernoulli(torch.tensor(0.5)), td.Uniform(0.0, 1.0)
    found = td.kl_divergence(uniform, same), td.kl_divergence(same, uniform)
    return found, (torch.tensor(0.0), torch.tensor(0.0))


@report("F150.4", kernel=True, rtol=1e-9)
def density_of_von_mises_in_double_precision():
    """The density of VonMises in double precision has 7 digits.

    Its Bessel function is a polynomial with coefficients for single precision. torch.i0 has 16.
    """
    k = torch.tensor(0.1, dtype=torch.float64)
    found = td.VonMises(torch.zeros_like(k), 10 * k).log_prob(torch.zeros_like(k))
    return found, 10 * k - math.log(2 * math.pi) - torch.i0(10 * k).log()


@report("F204.1", "pytorch#198186", kernel=True)
def mode_of_a_weibull_law_with_a_small_shape():
    """The mode of a Weibull law of the concentration 0.2 is -2048.

    The law is one of positive numbers, and its density grows to infinity at 0. Then others give NaN
    or the end of the support.
    """
    mode = float(td.Weibull(2.0, 0.2).mode)
    return math.isnan(mode) or mode == 0, True


@report("F204.2", "pytorch#198186", kernel=True)
def mode_of_a_kumaraswamy_law():
    """The mode of a Kumaraswamy law is NaN.

    It is ((a - 1) / (a b - 1))**(1 / a) where both parameters are larger than 1.
    """
    a, b = torch.tensor(2.0), torch.tensor(3.0)
    return td.Kumaraswamy(a, b).mode, ((a - 1) / (a * b - 1)) ** (1 / a)


@report("F204.3", "pytorch#95548", kernel=True)
def density_at_a_draw_of_a_kumaraswamy_law():
    """A draw of a Kumaraswamy law may be 1, and its density there is NaN.

    The law has no density there, so a draw is below 1.
    """
    torch.manual_seed(0)
    law = td.Kumaraswamy(torch.tensor(0.2), torch.tensor(0.2))
    return law.log_prob(law.sample((4000,))).isnan().sum(), torch.tensor(0)


@report("F205.1", "pytorch#193690", kernel=True, raises="to be within the support")
def probability_up_to_a_number_above_the_support():
    """The cdf of a uniform law refuses a number above its end.

    The probability of a smaller number is 1.
    """
    law = td.Uniform(0.0, 1.0, validate_args=True)
    return law.cdf(torch.tensor(2.0)), torch.tensor(1.0)


@report("F205.2", kernel=True)
def probability_up_to_a_number_below_the_support():
    """The cdf of Weibull(1, 2) at -1 is 0.63, and that of Kumaraswamy(2, 3) at -0.5 is 0.58.

    Both are laws of positive numbers. Other laws refuse the number.
    """
    x = torch.tensor(-1.0)
    found = td.Weibull(1.0, 2.0).cdf(x), td.Kumaraswamy(2.0, 3.0).cdf(x / 2)
    return found, (torch.tensor(0.0), torch.tensor(0.0))


@report("F206.1", "pytorch#186825", kernel=True)
def probability_of_what_never_comes():
    """What has the probability 0 has the logarithm -15.9 in Bernoulli, Binomial and Categorical.

    In double precision it is -36. It should be minus infinity.
    """
    one, never = torch.tensor(1.0), torch.tensor(0.0)
    return td.Bernoulli(probs=never).log_prob(one), torch.tensor(-math.inf)


@report("F206.2", kernel=True)
def probability_by_infinite_logits():
    """The logits minus infinity give NaN, which the constructor takes.

    They are those of the probability 0, so that 0 is certain.
    """
    law = td.Bernoulli(logits=torch.tensor(-math.inf))
    return law.log_prob(torch.tensor(0.0)), torch.tensor(0.0)
