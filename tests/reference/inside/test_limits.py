"""What limits say at infinities, NaN and poles.

Inside: gen.reference.limits. A cell leaves out the points at which nothing is known, so it cannot
show what is said of a point where torch itself is wrong.
"""

import math
from typing import Any

import pytest

from gen.reference.exact import Function
from gen.reference.limits import at_edge

INF, NAN = math.inf, math.nan


@pytest.fixture(autouse=True)
def _stores_here(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gen.reference.exact.CACHE", tmp_path)
    monkeypatch.setattr("gen.reference.exact._STORES", {})


def at(op: str, orders: tuple[int, ...], *point: float) -> float | None:
    return at_edge(Function(op, lambda elements: (list(elements), {})), orders, point)


@pytest.mark.parametrize(
    ("op", "point", "value"),
    [
        ("torch.nn.functional.silu", (-INF,), 0.0),
        ("torch.nn.functional.softsign", (INF,), 1.0),
        ("torch.sinc", (INF,), 0.0),
        ("torch.i0", (INF,), INF),
        ("torch.log", (0.0,), -INF),
        ("torch.reciprocal", (-0.0,), -INF),
        ("torch.atan", (INF,), math.pi / 2),
        ("torch.logaddexp", (INF, 1.0), INF),
        ("torch.hypot", (INF, NAN), INF),
        ("torch.pow", (-0.0, -0.5), INF),
        ("torch.floor_divide", (-2.0, INF), -1.0),
        ("torch.fmax", (NAN, 1.0), 1.0),
    ],
)
def test_values_at_infinity_are_limits_or_what_a_standard_says(
    op: str, point: tuple[float, ...], value: float
) -> None:
    assert at(op, (0,) * len(point), *point) == pytest.approx(value)


def test_nan_gives_nan_but_not_a_slope_that_is_the_same_everywhere() -> None:
    assert math.isnan(at("torch.exp", (0,), NAN) or 0.0)
    assert math.isnan(at("torch.nn.functional.hardsigmoid", (1,), NAN) or 0.0)
    assert at("torch.neg", (1,), NAN) == -1.0


def test_slopes_at_infinity_are_limits() -> None:
    assert at("torch.nn.functional.gelu", (1,), INF) == 1.0
    assert at("torch.nn.functional.softsign", (1,), INF) == 0.0


def test_what_oscillates_or_depends_on_the_way_has_no_limit() -> None:
    assert at("torch.sin", (0,), INF) is None
    assert at("torch.nn.functional.smooth_l1_loss", (0, 0), INF, INF) is None
    assert at("torch.xlogy", (0, 0), 0.0, INF) is None
