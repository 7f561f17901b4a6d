"""``torch.distributions``, and the same by the formula of a density and by integrals of it.

    gamma(mark, made="entropies", number=1)     # the entropy of the second gamma law, and slopes

A row is a law of :mod:`programs.families.laws`. ``made`` says what is asked of it, and ``number``
which of its parameters it has. Integrals and derivatives of the definition are of NumPy numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributions as td
from torch import Tensor

from gen.outcomes import Unsuitable
from programs.families.laws import INF, LAWS, Law, Numbers
from programs.families.tools import Results, Row

Question = Callable[..., Sequence[Any]]
DRAWS = 4000
_QUANTILES = (0.001, 0.2, 0.5, 0.9, 0.999)
_WIDE = torch.float64


# --- numbers --------------------------------------------------------------------------------------


def _points(law: Law, p: Numbers) -> list[float]:
    """Return numbers of the support, none of them where the density has a kink."""
    low, *_, high = law.cuts(**p)
    scale = law.scale(**p)
    if law.whole:
        return [float(x) for x in (0, 1, 2, 5, 11) if x <= high]
    if math.isinf(low) and math.isinf(high):
        return [p["loc"] + scale * z for z in (-6.0, -1.2, 0.1, 0.7, 5.0)]
    if math.isinf(low):
        return [high - scale * z for z in (0.05, 0.4, 1.1, 2.5, 7.0)]
    if math.isinf(high):
        return [low + scale * z for z in (0.05, 0.4, 1.1, 2.5, 7.0)]
    return [low + (high - low) * share for share in (0.03, 0.2, 0.52, 0.77, 0.96)]


def _tensors(p: Numbers) -> dict[str, Tensor]:
    return {name: torch.tensor(number, dtype=_WIDE) for name, number in p.items()}


def _leaves(p: Numbers) -> dict[str, Tensor]:
    return {name: x.requires_grad_() for name, x in _tensors(p).items()}


def _slopes(result: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of the sum of a result, zeros by what has no part in it."""
    if not result.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    found = torch.autograd.grad(result.sum(), leaves, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves, strict=True)]


def _difference(f: Callable[[float], Any], at: float) -> Any:
    """Return the derivative of a function of NumPy numbers by central differences."""
    step = 1e-3 * max(abs(at), 0.05)

    def quotient(size: float) -> Any:
        return (f(at + size) - f(at - size)) / (2 * size)

    once, half, quarter = (quotient(step / part) for part in (1, 2, 4))
    first, second = (4 * half - once) / 3, (4 * quarter - half) / 3
    return (16 * second - first) / 15


def _by_parameters(f: Callable[..., float], p: Numbers) -> list[float]:
    """Return the derivatives of a number by each parameter."""

    def of(name: str) -> Callable[[float], float]:
        return lambda at: f(**{**p, name: at})

    return [_difference(of(name), p[name]) for name in p]


# --- what is asked of a law, and its answer by torch and by definition ----------------------------


def _densities(law: Law, p: Numbers) -> Sequence[Any]:
    leaves = _leaves(p)
    x = torch.tensor(_points(law, p), dtype=_WIDE, requires_grad=not law.whole)
    found = law.make(**leaves).log_prob(x)
    by_points = [] if law.whole else _slopes(found, [x])
    return found, *by_points, *_slopes(found, list(leaves.values()))


def _densities_by_definition(law: Law, p: Numbers) -> Sequence[Any]:
    x = np.array(_points(law, p))
    by_parameters = _by_parameters(lambda **q: law.log_density(x, **q).sum(), p)
    if law.whole:
        return law.log_density(x, **p), *by_parameters
    by_points = [_difference(lambda at: law.log_density(at, **p), point) for point in x]
    return law.log_density(x, **p), by_points, *by_parameters


def _probabilities(law: Law, p: Numbers) -> Sequence[Any]:
    leaves = _leaves(p)
    x = torch.tensor(_points(law, p), dtype=_WIDE, requires_grad=True)
    found = law.make(**leaves).cdf(x)
    return found, *_slopes(found, [x, *leaves.values()])


def _probabilities_by_definition(law: Law, p: Numbers) -> Sequence[Any]:
    points = _points(law, p)
    density = np.exp(law.log_density(np.array(points), **p))
    by_parameters = _by_parameters(lambda **q: sum(law.probability(x, **q) for x in points), p)
    return [law.probability(x, **p) for x in points], density, *by_parameters


