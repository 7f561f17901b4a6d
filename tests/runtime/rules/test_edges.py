"""Derivatives where formulas overflow, cancel or divide zero by zero have the true value, to second
order, whatever torch returns."""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch

from runtime import autograd, tensor, unwrap
from runtime.checkpoint import checkpoint
from runtime.func import grad, hessian, jvp, vmap

INF = math.inf
D = torch.float64
special = torch.special


def derivatives(f: Callable[[Any], Any], x: float, dtype: torch.dtype, n: int) -> list[float]:
    """The first ``n`` derivatives of ``f`` at ``x``."""
    found = []
    for _ in range(n):
        f = grad(f)
        found.append(float(f(torch.tensor(x, dtype=dtype))))
    return found


def exact(f: Callable[[Any], Any], x: float, dtype: torch.dtype, n: int) -> list[float]:
    """The same by differences in 60 digits, at the very number that ``dtype`` makes of ``x``."""
    at = mpmath.mpf(float(torch.tensor(x, dtype=dtype)))
    with mpmath.workdps(60):
        step = mpmath.mpf(10) ** -14 * max(abs(at), mpmath.mpf(10) ** -6)
        return [float(mpmath.re(mpmath.diff(f, at, k + 1, h=step))) for k in range(n)]


def erfcx(x: Any) -> Any:
    return mpmath.exp(x * x) * mpmath.erfc(x)


def scaled_bessel(order: int) -> Callable[[Any], Any]:
    return lambda x: mpmath.besseli(order, x) * mpmath.exp(-abs(x))


SCALARS: list[tuple[str, Callable[[Any], Any], Callable[[Any], Any], list[float]]] = [
    (
        "sinc",
        torch.sinc,
        lambda x: mpmath.sinc(mpmath.pi * x),
        [1e-9, -1e-4, 0.01, 0.3, 0.49, 0.51, 1.0],
    ),
    ("exp2", torch.exp2, lambda x: mpmath.mpf(2) ** x, [-3.3, 0.0, 1.7, 20.0, 120.0]),
    ("expm1", torch.expm1, mpmath.expm1, [-40.0, -1e-9, 3.0]),
    ("asin", torch.asin, mpmath.asin, [1 - 1e-6, -0.3, 1e-9]),
    ("acos", torch.acos, mpmath.acos, [-1 + 1e-6, 0.49]),
    ("atanh", torch.atanh, mpmath.atanh, [1 - 1e-6, -0.3]),
    ("asinh", torch.asinh, mpmath.asinh, [1e15, -1e18, 0.1]),
    ("acosh", torch.acosh, mpmath.acosh, [1 + 1e-5, 1e15]),
    ("erfcx", special.erfcx, erfcx, [-1.0, 5.0, 9.9, 10.1, 40.0]),
    ("i0e", special.i0e, scaled_bessel(0), [0.5, 59.0, -61.0, 300.0]),
    ("i1", special.i1, lambda x: mpmath.besseli(1, x), [1e-9, 0.3, -0.99, 1.01, 10.0]),
    ("i1e", special.i1e, scaled_bessel(1), [1e-9, 0.3, 59.0, -61.0, 300.0]),
    (
        "log_ndtr",
        special.log_ndtr,
        lambda x: mpmath.log(mpmath.erfc(-x / mpmath.sqrt(2)) / 2),
        [-30.0, -1.0, 0.5, 4.0],
    ),
    ("logit", torch.logit, lambda x: mpmath.log(x / (1 - x)), [1e-9, 0.3, 1 - 1e-6]),
    (
        "logaddexp",
        lambda x: torch.logaddexp(x, torch.ones_like(x)),
        lambda x: mpmath.log(mpmath.exp(x) + mpmath.e),
        [-30.0, 1.0, 5.0],
    ),
]


@pytest.mark.parametrize("dtype", [torch.float32, D])
@pytest.mark.parametrize(
    ("f", "true", "points"), [s[1:] for s in SCALARS], ids=[s[0] for s in SCALARS]
)
def test_two_derivatives_have_all_their_digits(
    f: Any, true: Any, points: list[float], dtype: torch.dtype
) -> None:
    for x in points:
        found, expected = (
            torch.tensor(derivatives(f, x, dtype, 2), dtype=D),
            torch.tensor(exact(true, x, dtype, 2), dtype=D),
        )
        rtol, atol = (4e-4, 1e-7) if dtype is torch.float32 else (1e-9, 1e-13)
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


