"""Laws of one random number, by their formulas: densities, and integrals of them.

    LAWS["gamma"].log_density(x, concentration=2.0, rate=3.0)      # of NumPy numbers
    LAWS["gamma"].expected(lambda x: x, concentration=2.0, rate=3.0)    # the mean, by quadrature

A law of whole numbers is summed instead. Nothing here calls torch but :attr:`Law.make`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributions as td
from torch import Tensor

Array = Any
"""A ``numpy.ndarray`` of numbers."""
Numbers = dict[str, float]
INF = math.inf

_STEP = 0.02
_T = np.arange(-5.4, 5.4 + _STEP / 2, _STEP)


@dataclass(frozen=True)
class Law:
    """A law and some of its parameters."""

    make: Callable[..., Any]
    """A distribution of torch, of tensors by name."""
    formula: Callable[..., Array]
    """The logarithm of the density, at NumPy numbers inside of the support."""
    parameters: Sequence[Numbers]
    cuts: Callable[..., Sequence[float]]
    """The ends of the support, and between them where the density has a kink or its middle."""
    scale: Callable[..., float] = lambda **p: 1.0
    moments: Callable[..., int] = lambda **p: 2
    """How many moments there are."""
    whole: bool = False
    """Whether the law is one of whole numbers. Its cuts are the first one, and the last one with a
    probability that counts."""
    spread: Callable[..., Array] | None = None
    """A function whose mean is what torch calls the variance, if that is another one."""
    follows_cdf: bool = True
    """Whether a draw is a monotone function of one random number."""
    endless: bool = False
    """Whether there are numbers above the last cut, with probabilities that do not count."""
    fitted: bool = False
    """Whether torch's gradients of draws are those of fitted polynomials."""
    unchecked: Sequence[str] = ()
    """The names of parameters of transforms, which torch does not check."""
    steep: Callable[..., bool] = lambda **p: False
    """Whether the density grows so fast at the upper end that an integral up to there has no
    digits: a number next to 1 has fewer of them than one next to 0."""
    periodic: bool = False
    """Whether all numbers are of the support, and those a period apart the same."""

    def log_density(self, x: Array, **p: float) -> Array:
        """Return the logarithm of the density, which is minus infinity outside of the support."""
        low, *_, high = self.cuts(**p)
        inside = (x >= low) & ((x <= high) | self.endless)
        with np.errstate(all="ignore"):
            found = self.formula(np.where(inside, x, _inner(low, high)), **p)
        return np.where(inside, found, -INF)

    def expected(self, g: Callable[[Array], Array], upto: float = INF, **p: float) -> float:
        """Return the mean of a function of the number, where the number is at most `upto`."""
        x, weights = self.nodes(upto, p)
        with np.errstate(all="ignore"):
            density = np.exp(self.log_density(x, **p)) * weights
            parts = np.where(density > 0, density * g(x), 0.0)
        return float(np.sum(parts))

    def nodes(self, upto: float, p: Numbers, others: Sequence[float] = ()) -> tuple[Array, Array]:
        """Return the numbers at which a density is summed, and their weights. `others`: cuts of
        another function."""
        cuts = list(self.cuts(**p))
        if self.whole:
            x = np.arange(cuts[0], min(cuts[-1], math.floor(min(upto, 1e9))) + 1.0)
            return x, np.ones_like(x)
        inner = (cut for cut in (*cuts, *others) if cuts[0] <= cut < min(upto, cuts[-1]))
        ends = sorted({*inner, min(upto, cuts[-1])})
        pieces = [_piece(a, b, self.scale(**p)) for a, b in itertools.pairwise(ends)]
        x, weights = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        return x, weights

    def probability(self, upto: float, **p: float) -> float:
        """Return the probability of a number that is at most `upto`."""
        if upto < self.cuts(**p)[0]:
            return 0.0
        return self.expected(np.ones_like, upto, **p)


def _inner(low: float, high: float) -> float:
    """Return a number between two, at which a formula is defined."""
    if math.isinf(low):
        return 0.0 if math.isinf(high) else high - 1.0
    return low + 1.0 if math.isinf(high) else (low + high) / 2


