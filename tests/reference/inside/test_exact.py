"""Exact derivatives against closed forms, and what has none.

Inside: gen.reference.exact and gen.reference.scalars. A cell compares a target with these numbers
in double precision. Whether they are right to all digits only closed forms of many digits show.
"""

from collections import Counter
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from mpmath import mp, mpf

from gen.reference.exact import Exact, Function, Symbol, partial
from gen.reference.scalars import ACCURATE, DERIVATIVES, SCALARS, Undefined

D = torch.float64
SIGMOID = {
    0: lambda s: s,
    1: lambda s: s * (1 - s),
    2: lambda s: s * (1 - s) * (1 - 2 * s),
    3: lambda s: s * (1 - s) * (1 - 6 * s + 6 * s * s),
}


def near(found: Any, right: Any) -> None:
    with mp.workprec(2000):
        assert abs(mpf(found) - right) <= abs(right) * mpf(2) ** -50, (found, right)


@pytest.mark.parametrize("order", [0, 1, 2, 3])
@pytest.mark.parametrize("x", [-300.0, -20.0, -1e-30, 1e-8, 0.3, 50.0, 700.0])
def test_a_sigmoid_has_the_derivatives_of_its_logistic_equation_far_into_its_tails(
    order: int, x: float
) -> None:
    with mp.workprec(6000):
        right = SIGMOID[order](1 / (1 + mp.exp(-mpf(x))))
    near(partial(SCALARS["torch.sigmoid"], (order,), (x,)), right)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("x", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_a_logarithm_has_powers_for_derivatives_at_every_size(order: int, x: float) -> None:
    found = partial(SCALARS["torch.log"], (order,), (x,))
    with mp.workprec(300):
        near(found, (-1) ** (order - 1) * mp.factorial(order - 1) / mpf(x) ** order)


@pytest.mark.parametrize("orders", [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1), (0, 3)])
def test_a_power_has_the_mixed_derivatives_that_its_logarithm_gives(
    orders: tuple[int, int],
) -> None:
    x, y = mpf("2.5"), mpf(-3)
    log = mp.log(x)
    right = {
        (0, 0): x**y,
        (1, 0): y * x ** (y - 1),
        (0, 1): x**y * log,
        (1, 1): x ** (y - 1) * (1 + y * log),
        (2, 0): y * (y - 1) * x ** (y - 2),
        (2, 1): x ** (y - 2) * (2 * y - 1 + y * (y - 1) * log),
        (0, 3): x**y * log**3,
    }
    assert abs(partial(SCALARS["torch.pow"], orders, (2.5, -3.0)) - right[orders]) < 1e-12


@pytest.mark.parametrize("name", sorted(name for name in DERIVATIVES if "div" not in name))
def test_a_closed_form_is_the_derivative_that_differences_give(name: str) -> None:
    args = [2] if "gamma_p" in name else [1] if "polygamma" in name else []

    def f(x: Any) -> Any:
        return SCALARS[name](x, *args)

    def closed(order: int, x: Any) -> Any:
        return DERIVATIVES[name](order, x, *args)

    for order in (1, 2, 3):
        near(partial(f, (order,), (2.75,), closed), partial(f, (order,), (2.75,)))


@pytest.mark.parametrize(
    ("name", "point", "orders"),
    [
        ("torch.abs", (0.0,), (1,)),
        ("torch.maximum", (2.0, 2.0), (1, 1)),
        ("torch.hypot", (0.0, 0.0), (1, 0)),
        ("torch.sqrt", (0.0,), (1,)),
    ],
)
def test_there_is_no_derivative_at_a_kink_a_tie_or_an_end_of_the_domain(
    name: str, point: Any, orders: Any
) -> None:
    with pytest.raises(Undefined):
        partial(SCALARS[name], orders, point)