def _quantiles(law: Law, p: Numbers) -> Sequence[Any]:
    """Return the probability of a number up to each quantile, the ends, and slopes."""
    q = torch.tensor(_QUANTILES, dtype=_WIDE, requires_grad=True)
    law_of_torch = law.make(**_tensors(p))
    found = law_of_torch.icdf(q)
    (slope,) = _slopes(found, [q])
    numbers = found.detach().numpy()
    density = np.exp(law.log_density(numbers, **p))
    ends = law_of_torch.icdf(torch.tensor([0.0, 1.0], dtype=_WIDE))
    return [law.probability(x, **p) for x in numbers], slope.numpy() * density, ends


def _quantiles_by_definition(law: Law, p: Numbers) -> Sequence[Any]:
    low, *_, high = law.cuts(**p)
    return _QUANTILES, [1.0] * len(_QUANTILES), [low, high]


def _no_quantiles(law: Law, p: Numbers) -> Sequence[Any]:
    """Ask for quantiles of what is no probability. An error and NaN are right."""
    law_of_torch = law.make(**_tensors(p))
    found = [_number_or_error(law_of_torch.icdf, q) for q in (-0.25, 1.25, math.nan)]
    return (found,)


def _number_or_error(f: Callable[[Tensor], Tensor], x: float) -> float:
    try:
        return float(f(torch.tensor(x, dtype=_WIDE)))
    except ValueError:
        return math.nan


def _no_quantiles_by_definition(law: Law, p: Numbers) -> Sequence[Any]:
    return ([math.nan] * 3,)


def _beyond(law: Law, p: Numbers) -> Sequence[Any]:
    """Ask for the probability of what is below and above the support. An error is NaN here."""
    law_of_torch = law.make(**_tensors(p))
    return ([_number_or_error(law_of_torch.cdf, x) for x, _ in _sides(law, p)],)


def _beyond_by_definition(law: Law, p: Numbers) -> Sequence[Any]:
    return ([probability for _, probability in _sides(law, p)],)


def _sides(law: Law, p: Numbers) -> list[tuple[float, float]]:
    """Return a number on each side of the support, and the probability of what is below it."""
    low, high = _ends(law, p)
    sides = [(low - 0.5, 0.0), (high + 1.0, 1.0)]
    return [side for side in sides if not math.isinf(side[0])]


def _certain(law: Law, p: Numbers) -> Sequence[Any]:
    """Ask for logarithms of probabilities where a number is sure to come, or never comes."""
    found = []
    for probs in (0.0, 1.0):
        law_of_torch = law.make(**{**_tensors(p), "probs": torch.tensor(probs, dtype=_WIDE)})
        found.append(law_of_torch.log_prob(torch.tensor(_ends(law, p), dtype=_WIDE)))
    return found


def _certain_by_definition(law: Law, p: Numbers) -> Sequence[Any]:
    ends = np.array(_ends(law, p), dtype=float)
    return [law.log_density(ends, **{**p, "probs": probs}) for probs in (0.0, 1.0)]


def _moments(law: Law, p: Numbers) -> Sequence[Any]:
    leaves = _leaves(p)
    law_of_torch = law.make(**leaves)
    asked = [law_of_torch.mean, law_of_torch.variance][: law.moments(**p)]
    slopes = [slope for one in asked for slope in _slopes(one, list(leaves.values()))]
    stddev = [law_of_torch.stddev] if law.moments(**p) == 2 else []
    return *asked, *stddev, *slopes


def _mean(law: Law) -> Callable[..., float]:
    return lambda **p: law.expected(lambda x: x, **p)


def _variance(law: Law) -> Callable[..., float]:
    def f(**p: float) -> float:
        mean = law.expected(lambda x: x, **p)
        spread = law.spread
        if spread is not None:
            return law.expected(lambda x: spread(x, **p), **p)
        return law.expected(lambda x: (x - mean) ** 2, **p)

    return f


def _moments_by_definition(law: Law, p: Numbers) -> Sequence[Any]:
    asked = [_mean(law), _variance(law)][: law.moments(**p)]
    slopes = [slope for f in asked for slope in _by_parameters(f, p)]
    stddev = [math.sqrt(_variance(law)(**p))] if law.moments(**p) == 2 else []
    return *(f(**p) for f in asked), *stddev, *slopes