def _piece(low: float, high: float, scale: float) -> tuple[Array, Array]:
    """Return nodes and weights of the double exponential rule between two ends."""
    inner = math.pi / 2 * np.sinh(_T)
    slope = math.pi / 2 * np.cosh(_T) * _STEP
    with np.errstate(all="ignore"):
        if math.isinf(low):
            x, weights = _piece(-high, INF, scale)
            return -x, weights
        if math.isinf(high):
            far = scale * np.exp(inner)
            return low + far, far * slope
        share = 1 / (1 + np.exp(-2 * inner))
        return low + (high - low) * share, (high - low) * 2 * share * (1 - share) * slope


# --- formulas -------------------------------------------------------------------------------------


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _gamma(x: Array, concentration: float, rate: float) -> Array:
    constant = concentration * math.log(rate) - math.lgamma(concentration)
    return constant + (concentration - 1) * np.log(x) - rate * x


def _fisher(x: Array, df1: float, df2: float) -> Array:
    constant = df1 / 2 * math.log(df1 / df2) - _log_beta(df1 / 2, df2 / 2)
    return constant + (df1 / 2 - 1) * np.log(x) - (df1 + df2) / 2 * np.log1p(df1 * x / df2)


def _continuous_bernoulli(x: Array, probs: float) -> Array:
    constant = math.log(2.0)
    if probs != 0.5:
        constant = math.log(2 * math.atanh(1 - 2 * probs) / (1 - 2 * probs))
    return constant + x * math.log(probs) + (1 - x) * math.log1p(-probs)


def _generalized_pareto(x: Array, loc: float, scale: float, concentration: float) -> Array:
    z = (x - loc) / scale
    if concentration == 0:
        return -math.log(scale) - z
    return -math.log(scale) - (1 / concentration + 1) * np.log1p(concentration * z)


def _pareto_cuts(loc: float, scale: float, concentration: float) -> Sequence[float]:
    return loc, (loc - scale / concentration if concentration < 0 else INF)


def _student(x: Array, df: float, loc: float, scale: float) -> Array:
    constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    z = (x - loc) / scale
    return constant - math.log(scale) - (df + 1) / 2 * np.log1p(z * z / df)


def _normal(x: Array, loc: float, scale: float) -> Array:
    return -(((x - loc) / scale) ** 2) / 2 - math.log(scale * math.sqrt(2 * math.pi))


def _relaxed(x: Array, temperature: float, probs: float) -> Array:
    logit = np.log(x) - np.log1p(-x)
    gap = math.log(probs) - math.log1p(-probs) - logit * temperature
    softplus = np.logaddexp(0.0, gap)
    return math.log(temperature) + gap - 2 * softplus - np.log(x) - np.log1p(-x)


def _mixture(x: Array, loc: float, scale: float) -> Array:
    first = math.log(0.3) + _normal(x, loc - 1, scale)
    return np.logaddexp(first, math.log(0.7) + _normal(x, loc + 2, 2 * scale))


def _mixture_of_normals(loc: Tensor, scale: Tensor) -> Any:
    shares = td.Categorical(torch.tensor([0.3, 0.7], dtype=loc.dtype).expand(*loc.shape, 2))
    places = torch.stack([loc - 1, loc + 2], -1)
    return td.MixtureSameFamily(shares, td.Normal(places, torch.stack([scale, 2 * scale], -1)))


def _turned_exponential(loc: Tensor, scale: Tensor) -> Any:
    """Return loc less an exponential number of this scale: an affine transform turned round."""
    return td.TransformedDistribution(
        td.Exponential(torch.ones_like(loc)), td.AffineTransform(loc, -scale)
    )


def _tanh_of_normal(loc: Tensor, scale: Tensor) -> Any:
    return td.TransformedDistribution(td.Normal(loc, scale), td.TanhTransform())


def _three(p: Any) -> list[Any]:
    """Return the probabilities of three classes, of which the first one is a parameter."""
    return [p, (1 - p) * 0.25, (1 - p) * 0.75]


def _counted(x: Array, log_p: float, log_q: float) -> Array:
    """Return x log p, which is 0 for none, however impossible."""
    return np.where(x == 0, 0.0, x * log_p) + log_q


def _log(p: float) -> float:
    return math.log(p) if p > 0 else -INF