def test_sinc_at_zero() -> None:
    assert derivatives(torch.sinc, 0.0, D, 4) == pytest.approx(
        [0.0, -(math.pi**2) / 3, 0.0, math.pi**4 / 5], rel=1e-12
    )
    z = torch.tensor(1e-5 + 1e-5j, dtype=torch.complex128)
    tangent = jvp(torch.sinc, (z,), (torch.ones_like(z),))[1]
    torch.testing.assert_close(tangent, -(math.pi**2) / 3 * z, rtol=1e-8, atol=0)


def test_the_derivative_of_exp2_is_finite_as_long_as_it_fits() -> None:
    x = torch.tensor(128.2)
    assert torch.exp2(x).isinf()
    assert float(grad(torch.exp2)(x)) == pytest.approx(math.log(2) * 2.0 ** float(x), rel=1e-5)
    y = torch.tensor(128.9)
    assert float(grad(grad(torch.exp2))(y)) == pytest.approx(
        math.log(2) ** 2 * 2.0 ** float(y), rel=1e-5
    )


def test_bessel_functions_that_overflow_have_infinite_derivatives() -> None:
    assert derivatives(torch.i0, 100.0, torch.float32, 2) == [INF, INF]


class TestProducts:
    def test_zero_wins_over_an_overflow_of_the_other_factors(self) -> None:
        x = torch.tensor([[1e13, 0, 0], [1e13, 1e13, 0], [1e13] * 3])
        assert (grad(torch.prod)(x) == 0).all()
        assert (hessian(torch.prod)(x) == 0).all()

    def test_with_one_zero_its_gradient_is_the_product_of_the_others(self) -> None:
        x = torch.tensor([1e13, 0.0, 1e13, 1e13, 2.0])
        assert grad(torch.prod)(x).tolist() == [0, INF, 0, 0, 0]
        y = torch.tensor([3.0, 0.0, 5.0, 2.0])
        assert grad(torch.prod)(y).tolist() == [0, 30, 0, 0]
        assert hessian(torch.prod)(y).tolist() == [
            [0, 10, 0, 0],
            [10, 0, 6, 15],
            [0, 6, 0, 0],
            [0, 15, 0, 0],
        ]

    def test_with_two_zeros_only_their_second_derivative_is_left(self) -> None:
        h = hessian(torch.prod)(torch.tensor([1e30, 1e30, 0.0, 0.0]))
        expected = torch.zeros(4, 4)
        expected[2, 3] = expected[3, 2] = INF
        torch.testing.assert_close(h, expected)

    @pytest.mark.parametrize("dim", [0, 1])
    def test_along_a_dimension_each_slice_by_itself(self, dim: int) -> None:
        x = torch.tensor([[1e20, 2.0, 0.0], [1e20, 3.0, 0.0], [0.0, 4.0, 1e20], [0.0, 5.0, 1e20]])
        rows = x.movedim(dim, -1)
        found = grad(lambda t: t.prod(dim).sum())(x).movedim(dim, -1)
        torch.testing.assert_close(found, torch.stack([grad(torch.prod)(row) for row in rows]))
        torch.testing.assert_close(vmap(grad(torch.prod))(rows), found)

    def test_cumprod_past_zeros(self) -> None:
        x = torch.tensor([2.0, 0.0, 1e30, 1e30, 0.0, 3.0])
        # of y = (x0, x0·x1, x0·x1·x2, …): by x0 one, by x1 the products of the others up
        # to the next zero
        assert grad(lambda t: t.cumprod(0)[:3].sum())(x).tolist() == pytest.approx(
            [1, 2 + 2e30, 0, 0, 0, 0]
        )
        assert not grad(lambda t: t.cumprod(0)[5])(x).isnan().any()
        y = torch.tensor([2.0, 0.0, 5.0], dtype=D)
        # x0 + x0·x1 + x0·x1·x2
        assert hessian(lambda t: t.cumprod(0).sum())(y).tolist() == [
            [0, 6, 0],
            [6, 0, 2],
            [0, 2, 0],
        ]