def _modes(law: Law, p: Numbers) -> Sequence[Any]:
    """Return whether the mode is of the support, and no number of the quadrature's is denser."""
    mode = float(law.make(**_tensors(p)).mode)
    if math.isnan(mode) and not _has_peak(law, p):
        raise Unsuitable("no mode")
    x, _ = law.nodes(INF, p)
    low, *_, high = law.cuts(**p)
    with np.errstate(all="ignore"):
        best = np.nanmax(law.log_density(x, **p))
        at_mode = float(law.log_density(np.array(mode), **p))
    return [float(low <= mode <= high), float(not at_mode < best - 1e-6)]


def _has_peak(law: Law, p: Numbers) -> bool:
    """Return whether one number is denser than all others, and no end of the support.

    A uniform law has no such number. Nor has a law whose density grows to infinity at an end.
    """
    x, _ = law.nodes(INF, p)
    with np.errstate(all="ignore"):
        density = np.nan_to_num(law.log_density(x, **p), nan=-INF)
        best = density.max()
        if law.whole:
            return int((density > best - 1e-9).sum()) == 1
        first, *_, last = _points(law, p)
        outer = law.log_density(np.array([first, last]), **p)
    return bool(first < x[density.argmax()] < last and best > outer.max() + 1e-6)


def _modes_by_definition(law: Law, p: Numbers) -> Sequence[Any]:
    return [1.0, 1.0]


def _entropies(law: Law, p: Numbers) -> Sequence[Any]:
    leaves = _leaves(p)
    found = law.make(**leaves).entropy()
    return found, *_slopes(found, list(leaves.values()))


def _entropies_by_definition(law: Law, p: Numbers) -> Sequence[Any]:
    def entropy(**q: float) -> float:
        return law.expected(lambda x: -law.log_density(x, **q), **q)

    return entropy(**p), *_by_parameters(entropy, p)


def _batches(law: Law, p: Numbers) -> Sequence[Any]:
    """Ask a batch of all parameters, and the same expanded, at points of each."""
    several = {name: torch.tensor([[q[name]] for q in law.parameters], dtype=_WIDE) for name in p}
    batch = law.make(**several)
    points = torch.tensor(_common_points(law), dtype=_WIDE)
    expanded = batch.expand((2, len(law.parameters), len(points)))
    wide = expanded.log_prob(points)
    shapes = [*batch.batch_shape, *expanded.batch_shape, *expanded.sample((5,)).shape]
    return batch.log_prob(points), wide, [float(size) for size in shapes]


def _common_points(law: Law) -> list[float]:
    """Return a number of the support of each law, in turn, that all supports have."""
    lows, highs = zip(*(_ends(law, p) for p in law.parameters), strict=True)
    points = [x for p in law.parameters for x in _points(law, p)]
    low, high = max(lows), min(highs)
    return [x for x in points if low < x < high or (law.whole and x <= high)][:4]


def _ends(law: Law, p: Numbers) -> tuple[float, float]:
    low, *_, high = law.cuts(**p)
    return low, high


def _batches_by_definition(law: Law, p: Numbers) -> Sequence[Any]:
    points = np.array(_common_points(law))
    rows = np.stack([law.log_density(points, **q) for q in law.parameters])
    count, width = rows.shape
    shapes = [count, 1, 2, count, width, 5, 2, count, width]
    return rows, np.stack([rows, rows]), [float(size) for size in shapes]


def _outside(law: Law, p: Numbers) -> Sequence[Any]:
    """Return of each number outside of the support, and of a NaN in place of each parameter,
    whether torch refuses it."""
    law_of_torch = law.make(**_tensors(p))
    refused = [_refuses(law_of_torch.log_prob, x) for x in _numbers_outside(law, p)]
    for name in _checked(law, p):
        refused.append(_refuses(partial(_made_with, law, p, name), math.nan))
    return (refused,)


def _checked(law: Law, p: Numbers) -> list[str]:
    return [name for name in p if name not in law.unchecked]


def _made_with(law: Law, p: Numbers, name: str, x: Tensor) -> Any:
    return law.make(**{**_tensors(p), name: x})


def _refuses(f: Callable[[Tensor], Any], x: float) -> float:
    try:
        f(torch.tensor(x, dtype=_WIDE))
    except ValueError:
        return 1.0
    return 0.0