def _log_factorial(x: Array) -> Array:
    return np.array([math.lgamma(float(k) + 1) for k in np.ravel(x)]).reshape(np.shape(x))


def _binomial(x: Array, probs: float, count: int = 5) -> Array:
    chosen = math.lgamma(count + 1) - _log_factorial(x) - _log_factorial(count - x)
    return chosen + _counted(x, _log(probs), 0.0) + _counted(count - x, _log(1 - probs), 0.0)


def _negative_binomial(x: Array, total_count: float, probs: float) -> Array:
    chosen = _log_factorial(x + total_count - 1) - _log_factorial(x)
    rest = total_count * math.log1p(-probs) - math.lgamma(total_count)
    return chosen + _counted(x, _log(probs), rest)


def _scales(**p: float) -> float:
    return p.get("scale", 1.0)


def _whole_line(**p: float) -> Sequence[float]:
    return -INF, p["loc"], INF


def _half_line(**p: float) -> Sequence[float]:
    return 0.0, INF


def _unit(**p: float) -> Sequence[float]:
    return 0.0, 0.5, 1.0


def _logit(p: Tensor) -> Tensor:
    return p.log() - torch.log1p(-p)


PLACES = [{"loc": 0.0, "scale": 1.0}, {"loc": -2.5, "scale": 0.3}, {"loc": 40.0, "scale": 7.0}]
SCALES = [{"scale": 1.0}, {"scale": 0.2}, {"scale": 30.0}]
SHARES = [{"probs": 0.3}, {"probs": 0.5}, {"probs": 0.97}]