@pytest.mark.parametrize(
    ("name", "x"),
    [("torch.log", -1.0), ("torch.acos", 2.0), ("torch.digamma", -3.0), ("torch.reciprocal", 0.0)],
)
def test_there_is_no_value_outside_of_the_domain(name: str, x: float) -> None:
    with pytest.raises(Undefined):
        partial(SCALARS[name], (0,), (x,))


def test_there_is_no_second_derivative_where_there_is_no_first(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        Function("torch.abs", lambda elements: (list(elements), {})).partial((2,), (0.0,)) is None
    )
    assert Function("torch.abs", lambda elements: (list(elements), {})).partial((2,), (1.0,)) == 0


def rounded_quotient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *point: float
) -> float | None:
    """Return the first derivative of a rounded quotient by the dividend."""
    monkeypatch.chdir(tmp_path)
    function = Function(
        "torch.div.floor_rounding", lambda elements: (list(elements), {"rounding_mode": "floor"})
    )
    return function.partial((1, 0), point)


def test_a_rounded_quotient_is_flat_between_its_jumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rounded_quotient(tmp_path, monkeypatch, 5.0, 2.0) == 0
    assert rounded_quotient(tmp_path, monkeypatch, 6.0, 2.0) is None
    # each step of a difference passes many jumps
    assert rounded_quotient(tmp_path, monkeypatch, 2.0**-500 + 2.0**-550, 2.0**-1000) is None


def test_an_even_function_has_a_zero_slope_at_zero() -> None:
    assert abs(partial(SCALARS["torch.cos"], (1,), (0.0,))) < 1e-60
    assert abs(partial(SCALARS["torch.square"], (3,), (0.0,))) < 1e-60


@pytest.mark.parametrize("name", sorted(ACCURATE - {name for name in ACCURATE if "gamma_" in name}))
def test_functions_called_accurate_are_so_with_few_bits(name: str) -> None:
    arguments = len(signature(SCALARS[name]).parameters)
    for x in (0.3, 6.0):
        given = (0,) * arguments, (x,) * arguments
        try:
            near(partial(SCALARS[name], *given, accurate=True), partial(SCALARS[name], *given))
        except Undefined:
            assert "erf" in name  # inverse error functions take no 6


def test_pipelines_are_sums_of_products_of_inputs_and_derivatives() -> None:
    exact = Exact()

    def pull(x: Any, v: Any) -> Any:
        return exact.vjp(exact.root, x)[1]((v,))

    x, v, w = map(Symbol, range(3))
    by_x, by_v = exact.vjp(pull, x, v)[1]((w,))
    assert by_x.terms == Counter({((1, 2), (2,)): 1})  # v w f''(x)
    assert by_v.terms == Counter({((2,), (1,)): 1})  # w f'(x)
    _, (pushed,) = exact.jvp(exact.root, (Symbol(0), Symbol(1)), (Symbol(2), Symbol(3)))
    assert pushed.terms == Counter({((2,), (1, 0)): 1, ((3,), (0, 1)): 1})


def test_a_third_derivative_of_a_cube_is_six(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SCALARS, "the cube", lambda x: x**3)
    exact, places = Exact(), list(map(Symbol, range(4)))

    def first(x: Any, t: Any) -> Any:
        return exact.jvp(exact.root, (x,), (t,))[1]

    def second(x: Any, t: Any, s: Any) -> Any:
        return exact.jvp(lambda x: first(x, t), (x,), (s,))[1]

    (third,) = exact.jvp(lambda x: second(x, places[1], places[2]), (places[0],), (places[3],))[1]
    inputs = [
        torch.tensor([2.0, 1e10], dtype=D),
        *(torch.full((2,), k, dtype=D) for k in (2.0, 3.0, 5.0)),
    ]
    found = Function("the cube", lambda elements: (list(elements), {})).evaluate(third, inputs)
    torch.testing.assert_close(found.value, torch.full((2,), 6.0 * 30, dtype=D), rtol=1e-15, atol=0)
    assert not found.unknown.any()