def _numbers_outside(law: Law, p: Numbers) -> list[float]:
    low, high = _ends(law, p)
    found = [math.nan]
    if law.periodic:
        return found
    if law.whole:
        found += [-1.0, 0.5]
    elif not math.isinf(low):
        found.append(low - 0.5)
    if not math.isinf(high) and high < 6:
        found.append(high + 1.0)
    return found


def _outside_by_definition(law: Law, p: Numbers) -> Sequence[Any]:
    return ([1.0] * (len(_numbers_outside(law, p)) + len(_checked(law, p))),)


def _draws(law: Law, p: Numbers) -> Sequence[Any]:
    """Return whether draws are of the support and have a density, and whether there are as many
    below a point as should be."""
    torch.manual_seed(7)
    law_of_torch = law.make(**_tensors(p))
    draws = law_of_torch.sample((DRAWS,))
    dense = not bool(law_of_torch.log_prob(draws).isnan().any())
    low, high = _ends(law, p)
    far = law.whole or math.isinf(high)
    inside = bool((draws >= low).all()) and (far or bool((draws <= high).all()))
    shares = [float((draws <= x).to(_WIDE).mean()) for x in _points(law, p)]
    near = [
        abs(share - law.probability(x, **p)) < 6 * 0.5 / math.sqrt(DRAWS)
        for share, x in zip(shares, _points(law, p), strict=True)
    ]
    sizes = [float(size) for size in draws.shape]
    return float(inside), float(all(near)), sizes, float(dense)


def _draws_by_definition(law: Law, p: Numbers) -> Sequence[Any]:
    return 1.0, 1.0, [float(DRAWS)], 1.0


def _draw_slopes(law: Law, p: Numbers) -> Sequence[Any]:
    """Return how the probability up to a draw changes with a parameter, which is not at all."""
    torch.manual_seed(11)
    leaves = _leaves(p)
    draws = law.make(**leaves).rsample((6,))
    # a fitted polynomial of torch has an error of 10^-4, a difference of integrals one of 10^-12
    known = 1e-3 if law.fitted else 1e-9
    changes = []
    for draw in draws:
        slopes = _slopes(draw, list(leaves.values()))
        x = float(draw)
        density = float(np.exp(law.log_density(np.array(x), **p)))
        by_parameters = _by_parameters(lambda x=x, **q: law.probability(x, **q), p)
        total = np.array(by_parameters) + density * torch.stack(slopes).numpy()
        changes.append(np.where(np.abs(total) < known, 0.0, total))
    return (np.stack(changes),)


def _draw_slopes_by_definition(law: Law, p: Numbers) -> Sequence[Any]:
    return ([[0.0] * len(p)] * 6,)


QUESTIONS: dict[str, tuple[Question, Question]] = {
    "densities": (_densities, _densities_by_definition),
    "probabilities": (_probabilities, _probabilities_by_definition),
    "quantiles": (_quantiles, _quantiles_by_definition),
    "no_quantiles": (_no_quantiles, _no_quantiles_by_definition),
    "beyond": (_beyond, _beyond_by_definition),
    "certain": (_certain, _certain_by_definition),
    "moments": (_moments, _moments_by_definition),
    "modes": (_modes, _modes_by_definition),
    "entropies": (_entropies, _entropies_by_definition),
    "batches": (_batches, _batches_by_definition),
    "outside": (_outside, _outside_by_definition),
    "draws": (_draws, _draws_by_definition),
    "draw_slopes": (_draw_slopes, _draw_slopes_by_definition),
}