LAWS: dict[str, Law] = {
    "beta": Law(
        lambda a, b: td.Beta(a, b),
        lambda x, a, b: (a - 1) * np.log(x) + (b - 1) * np.log1p(-x) - _log_beta(a, b),
        [{"a": 2.0, "b": 3.0}, {"a": 0.4, "b": 1.0}, {"a": 1.0, "b": 2.0}, {"a": 30.0, "b": 9.0}],
        _unit,
        fitted=True,
    ),
    "cauchy": Law(
        td.Cauchy,
        lambda x, loc, scale: -math.log(math.pi * scale) - np.log1p(((x - loc) / scale) ** 2),
        PLACES,
        _whole_line,
        _scales,
        moments=lambda **p: 0,
    ),
    "chi2": Law(
        td.Chi2,
        lambda x, df: _gamma(x, df / 2, 0.5),
        [{"df": 3.0}, {"df": 0.8}, {"df": 25.0}],
        _half_line,
        fitted=True,
    ),
    "continuous_bernoulli": Law(
        td.ContinuousBernoulli,
        _continuous_bernoulli,
        [{"probs": 0.3}, {"probs": 0.5}, {"probs": 0.4995}, {"probs": 0.95}],
        _unit,
    ),
    "exponential": Law(
        td.Exponential,
        lambda x, rate: math.log(rate) - rate * x,
        [{"rate": 1.0}, {"rate": 0.05}, {"rate": 12.0}],
        _half_line,
        lambda rate: 1 / rate,
    ),
    "fisher_snedecor": Law(
        td.FisherSnedecor,
        _fisher,
        [{"df1": 3.0, "df2": 5.0}, {"df1": 8.0, "df2": 30.0}, {"df1": 4.0, "df2": 3.0}],
        _half_line,
        moments=lambda df1, df2: 2 if df2 > 4 else 1,
        follows_cdf=False,
    ),
    "gamma": Law(
        td.Gamma,
        _gamma,
        [
            {"concentration": 2.0, "rate": 1.0},
            {"concentration": 0.4, "rate": 3.0},
            {"concentration": 40.0, "rate": 0.5},
        ],
        _half_line,
        lambda concentration, rate: concentration / rate,
        fitted=True,
    ),
    "generalized_pareto": Law(
        td.GeneralizedPareto,
        _generalized_pareto,
        [
            {"loc": 0.0, "scale": 1.0, "concentration": 0.2},
            {"loc": 1.0, "scale": 2.0, "concentration": -0.4},
            {"loc": -1.0, "scale": 0.5, "concentration": 0.0},
        ],
        _pareto_cuts,
        _scales,
    ),
    "gumbel": Law(
        td.Gumbel,
        lambda x, loc, scale: -(x - loc) / scale - np.exp(-(x - loc) / scale) - math.log(scale),
        PLACES,
        _whole_line,
        _scales,
    ),
    "half_cauchy": Law(
        td.HalfCauchy,
        lambda x, scale: math.log(2 / (math.pi * scale)) - np.log1p((x / scale) ** 2),
        SCALES,
        _half_line,
        _scales,
        moments=lambda **p: 0,
    ),
    "half_normal": Law(
        td.HalfNormal,
        lambda x, scale: math.log(2) + _normal(x, 0.0, scale),
        SCALES,
        _half_line,
        _scales,
    ),
    "inverse_gamma": Law(
        td.InverseGamma,
        lambda x, concentration, rate: _gamma(1 / x, concentration, rate) - 2 * np.log(x),
        [
            {"concentration": 5.0, "rate": 1.0},
            {"concentration": 1.5, "rate": 4.0},
            {"concentration": 9.0, "rate": 0.5},
        ],
        _half_line,
        lambda concentration, rate: rate / concentration,
        moments=lambda concentration, rate: 2 if concentration > 2 else 1,
        fitted=True,
    ),
    "kumaraswamy": Law(
        lambda a, b: td.Kumaraswamy(a, b),
        lambda x, a, b: math.log(a * b) + (a - 1) * np.log(x) + (b - 1) * np.log1p(-(x**a)),
        [{"a": 2.0, "b": 3.0}, {"a": 0.4, "b": 1.0}, {"a": 5.0, "b": 1.5}, {"a": 0.2, "b": 0.2}],
        _unit,
        steep=lambda a, b: b < 0.5,
    ),
    "laplace": Law(
        td.Laplace,
        lambda x, loc, scale: -np.abs(x - loc) / scale - math.log(2 * scale),
        PLACES,
        _whole_line,
        _scales,
    ),
    "log_normal": Law(
        td.LogNormal,
        lambda x, loc, scale: _normal(np.log(x), loc, scale) - np.log(x),
        [{"loc": 0.0, "scale": 1.0}, {"loc": -2.0, "scale": 0.3}, {"loc": 1.0, "scale": 0.7}],
        _half_line,
        lambda loc, scale: math.exp(loc),
    ),
    "normal": Law(td.Normal, _normal, PLACES, _whole_line, _scales),
    "pareto": Law(
        lambda scale, alpha: td.Pareto(scale, alpha),
        lambda x, scale, alpha: math.log(alpha) + alpha * math.log(scale) - (alpha + 1) * np.log(x),
        [
            {"scale": 1.0, "alpha": 5.0},
            {"scale": 0.3, "alpha": 1.5},
            {"scale": 9.0, "alpha": 0.8},
        ],
        lambda scale, alpha: (scale, INF),
        _scales,
        moments=lambda scale, alpha: min(math.ceil(alpha) - 1, 2),
    ),
    "relaxed_bernoulli": Law(
        lambda temperature, probs: td.RelaxedBernoulli(temperature, probs),
        _relaxed,
        [{"temperature": 1.0, "probs": 0.3}, {"temperature": 2.0, "probs": 0.9}],
        _unit,
    ),
    "student_t": Law(
        td.StudentT,
        _student,
        [
            {"df": 7.0, "loc": 0.0, "scale": 1.0},
            {"df": 1.5, "loc": -3.0, "scale": 0.4},
            {"df": 40.0, "loc": 2.0, "scale": 5.0},
        ],
        _whole_line,
        _scales,
        moments=lambda df, **p: min(math.ceil(df) - 1, 2),
        follows_cdf=False,
    ),
    "tanh_of_normal": Law(
        _tanh_of_normal,
        lambda x, loc, scale: _normal(np.arctanh(x), loc, scale) - np.log1p(-x * x),
        [{"loc": 0.0, "scale": 0.5}, {"loc": 0.3, "scale": 0.2}],
        lambda **p: (-1.0, 0.0, 1.0),
    ),
    "turned_exponential": Law(
        _turned_exponential,
        lambda x, loc, scale: (x - loc) / scale - math.log(scale),
        PLACES,
        lambda loc, scale: (-INF, loc),
        _scales,
        unchecked=("loc", "scale"),
    ),
    "mixture_of_normals": Law(
        _mixture_of_normals,
        _mixture,
        PLACES[:2],
        lambda loc, scale: (-INF, loc - 1, loc + 2, INF),
        _scales,
        follows_cdf=False,
    ),
    "uniform": Law(
        td.Uniform,
        lambda x, low, high: np.full_like(x, -math.log(high - low)),
        [{"low": 0.0, "high": 1.0}, {"low": -3.0, "high": 5.0}],
        lambda low, high: (low, high),
    ),
    "von_mises": Law(
        td.VonMises,
        lambda x, loc, concentration: (
            concentration * np.cos(x - loc) - math.log(2 * math.pi) - np.log(np.i0(concentration))
        ),
        [
            {"loc": 0.0, "concentration": 1.0},
            {"loc": 0.5, "concentration": 4.5},
            {"loc": -0.2, "concentration": 0.1},
        ],
        lambda loc, concentration: (loc - math.pi, loc, loc + math.pi),
        spread=lambda x, loc, **p: 1 - np.cos(x - loc),
        follows_cdf=False,
        periodic=True,
    ),
    "weibull": Law(
        td.Weibull,
        lambda x, scale, concentration: (
            math.log(concentration / scale)
            + (concentration - 1) * np.log(x / scale)
            - (x / scale) ** concentration
        ),
        [
            {"scale": 1.0, "concentration": 1.5},
            {"scale": 4.0, "concentration": 0.7},
            {"scale": 0.2, "concentration": 6.0},
            {"scale": 2.0, "concentration": 0.2},
        ],
        _half_line,
        _scales,
    ),
    # laws of whole numbers
    "bernoulli": Law(
        td.Bernoulli,
        lambda x, probs: _counted(x, _log(probs), 0.0) + _counted(1 - x, _log(1 - probs), 0.0),
        SHARES,
        lambda probs: (0, 1),
        whole=True,
    ),
    "bernoulli_by_logits": Law(
        lambda probs: td.Bernoulli(logits=_logit(probs)),
        lambda x, probs: _counted(x, _log(probs), 0.0) + _counted(1 - x, _log(1 - probs), 0.0),
        SHARES,
        lambda probs: (0, 1),
        whole=True,
    ),
    "binomial": Law(
        lambda probs: td.Binomial(5, probs),
        _binomial,
        SHARES,
        lambda probs: (0, 5),
        whole=True,
    ),
    "binomial_by_logits": Law(
        lambda probs: td.Binomial(5, logits=_logit(probs)),
        _binomial,
        SHARES,
        lambda probs: (0, 5),
        whole=True,
    ),
    "categorical": Law(
        lambda probs: td.Categorical(torch.stack(_three(probs), -1)),
        lambda x, probs: np.log(np.array(_three(probs)))[x.astype(int)],
        SHARES,
        lambda probs: (0, 2),
        moments=lambda probs: 0,
        whole=True,
    ),
    "geometric": Law(
        td.Geometric,
        lambda x, probs: _counted(x, _log(1 - probs), math.log(probs)),
        SHARES,
        lambda probs: (0, math.ceil(40 / probs)),
        whole=True,
        endless=True,
    ),
    "geometric_by_logits": Law(
        lambda probs: td.Geometric(logits=_logit(probs)),
        lambda x, probs: _counted(x, _log(1 - probs), math.log(probs)),
        SHARES,
        lambda probs: (0, math.ceil(40 / probs)),
        whole=True,
        endless=True,
    ),
    "negative_binomial": Law(
        td.NegativeBinomial,
        _negative_binomial,
        [{"total_count": 3.0, "probs": 0.4}, {"total_count": 0.7, "probs": 0.8}],
        lambda **p: (0, 400),
        whole=True,
        endless=True,
    ),
    "poisson": Law(
        td.Poisson,
        lambda x, rate: x * math.log(rate) - rate - _log_factorial(x),
        [{"rate": 2.5}, {"rate": 0.1}, {"rate": 30.0}],
        lambda rate: (0, 60 + math.ceil(6 * rate)),
        whole=True,
        endless=True,
    ),
}
