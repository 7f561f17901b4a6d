"""Windows, ranges and random factories, in each of their overloads."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Tensor = torch.Tensor
_aten = torch.ops.aten


def windows(x: Tensor) -> list[Tensor]:
    """Return each window of the length of `x`, as a filter and as a period."""
    n, kind = len(x), {"dtype": x.dtype}
    return [
        _aten.bartlett_window.default(n, **kind),
        _aten.bartlett_window.periodic(n, False, **kind),
        _aten.blackman_window.default(n, **kind),
        _aten.blackman_window.periodic(n, False, **kind),
        _aten.hann_window.default(n, **kind),
        _aten.hann_window.periodic(n, False, **kind),
        _aten.hamming_window.default(n, **kind),
        _aten.hamming_window.periodic(n, False, **kind),
        _aten.hamming_window.periodic_alpha(n, False, 0.6, **kind),
        _aten.hamming_window.periodic_alpha_beta(n, False, 0.6, 0.3, **kind),
        _aten.kaiser_window.default(n, **kind),
        _aten.kaiser_window.periodic(n, False, **kind),
        _aten.kaiser_window.beta(n, False, 5.0, **kind),
    ]


def windows_by_definition(x: Tensor) -> list[Tensor]:
    """Return the windows by their formulas."""

    def sampled(shape: Callable[[float], float], period: int) -> Tensor:
        return torch.tensor([shape(k / period) for k in range(len(x))], dtype=x.dtype)

    def bartlett(t: float) -> float:
        return 1 - abs(2 * t - 1)

    def cosines(*factors: float) -> Callable[[float], float]:
        return lambda t: sum(a * math.cos(2 * math.pi * k * t) for k, a in enumerate(factors))

    def kaiser(beta: float) -> Callable[[float], float]:
        return lambda t: _i0(beta * math.sqrt(max(0.0, 1 - (2 * t - 1) ** 2))) / _i0(beta)

    n = len(x)
    blackman, hann, hamming = cosines(0.42, -0.5, 0.08), cosines(0.5, -0.5), cosines(0.54, -0.46)
    pairs = [
        (bartlett, n), (bartlett, n - 1), (blackman, n), (blackman, n - 1), (hann, n),
        (hann, n - 1), (hamming, n), (hamming, n - 1), (cosines(0.6, -0.46), n - 1),
        (cosines(0.6, -0.3), n - 1), (kaiser(12.0), n), (kaiser(12.0), n - 1),
        (kaiser(5.0), n - 1),
    ]  # fmt: skip
    return [sampled(shape, period) for shape, period in pairs]


def _i0(x: float) -> float:
    """Return the modified Bessel function of order 0, by its series."""
    term = total = 1.0
    for k in range(1, 60):
        term *= (x / (2 * k)) ** 2
        total += term
    return total


def ranges(x: Tensor) -> list[Tensor]:
    """Return numbers at equal distances, ends included, and frequencies."""
    kind = {"dtype": x.dtype}
    return [
        _aten.range.default(1, 4, **kind),
        _aten.range.step(1, 6, 2, **kind),
        _aten.fft_fftfreq.default(5, 0.5, **kind),
        _aten.fft_rfftfreq.default(6, 0.5, **kind),
        _aten.scalar_tensor.default(2.5, **kind),
        _aten.tril_indices.default(3, 3, -1),
        _aten.triu_indices.default(3, 3, 1),
        _aten._dim_arange.default(x, 0),
    ]


def ranges_by_definition(x: Tensor) -> list[Tensor]:
    """Return the numbers as they are written by hand."""
    rows = [
        [1, 2, 3, 4],
        [1, 3, 5],
        [0, 0.4, 0.8, -0.8, -0.4],
        [0, 1 / 3, 2 / 3, 1],
        2.5,
    ]
    real = [torch.tensor(row, dtype=x.dtype) for row in rows]
    whole = [[[1, 2, 2], [0, 0, 1]], [[0, 0, 1], [1, 2, 2]], list(range(len(x)))]
    return real + [torch.tensor(row) for row in whole]


def draws_like(x: Tensor) -> list[Tensor]:
    """Return what each random factory draws from one state of a generator."""
    high, sizes = torch.tensor(9), list(x.shape)
    calls: list[Callable[[], Tensor]] = [
        lambda: _aten.rand_like.generator(x, generator=_seeded()),
        lambda: _aten.randn_like.generator(x, generator=_seeded()),
        lambda: _aten.randint_like.generator(x, 9, generator=_seeded()),
        lambda: _aten.randint_like.low_generator_dtype(x, 2, 9, generator=_seeded()),
        lambda: _aten.randint_like.Tensor_generator(x, high, generator=_seeded()),
        lambda: _after_seed(lambda: _aten.randint_like.Tensor(x, high)),
        lambda: _after_seed(lambda: _aten.bernoulli.Tensor(x, torch.full_like(x, 0.5))),
        lambda: _after_seed(lambda: _aten.bernoulli.p(x, 0.5)),
        lambda: _aten.rand.generator(sizes, generator=_seeded(), dtype=x.dtype),
        lambda: _aten.randn.generator(sizes, generator=_seeded(), dtype=x.dtype),
        lambda: _aten.randint.generator(9, sizes, generator=_seeded(), dtype=x.dtype),
        lambda: _aten.randint.low_generator(2, 9, sizes, generator=_seeded(), dtype=x.dtype),
        lambda: _aten.special_gammaln.default(x * x + 1),
    ]
    return [call() for call in calls]


def draws_like_by_definition(x: Tensor) -> list[Tensor]:
    """Return the draws of the factories with sizes, from the same state."""
    kind = {"dtype": x.dtype, "generator": _seeded()}

    def fresh() -> dict[str, object]:
        return {**kind, "generator": _seeded()}

    shape = list(x.shape)
    return [
        torch.rand(shape, **fresh()),  # type: ignore[call-overload]
        torch.randn(shape, **fresh()),  # type: ignore[call-overload]
        torch.randint(9, shape, **fresh()),  # type: ignore[call-overload]
        torch.randint(2, 9, shape, **fresh()),  # type: ignore[call-overload]
        torch.randint(9, shape, **fresh()),  # type: ignore[call-overload]
        torch.randint(9, shape, **fresh()),  # type: ignore[call-overload]
        torch.bernoulli(torch.full_like(x, 0.5), generator=_seeded()),
        torch.empty_like(x).bernoulli_(0.5, generator=_seeded()),
        torch.rand(shape, **fresh()),  # type: ignore[call-overload]
        torch.randn(shape, **fresh()),  # type: ignore[call-overload]
        torch.randint(9, shape, **fresh()),  # type: ignore[call-overload]
        torch.randint(2, 9, shape, **fresh()),  # type: ignore[call-overload]
        torch.tensor([math.lgamma(one * one + 1) for one in x.tolist()], dtype=x.dtype),
    ]


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def _after_seed(call: Callable[[], Tensor]) -> Tensor:
    """Return what a call draws from torch's own generator in the state of :func:`_seeded`."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return call()