def samples_of(name: str) -> Callable[[torch.dtype, str], list[dict[str, Any]]]:
    """Return the samples of a law."""

    def samples(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
        return [
            {"args": [{"shape": [2]}], "kwargs": {"made": made, "number": number}}
            for made in _asked(LAWS[name])
            for number, p in enumerate(LAWS[name].parameters)
            if _has_answer(LAWS[name], made, p)
        ]

    return samples


def _has_answer(law: Law, made: str, p: Numbers) -> bool:
    """Return whether integrals of the definition tell what the answer is."""
    if made == "moments" and not law.moments(**p):
        return False
    return made not in ("moments", "entropies", "quantiles") or not law.steep(**p)


def _asked(law: Law) -> list[str]:
    """Return what may be asked of a law."""
    missing = set()
    if not max(law.moments(**p) for p in law.parameters):
        missing.add("moments")
    if law.whole or not law.follows_cdf:
        missing.add("draw_slopes")
    if law.periodic:
        missing |= {"draws", "beyond"}
    if not (law.whole and "probs" in law.parameters[0]) or law.endless:
        missing.add("certain")
    if law.whole or not any(_sides(law, p) for p in law.parameters):
        missing.add("beyond")
    return [made for made in QUESTIONS if made not in missing]


def _row(law: Law) -> Row:
    def program(mark: Tensor, *, made: str, number: int) -> Results:
        try:
            found = QUESTIONS[made][0](law, law.parameters[number])
        except NotImplementedError as error:
            raise Unsuitable(f"torch lacks it: {error}") from error
        return _as_results(found)

    def definition(mark: Tensor, *, made: str, number: int) -> Results:
        return _as_results(QUESTIONS[made][1](law, law.parameters[number]))

    return Row(program, definition)


def _as_results(found: Sequence[Any]) -> Results:
    """Return all answers in one vector, in which a slope of 0 has an error beside others."""
    return (torch.cat([torch.as_tensor(one, dtype=_WIDE).detach().flatten() for one in found]),)


# --- divergences ----------------------------------------------------------------------------------


def _registered() -> list[tuple[str, str]]:
    """Return the names of pairs of laws whose divergence torch has a formula for."""
    classes = {name: type(law.make(**_tensors(law.parameters[0]))) for name, law in LAWS.items()}
    pairs = itertools.product(classes, repeat=2)
    known = td.kl._KL_REGISTRY
    of_known = [pair for pair in pairs if (classes[pair[0]], classes[pair[1]]) in known]
    return [(p, q) for p, q in of_known if LAWS[p].whole == LAWS[q].whole]


def _divergence(first: Law, second: Law, p: Numbers, q: Numbers) -> float:
    """Return the mean of the difference of the logarithms of densities."""
    x, weights = first.nodes(INF, p, second.cuts(**q))
    log_p, log_q = first.log_density(x, **p), second.log_density(x, **q)
    with np.errstate(all="ignore"):
        share = np.exp(log_p) * weights
        counts = (share > 1e-300) & ~np.isnan(log_q)  # a formula may have no value at an end
        total = float(np.where(counts, share * (log_p - log_q), 0.0).sum())
    # an integral that does not converge grows with the last nodes, which are at 10^50
    return total if abs(total) < 1e12 else INF


def _divergence_row(name: str, others: Sequence[str]) -> Row:
    law = LAWS[name]

    def program(mark: Tensor, *, made: str, other: str, number: int) -> Results:
        first = law.make(**_tensors(law.parameters[number]))
        second = LAWS[other].make(**_tensors(_parameters_of(other, number)))
        try:
            return _as_results([td.kl_divergence(first, second)])
        except NotImplementedError as error:
            raise Unsuitable("torch lacks a part of the divergence") from error

    def definition(mark: Tensor, *, made: str, other: str, number: int) -> Results:
        p, q = law.parameters[number], _parameters_of(other, number)
        return _as_results([_divergence(law, LAWS[other], p, q)])

    return Row(program, definition)


def _parameters_of(name: str, number: int) -> Numbers:
    """Return the parameters of the second law: others than those of the same number."""
    found = LAWS[name].parameters
    return found[(number + 1) % len(found)]


def samples_of_divergences(
    name: str,
) -> Callable[[torch.dtype, str], list[dict[str, Any]]]:
    """Return the samples of divergences from a law."""

    def samples(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
        return [
            {
                "args": [{"shape": [2]}],
                "kwargs": {"made": "divergences", "other": other, "number": number},
            }
            for other in OTHERS[name]
            for number in range(len(LAWS[name].parameters))
        ]

    return samples


OTHERS: dict[str, list[str]] = {}
for _first, _second in _registered():
    OTHERS.setdefault(_first, []).append(_second)
"""By the name of a law, those to which torch has a formula of the divergence."""

SAMPLES = {name: samples_of(name) for name in LAWS} | {
    f"from_{name}": samples_of_divergences(name) for name in OTHERS
}
"""The samples of each row."""

globals().update({name: _row(law) for name, law in LAWS.items()})
globals().update({f"from_{name}": _divergence_row(name, OTHERS[name]) for name in OTHERS})
globals().update({f"samples_of_{name}": samples for name, samples in SAMPLES.items()})