class TestInfiniteCotangents:
    """An element that takes no part has a gradient of zero, also where what follows has an infinite
    derivative or none."""

    CASES: tuple[tuple[str, Callable[[Any], Any], list[float], list[bool]], ...] = (
        ("prod with two zeros", torch.prod, [0.0, 1.0, 2.0, 0.0], [False] * 4),
        ("prod with one zero", torch.prod, [0.0, 1.0, 2.0], [True, False, False]),
        ("prod along a dimension", lambda x: x.prod(0), [0.0, 1.0, 2.0, 0.0], [False] * 4),
        ("max", torch.max, [0.0, 3.0, 1.0], [False, True, False]),
        ("min", torch.min, [0.0, 3.0, 1.0], [True, False, False]),
        ("median", torch.median, [0.0, 3.0, 1.0], [False, False, True]),
        ("std of equal elements", torch.std, [2.0, 2.0], [False, False]),
        ("std_mean of equal elements", lambda x: torch.std_mean(x)[0], [2.0, 2.0], [False, False]),
        ("norm of zeros", torch.norm, [0.0, 0.0], [False, False]),
        ("3-norm of zeros", lambda x: x.norm(3), [0.0, 0.0], [False, False]),
        ("0-norm", lambda x: x.norm(0), [0.0, 2.0], [False, False]),
        (
            "distance of equal points",
            lambda x: torch.dist(x, x.detach()),
            [1.0, 2.0],
            [False, False],
        ),
        (
            "renorm below the limit",
            lambda x: x.view(2, 1).renorm(2, 0, 9.0)[0],
            [1.0, 2.0],
            [True, False],
        ),
        ("power zero", lambda x: x**0, [0.0, 2.0], [False, False]),
        ("tensor of powers", lambda x: x ** torch.tensor([0.0, 2.0]), [0.0, 2.0], [False, True]),
        ("a power of zero", lambda x: 0.0**x, [1.0, 2.0], [False, False]),
        ("sinc at zero", torch.sinc, [0.0, 0.5], [False, True]),
        (
            "logit beyond its limits",
            lambda x: torch.logit(x, 0.1),
            [0.0, 0.5, 1.0],
            [False, True, False],
        ),
    )

    @pytest.mark.parametrize("cotangent", [INF, math.nan])
    @pytest.mark.parametrize(
        ("f", "x", "takes_part"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
    )
    def test_reach_only_what_takes_part(
        self, f: Any, x: list[float], takes_part: list[bool], cotangent: float
    ) -> None:
        at = tensor(x, dtype=D, requires_grad=True)
        out = f(at)
        (found,) = autograd.grad(out, at, torch.full_like(out, cotangent).detach())
        assert (found != 0).tolist() == takes_part
        assert (~found.isfinite()).tolist() == takes_part

    def test_the_slope_of_a_power_by_its_exponent_where_the_exponent_is_zero(self) -> None:
        x, y = torch.tensor([2.0, 0.5, 40.0], dtype=D), torch.zeros(3, dtype=D)
        mixed = grad(lambda y: grad(lambda x: x.pow(y).sum())(x).sum())(y)
        torch.testing.assert_close(mixed, 1 / x)
        other = jvp(
            lambda y: jvp(lambda x: x.pow(y), (x,), (torch.ones_like(x),))[1],
            (y,),
            (torch.ones_like(y),),
        )[1]
        torch.testing.assert_close(other, 1 / x)

    def test_second_derivatives_of_a_clamped_logit_are_zero(self) -> None:
        x = torch.tensor([-INF, 0.0, 1.0], dtype=D)
        assert hessian(lambda x: torch.logit(x, 0.2).sum())(x).tolist() == [[0.0] * 3] * 3

    def test_second_derivatives_of_powers_of_zero_by_the_exponent_are_zero(self) -> None:
        x, y = torch.zeros(2, dtype=D), torch.tensor([1.0, 2.0], dtype=D)
        cotangent = torch.ones(2, dtype=D)
        by_cotangent = grad(lambda c: grad(lambda y: (c * x.pow(y)).sum())(y).sum())(cotangent)
        assert by_cotangent.tolist() == [0.0, 0.0]

    def test_the_second_derivative_of_hypot_where_one_argument_is_far_larger(self) -> None:
        x, y = torch.tensor(1e10, dtype=D), torch.tensor(2.0, dtype=D)
        torch.testing.assert_close(
            grad(grad(torch.hypot))(x, y), torch.tensor(4e-30, dtype=D), rtol=1e-12, atol=0
        )
        torch.testing.assert_close(
            grad(grad(torch.hypot), 1)(x, y), torch.tensor(-2e-20, dtype=D), rtol=1e-12, atol=0
        )

    def test_of_a_root_of_a_product(self) -> None:
        x = torch.tensor([0.0, 1.0, 2.0, 0.0])
        assert grad(lambda x: x.prod().sqrt() + x.sum())(x).tolist() == [1.0] * 4

    @pytest.mark.parametrize("f", [torch.prod, lambda x: torch.sinc(x).sum()], ids=["prod", "sinc"])
    def test_second_derivatives_where_the_first_is_zero(self, f: Any) -> None:
        x = torch.zeros(2, dtype=D)
        expected = (
            [[0.0, 1.0], [1.0, 0.0]]
            if f is torch.prod
            else [[-(math.pi**2) / 3, 0.0], [0.0, -(math.pi**2) / 3]]
        )
        torch.testing.assert_close(hessian(f)(x), torch.tensor(expected, dtype=D))


class TestLogarithmsOfSums:
    """+inf takes all, and several share equally; where all are -inf nobody has a gradient, as
    in ``_safe_softmax``."""

    CASES = (
        ([INF, 0.0], [1.0, 0.0]),
        ([INF, 1.0, INF], [0.5, 0.0, 0.5]),
        ([-INF, -INF], [0.0, 0.0]),
        ([-INF, 0.0], [0.0, 1.0]),
        ([-INF, INF], [0.0, 1.0]),
    )

    @pytest.mark.parametrize(("x", "expected"), CASES)
    @pytest.mark.parametrize(
        "f",
        [lambda t: t.logsumexp(0), lambda t: t.logcumsumexp(0)[-1]],
        ids=["logsumexp", "logcumsumexp"],
    )
    def test_at_infinities(self, f: Any, x: list[float], expected: list[float]) -> None:
        at = torch.tensor(x, dtype=D)
        assert grad(f)(at).tolist() == expected
        assert (hessian(f)(at) == 0).all()

    @pytest.mark.parametrize("f", [torch.logaddexp, torch.logaddexp2])
    def test_of_two(self, f: Any) -> None:
        for x, expected in (
            case for case in (*self.CASES, ([INF, INF], [0.5, 0.5])) if len(case[0]) == 2
        ):
            at = torch.tensor(x, dtype=D)
            assert grad(lambda t: f(t[0], t[1]))(at).tolist() == expected
            assert (hessian(lambda t: f(t[0], t[1]))(at) == 0).all()

    @pytest.mark.parametrize("f", [torch.logaddexp, torch.logaddexp2])
    def test_far_apart(self, f: Any) -> None:
        x = torch.tensor([5000.0, -5000.0], dtype=D)
        assert grad(lambda t: f(t[0], t[1]))(x).tolist() == [1.0, 0.0]
        assert (hessian(lambda t: f(t[0], t[1]))(x) == 0).all()


class TestScales:
    """Single precision at scales whose squares do not fit agrees with double precision."""

    @pytest.mark.parametrize("scale", [1e19, 1e-19, 1e-30])
    @pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 3)])
    def test_singular_values(self, scale: float, shape: tuple[int, int]) -> None:
        a = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * scale
        weights = torch.linspace(-1, 1, a.numel()).reshape(shape)

        def second(x: torch.Tensor) -> Any:
            return grad(
                lambda t: (
                    grad(lambda u: torch.linalg.svdvals(u)[0])(t) * weights.to(t.dtype)
                ).sum()
            )(x)

        for f in (grad(lambda t: torch.linalg.svdvals(t).sum()), second):
            expected = f(a.double())
            torch.testing.assert_close(
                f(a).double() / expected.abs().max(),
                expected / expected.abs().max(),
                rtol=0,
                atol=2e-5,
            )

    @pytest.mark.parametrize("p", [1.5, 2.5, 3, 4, 6])
    @pytest.mark.parametrize("scale", [1e-50, 1e50])
    def test_gradients_of_p_norms_do_not_depend_on_the_scale(self, p: float, scale: float) -> None:
        x = torch.tensor([3.0, -4.0, 0.0], dtype=D)
        slope = grad(lambda t: torch.linalg.vector_norm(t, p))
        torch.testing.assert_close(slope(x * scale), slope(x), rtol=1e-9, atol=0)
        curvature = hessian(lambda t: torch.linalg.vector_norm(t, p))
        torch.testing.assert_close(
            curvature(x * scale) * scale, curvature(x), rtol=1e-9, atol=1e-12
        )
        assert p < 2 or not curvature(x).isnan().any()

    def test_angles(self) -> None:
        for scale in (1e25, 1e-25):
            y, x = torch.tensor(3 * scale), torch.tensor(4 * scale)
            found = torch.stack(grad(torch.atan2, (0, 1))(y, x)) * scale
            torch.testing.assert_close(found, torch.tensor([4 / 25, -3 / 25]))

    def test_quotients_of_addcdiv(self) -> None:
        one, big = torch.tensor(0.0), torch.tensor(1e25)
        assert float(grad(lambda t: torch.addcdiv(one, big, t))(big)) == pytest.approx(-1e-25)


