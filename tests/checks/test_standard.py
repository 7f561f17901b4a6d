"""Comparison with the tables of special points: what is wrong there is noticed, in the target and
in the tables, and no cell asks torch for what is right."""

from itertools import combinations
from typing import Any

import pytest
import torch

from gen.outcomes import Mismatch, Vacuous
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import case, inputs_of, row_of

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


def fillings(op: str, *args: Any) -> list[Any]:
    """Return the inputs that stand for the special points of a call."""
    return inputs_of(op, *args, axes=SPECIAL)


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "op",
    ["nextafter", "floor", "abs", "maximum", "clamp", "where", "fmod", "frexp", "ldexp", "amax",
     "nan_to_num", "median", "cummax", "copysign", "frac"],
)  # fmt: skip
def test_an_exact_op_that_is_an_ulp_off_is_noticed(op: str, dtype: str) -> None:
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
    (columns,) = fillings(f"torch.{op}", ones, middle, ones.clone())
    written = [list(map(repr, column.tolist())) for column in columns]
    assert [len(set(column)) for column in written] == counts
    for one, other in combinations(written, 2):
        assert len(set(zip(one, other, strict=True))) == len(set(one)) * len(set(other))


def test_ops_that_round_nothing_have_the_limits_of_the_dtype() -> None:
    info = torch.finfo(torch.float32)
    limits = {info.max, -info.max, info.smallest_normal, 2.0**-149, -(2.0**-149)}
    ((x, _),) = fillings("torch.maximum", torch.ones(2), torch.ones(2))
    assert limits <= set(x.tolist())
    ((x, _),) = fillings("torch.add", torch.ones(2), torch.ones(2))
    assert not limits & set(x.tolist())
    rows = fillings("torch.amax", torch.ones(3))
    assert any(limits <= set(x.flatten().tolist()) for (x,) in rows)


@pytest.mark.parametrize(
    ("op", "has_least"),
    [("maximum", True), ("fmod", False), ("gcd", False), ("bitwise_and", True)],
)
def test_integer_ops_have_the_limits_that_they_take(op: str, has_least: bool) -> None:
    whole = torch.ones(2, dtype=torch.int64)
    ((x, _),) = fillings(f"torch.{op}", whole, whole.clone())
    assert (-(2**63) in x.tolist()) == has_least
    if op == "maximum":
        assert 2**63 - 1 in x.tolist()


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
    row = row_of(*({"args": [torch.ones(2, 2, 2, 2)], "kwargs": options} for options in choices))
    made = case("torch.amax", "float32", axes=SPECIAL, ops={"torch.amax": row})
    described: list[str] = []
    made.on_sample = lambda _, description: described.append(description)
    made.assert_same("forward", against="standard")
    assert len(described) == 24 < len(choices)
    assert {text.rpartition("keepdim=")[2] for text in described} == {"True", "False"}


def test_fmax_that_gives_a_nan_a_gradient_is_noticed() -> None:
    """Torch 2.14.1 does."""

    class Regressed(TorchTarget):
        def vjp(self, f: Any, *primals: Any) -> Any:
            return super().vjp(lambda x, y: (torch.where(x >= y, x, x + y - x.detach()),), *primals)

    with pytest.raises(Mismatch, match=r"at \[nan, "):
        case("torch.fmax", target=Regressed(), axes=SPECIAL).assert_same("vjp", against="standard")


def test_an_op_without_a_table_compares_nothing_and_says_so() -> None:
    with pytest.raises(Vacuous, match="nothing was compared"):
        case("torch.sin", axes=SPECIAL).assert_same("forward", against="standard")


def test_what_nothing_is_said_of_is_left_out() -> None:
    def fill(x: Any) -> Any:
        return torch.where(x == 0.25, 7.0, x)

    case("torch.heaviside", target=Changed(fill), axes=SPECIAL).assert_same(
        "forward", against="standard"
    )
    found = fillings("torch.heaviside", torch.ones(2), torch.ones(2))
    assert any(bool(x.isnan().any()) for x in found[0])


def test_numbers_beside_the_tensors_are_among_the_points() -> None:
    ((x,),) = fillings("torch.nn.functional.hardtanh", torch.ones(3, dtype=D), -4.0, 4.5)
    assert {-4.0, 4.5} <= set(x.tolist())


def test_points_that_a_definition_refuses_are_left_out() -> None:
    whole = torch.ones(3, dtype=torch.int64)
    ((x, y),) = fillings("torch.floor_divide", whole, whole.clone())
    assert x.numel()
    assert 0 not in y.tolist()
    rows = [x for (x,) in fillings("torch.amax", torch.ones(3, dtype=D))]
    assert any(x.isnan().any() and not x.isnan().all() for x in rows)
    assert all(x.numel() for x in rows)


def test_rows_have_nothing_and_every_pattern() -> None:
    rows = [x for (x,) in fillings("torch.sum", torch.ones(2, 3, dtype=D), [0, 1])]
    shapes = [tuple(x.shape) for x in rows]
    assert (2, 0) in shapes
    assert any(shape[0] == 0 for shape in shapes)
    assert any(x.numel() and bool(x.isnan().all()) for x in rows)
    zeros = [x for x in rows if x.numel() and bool((x == 0).all())]
    assert any(set(x.signbit().flatten().tolist()) == {False, True} for x in zeros)
