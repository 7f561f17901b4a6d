"""Comparison with the tables of special points: what is wrong there is noticed, in the target and
in the tables, and no cell asks torch for what is right."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from gen.language.validate import load
from gen.outcomes import Mismatch, Vacuous
from gen.reference import lines, special_numbers
from gen.reference.lines import LINES
from gen.reference.special_numbers import POINTWISE
from gen.samples import special_points
from gen.samples.samples import Sample, from_call, make_op
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import case

SPECIAL = {"values": "special"}
D = torch.float64


class Changed(TorchTarget):
    """A target whose results and gradients are changed where they are not finite, are zero or
    tie."""

    def __init__(self, change: Any, of: str = "forward") -> None:
        super().__init__()
        self._change, self._of = change, of

    def forward(self, f: Any) -> Any:
        g = super().forward(f)
        return lambda *xs: tuple(map(self._change, g(*xs))) if self._of == "forward" else g(*xs)

    def vjp(self, f: Any, *primals: Any) -> Any:
        outputs, pullback = super().vjp(f, *primals)
        return outputs, lambda v: tuple(map(self._change, pullback(v)))


def sample(op: str, *args: Any, **kwargs: Any) -> Sample:
    return from_call(make_op(op, {}), 0, args, kwargs)


@pytest.mark.parametrize(
    ("op", "pipeline"),
    [
        ("torch.fmax", "forward"),
        ("torch.maximum", "vjp"),
        ("torch.isclose", "forward"),
        ("torch.amax", "vjp"),
        ("torch.median", "forward"),
        ("torch.cummax", "vjp"),
        ("torch.prod", "jvp"),
        ("torch.linalg.vector_norm", "vjp"),
    ],
)
def test_what_is_right_passes(op: str, pipeline: str) -> None:
    checked = case(op, axes=SPECIAL)
    checked.assert_same(pipeline, against="standard")
    assert checked.compared


@pytest.mark.parametrize(
    ("op", "pipeline", "change"),
    [
        (
            "torch.fmax",
            "forward",
            lambda x: x.nan_to_num(posinf=float("inf"), neginf=-float("inf")),
        ),
        ("torch.ceil", "forward", lambda x: x + 0.0),  # zeros without their sign
        ("torch.floor", "forward", lambda x: x.nan_to_num(nan=float("nan"))),  # no infinity
        ("torch.eq", "forward", torch.logical_not),
        ("torch.argmax", "forward", lambda x: x + (x > 0)),
        ("torch.sum", "forward", lambda x: x.nan_to_num(nan=0.0, posinf=1.0)),
        ("torch.maximum", "vjp", lambda x: torch.where(x == 0, 1e-3, x)),
        ("torch.amin", "vjp", lambda x: x * 2),
    ],
)
def test_a_wrong_target_is_noticed(op: str, pipeline: str, change: Any) -> None:
    with pytest.raises(Mismatch, match=r"entries are off; the first is .*by the tables"):
        case(op, target=Changed(change, pipeline), axes=SPECIAL).assert_same(
            pipeline, against="standard"
        )


def _one_ulp(x: torch.Tensor) -> torch.Tensor:
    return torch.nextafter(x, x * 2) if x.is_floating_point() else x


EXACT = sorted(
    {name for name, rule in POINTWISE.items() if rule.exact}
    | {name for name, line in LINES.items() if line.exact}
)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "op",
    ["nextafter", "floor", "abs", "maximum", "clamp", "where", "fmod", "frexp", "ldexp", "amax",
     "nan_to_num", "median", "cummax", "copysign", "frac"],
)  # fmt: skip
def test_an_exact_op_that_is_an_ulp_off_is_noticed(op: str, dtype: str) -> None:
    assert f"torch.{op}" in EXACT
    with pytest.raises(Mismatch, match="by the tables"):
        case(f"torch.{op}", dtype, target=Changed(_one_ulp), axes=SPECIAL).assert_same(
            "forward", against="standard"
        )


def test_a_product_is_no_neighbour() -> None:
    class Product(TorchTarget):
        def forward(self, f: Any) -> Any:
            return lambda x, y: (x * 1.0,)

    with pytest.raises(Mismatch, match="by the tables"):
        case("torch.nextafter", target=Product(), axes=SPECIAL).assert_same(
            "forward", against="standard"
        )


def test_what_rounds_may_be_an_ulp_off() -> None:
    case("torch.logaddexp", target=Changed(_one_ulp), axes=SPECIAL).assert_same(
        "forward", against="standard"
    )


@pytest.mark.parametrize(
    ("op", "change"),
    [
        ("torch.lerp", torch.nan_to_num),
        ("torch.frac", lambda x: torch.where(x.isnan(), 0.0, x)),
        ("torch.pow", torch.abs),
        ("torch.asin", lambda x: x + 0.0),
        ("torch.frexp", lambda x: x + 0),
        ("torch.floor_divide", lambda x: x + 0.0),
        ("torch.div.trunc_rounding", lambda x: x + 0.0),
    ],
)
def test_a_nan_that_is_gone_and_a_zero_of_the_other_sign_are_noticed(op: str, change: Any) -> None:
    with pytest.raises(Mismatch, match="by the tables"):
        case(op, target=Changed(change), axes=SPECIAL).assert_same("forward", against="standard")


@pytest.mark.parametrize(
    ("op", "dtype", "counts"),
    [
        ("addcmul", torch.float32, [7, 7, 7]),
        ("addcmul", torch.int64, [8, 8, 8]),
        ("addcdiv", torch.float32, [7, 7, 7]),
        ("clamp", torch.int64, [10, 10, 10]),
        ("lerp", torch.float64, [7, 7, 7]),
        ("where", torch.int64, [10, 2, 10]),
    ],
)
def test_every_pair_of_choices_of_two_inputs_is_among_the_points(
    op: str, dtype: torch.dtype, counts: list[int]
) -> None:
    ones = torch.ones(2, dtype=dtype)
    middle = ones.bool() if op == "where" else ones
    ((_, columns),) = special_points.fillings(sample(f"torch.{op}", ones, middle, ones))
    written = [list(map(repr, column.tolist())) for column in columns]
    assert [len(set(column)) for column in written] == counts
    for one, other in combinations(written, 2):
        assert len(set(zip(one, other, strict=True))) == len(set(one)) * len(set(other))


def test_ops_that_round_nothing_have_the_limits_of_the_dtype() -> None:
    ((_, (x, _)),) = special_points.fillings(sample("torch.maximum", torch.ones(2), torch.ones(2)))
    info = torch.finfo(torch.float32)
    limits = {info.max, -info.max, info.smallest_normal, 2.0**-149, -(2.0**-149)}
    assert limits <= set(x.tolist())
    ((_, (x, _)),) = special_points.fillings(sample("torch.add", torch.ones(2), torch.ones(2)))
    assert not limits & set(x.tolist())
    whole = torch.ones(2, dtype=torch.int64)
    ((_, (x, _)),) = special_points.fillings(sample("torch.maximum", whole, whole))
    assert {2**63 - 1, -(2**63)} <= set(x.tolist())
    for op, least in (("torch.fmod", False), ("torch.gcd", False), ("torch.bitwise_and", True)):
        ((_, (x, _)),) = special_points.fillings(sample(op, whole, whole))
        assert (-(2**63) in x.tolist()) == least
    rows = dict(special_points.fillings(sample("torch.amax", torch.ones(3))))
    assert limits <= set(rows["limits"][0].tolist())


def test_a_flush_of_subnormal_numbers_is_noticed() -> None:
    def flushed(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.abs() < torch.finfo(x.dtype).smallest_normal, 0.0, x)

    for op in ("torch.neg", "torch.minimum", "torch.amin"):
        with pytest.raises(Mismatch, match="by the tables"):
            case(op, "float32", target=Changed(flushed), axes=SPECIAL).assert_same(
                "forward", against="standard"
            )


def test_calls_that_are_left_out_do_not_alternate() -> None:
    """Every second one would have the same `keepdim`."""
    choices: list[dict[str, object]] = [
        {"dim": dims, "keepdim": kept}
        for count in (1, 2, 3)
        for dims in combinations((0, 1, 2, 3, -1, -2, -3), count)
        for kept in (True, False)
        if len({d % 4 for d in dims}) == count
    ]
    op = make_op("torch.amax", {})
    samples = [
        from_call(op, k, (torch.ones(2, 2, 2, 2),), options) for k, options in enumerate(choices)
    ]
    found = special_points.chosen(samples)
    assert len(found) == 24 < len(samples)
    assert {sample.rebuild(sample.inputs)[1]["keepdim"] for sample in found} == {True, False}


def test_a_wrong_table_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = replace(POINTWISE["torch.fmin"], value=POINTWISE["torch.fmax"].value)
    monkeypatch.setitem(special_numbers.POINTWISE, "torch.fmin", swapped)
    with pytest.raises(Mismatch, match="by the tables"):
        case("torch.fmin", axes=SPECIAL).assert_same("forward", against="standard")
    first = replace(LINES["torch.amax"], slopes=LINES["torch.max.reduction_with_dim"].slopes)
    monkeypatch.setitem(lines.LINES, "torch.amax", first)
    with pytest.raises(Mismatch, match="by the tables"):
        case("torch.amax", axes=SPECIAL).assert_same("vjp", against="standard")


def test_fmax_that_gives_a_nan_a_gradient_is_noticed() -> None:
    """Torch 2.14.1 does."""

    class Regressed(TorchTarget):
        def vjp(self, f: Any, *primals: Any) -> Any:
            return super().vjp(lambda x, y: (torch.where(x >= y, x, x + y - x.detach()),), *primals)

    with pytest.raises(Mismatch, match=r"at \[nan, "):
        case("torch.fmax", target=Regressed(), axes=SPECIAL).assert_same("vjp", against="standard")


def test_a_point_that_the_table_has_and_the_op_refuses_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = LINES["torch.argmin"].value
    whole = replace(LINES["torch.argmin"], value=lambda xs: known(xs) if xs else 0)
    monkeypatch.setitem(lines.LINES, "torch.argmin", whole)
    with pytest.raises(IndexError):
        case("torch.argmin", axes=SPECIAL).assert_same("forward", against="standard")


def test_an_op_without_a_table_compares_nothing_and_says_so() -> None:
    with pytest.raises(Vacuous, match="nothing was compared"):
        case("torch.sin", axes=SPECIAL).assert_same("forward", against="standard")


def test_what_nothing_is_said_of_is_left_out() -> None:
    def fill(x: Any) -> Any:
        return torch.where(x == 0.25, 7.0, x)

    case("torch.heaviside", target=Changed(fill), axes=SPECIAL).assert_same(
        "forward", against="standard"
    )
    found = special_points.fillings(sample("torch.heaviside", torch.ones(2), torch.ones(2)))
    assert any(bool(x.isnan().any()) for x in found[0][1])


def test_numbers_beside_the_tensors_are_among_the_points() -> None:
    ((_, (x,)),) = special_points.fillings(
        sample("torch.nn.functional.hardtanh", torch.ones(3, dtype=D), -4.0, 4.5)
    )
    assert {-4.0, 4.5} <= set(x.tolist())


def test_points_that_a_definition_refuses_are_left_out() -> None:
    ((_, (x, y)),) = special_points.fillings(
        sample("torch.floor_divide", torch.ones(3, dtype=torch.int64), torch.ones(3).long())
    )
    assert x.numel()
    assert 0 not in y.tolist()
    labels = [k for k, _ in special_points.fillings(sample("torch.amax", torch.ones(3, dtype=D)))]
    assert "NaN among numbers" in labels
    assert "nothing" not in labels


def test_rows_have_nothing_and_every_pattern() -> None:
    found = dict(special_points.fillings(sample("torch.sum", torch.ones(2, 3, dtype=D), [0, 1])))
    assert found["nothing"][0].numel() == 0
    assert found["rows of nothing"][0].shape == (2, 0)
    assert found["all NaN"][0].isnan().all()
    assert set(found["zeros of either sign"][0].signbit().tolist()[0]) == {False, True}


def test_checks_against_the_standard_name_every_op_of_the_tables() -> None:
    checks = load(Path(__file__).parents[2] / "matrix.yaml").matrix.checks
    assert sorted(checks["special_value"].ops) == sorted({*POINTWISE, *LINES})
    sloped = {name for name, rule in POINTWISE.items() if rule.slopes is not None}
    sloped |= {name for name, line in LINES.items() if line.slopes is not None}
    assert set(checks["special_vjp"].ops) <= sloped