class TestXlogy:
    @pytest.mark.parametrize(("f", "at"), [(torch.xlogy, 0.0), (special.xlog1py, -1.0)])
    def test_where_both_vanish_the_function_is_constant(self, f: Any, at: float) -> None:
        assert float(grad(f, 1)(torch.tensor(0.0), torch.tensor(at))) == 0

    def test_the_density_of_a_gamma_distribution_at_zero(self) -> None:
        slopes = [
            float(grad(special.gammainc, 1)(torch.tensor(a), torch.tensor(0.0))) for a in (1.0, 2.0)
        ]
        assert slopes == [1.0, 0.0]


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize(
    "f",
    [
        lambda v: torch.nn.functional.rrelu(v, training=True),
        lambda v: torch.nn.functional.rrelu_(v * 1, training=True),
        lambda v: torch.nn.functional.dropout(torch.nn.functional.rrelu(v, training=True), 0.3),
        lambda v: torch.nn.functional.feature_alpha_dropout(v.reshape(1, 8, 1, 1), 0.5).reshape(-1),
        lambda v: torch.nn.functional.gumbel_softmax(v, dim=0) * v,
        lambda v: v * torch.rand_like(v),
    ],
    ids=[
        "rrelu",
        "rrelu_",
        "rrelu_dropout",
        "feature_alpha_dropout",
        "gumbel_softmax",
        "rand_like",
    ],
)
def test_a_checkpoint_draws_again_what_it_drew(f: Any, use_reentrant: bool) -> None:
    def run(g: Any) -> Any:
        x = tensor(torch.linspace(-2, -1, 8).tolist(), requires_grad=True)
        torch.manual_seed(1)
        y = g(x)
        torch.randn(3)
        (y * y).sum().backward()
        return unwrap(y).detach(), unwrap(x.grad)

    expected, found = run(f), run(lambda x: checkpoint(f, x, use_reentrant=use_reentrant))
    torch.testing.assert_close(found, expected)
    assert expected[1].any()


def test_rrelu_in_a_checkpoint_twice() -> None:
    def f(v: Any) -> Any:
        return torch.nn.functional.rrelu(v, training=True) ** 3

    x = tensor([-2.0, -1.5, 1.0], requires_grad=True)
    torch.manual_seed(1)
    y = checkpoint(f, x, use_reentrant=False)
    (g,) = autograd.grad(y.sum(), x, create_graph=True)
    (h,) = autograd.grad(g.sum(), x)
    torch.testing.assert_close(unwrap(h), unwrap(6 * y / x**2).detach())
