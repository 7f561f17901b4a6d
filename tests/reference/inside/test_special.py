"""What the tables say at special points: by hand, and away from them as other definitions have
it.

Inside: gen.reference.special_numbers and gen.reference.lines. Each row of these tables is held
against torch, NumPy or a definition at every pair of points. A cell shows a few of them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import compress, product
from typing import Any

import numpy
import pytest
from mpmath import mp, mpf

from gen.reference.arrays import Definite
from gen.reference.definitions import DEFINITIONS
from gen.reference.exact import partial
from gen.reference.lines import LINES, PLACED
from gen.reference.scalars import SCALARS, Undefined
from gen.reference.special_numbers import NARROW, POINTWISE, Near

INF, NAN = math.inf, math.nan
ORDINARY = (0.3, -0.7, 1.7, 2.3)
"""Numbers that are no kink of any op, of which no two tie."""
BESIDES: dict[str, tuple[Any, ...]] = {
    "torch.lerp": (0.25,),
    "torch.nn.functional.threshold": (0.1, 0.7),
    "torch.div.floor_rounding": ("floor",),
    "torch.div.trunc_rounding": ("trunc",),
    "torch.round.decimals_0": (0,),
}
"""Arguments that are no tensors."""
ROW = (0.5, -1.25, 2.0, 3.5)


def same(found: Any, right: Any) -> bool:
    """Whether two numbers are equal, with NaN equal to NaN and zeros of one sign."""
    if found != found or right != right:
        return bool(found != found and right != right)
    return bool(found == right and math.copysign(1, found) == math.copysign(1, right))


@pytest.mark.parametrize(
    ("op", "point", "value"),
    [
        ("fmax", (NAN, 1.0), 1.0),
        ("fmin", (1.0, NAN), 1.0),
        ("fmax", (NAN, NAN), NAN),
        ("maximum", (1.0, NAN), NAN),
        ("minimum", (NAN, -INF), NAN),
        ("clamp", (NAN, 0.0, 1.0), NAN),
        ("clamp", (0.5, 2.0, 1.0), 1.0),
        ("true_divide", (1.0, -0.0), -INF),
        ("true_divide", (0, 0), NAN),
        ("true_divide", (-1, 0), -INF),
        ("floor_divide", (INF, 1.0), NAN),
        ("floor_divide", (-1.0, INF), -1.0),
        ("floor_divide", (-7, 2), -4),
        ("div.trunc_rounding", (-7, 2, "trunc"), -3),
        ("fmod", (-7, 3), -1),
        ("fmod", (-7.0, INF), -7.0),
        ("remainder", (-7, 3), 2),
        ("remainder", (1.0, 0.0), NAN),
        ("pow", (NAN, 0.0), 1.0),
        ("pow", (-0.0, -3.0), -INF),
        ("pow", (-0.0, -2.0), INF),
        ("pow", (-8.0, 1 / 3), NAN),
        ("atan2", (0.0, -0.0), math.pi),
        ("atan2", (-0.0, 0.0), -0.0),
        ("copysign", (NAN, -1.0), NAN),
        ("copysign", (0.0, -0.0), -0.0),
        ("xlogy", (0.0, 0.0), 0.0),
        ("xlogy", (0.0, NAN), NAN),
        ("special.xlog1py", (0.0, -1.0), 0.0),
        ("logaddexp", (-INF, -INF), -INF),
        ("logaddexp2", (1.0, 1.0), 2.0),
        ("isclose", (INF, INF), True),
        ("isclose", (NAN, NAN), False),
        ("isclose", (NAN, NAN, 0.0, 0.0, True), True),
        ("isclose", (INF, -INF, INF), False),
        ("eq", (NAN, NAN), False),
        ("eq", (0.0, -0.0), True),
        ("ne", (NAN, 1.0), True),
        ("logical_not", (NAN,), False),
        ("signbit", (-0.0,), True),
        ("sgn", (-0.0,), -0.0),
        ("ceil", (-0.5,), -0.0),
        ("round", (2.5,), 2.0),
        ("sqrt", (-0.0,), -0.0),
        ("rsqrt", (-0.0,), -INF),
        ("reciprocal", (0,), INF),
        ("log1p", (-1.0,), -INF),
        ("sinc", (0.0,), 1.0),
        ("logit", (1.0,), INF),
        ("logit", (2.0, 0.25), math.log(3)),
        ("special.entr", (-1.0,), -INF),
        ("acosh", (0.5,), NAN),
        ("heaviside", (0.0, 0.5), 0.5),
        ("ldexp", (3, -1), 1.5),
        ("nn.functional.relu", (NAN,), NAN),
        ("nn.functional.softshrink", (0.5,), 0.0),
        ("nn.functional.hardswish", (INF,), INF),
        ("nn.functional.hardswish", (-INF,), 0.0),
        ("frac", (INF,), NAN),
        ("lerp", (NAN, 1.0, 0.5), NAN),
        ("lerp", (1.0, INF, NAN), NAN),
        ("remainder", (0.0, -2.5), -0.0),
        ("remainder", (-0.0, 2.5), 0.0),
        ("div.floor_rounding", (0.0, -2.0, "floor"), -0.0),
        ("div.trunc_rounding", (-1.0, 3.0, "trunc"), -0.0),
        ("pow", (-0.0, 3.0), -0.0),
    ],
)
def test_values_are_those_of_standards(op: str, point: tuple[Any, ...], value: Any) -> None:
    assert same(POINTWISE[f"torch.{op}"].value(*point), value)


SIGNED = (
    "pow", "float_power", "Tensor.__rpow__", "asin", "atanh", "floor_divide", "div.floor_rounding",
    "div.trunc_rounding", "frexp", "remainder", "Tensor.__rmod__", "fmod", "atan2", "copysign",
)  # fmt: skip


@pytest.mark.parametrize("op", SIGNED)
def test_zeros_whose_sign_a_standard_fixes_are_signed(op: str) -> None:
    assert POINTWISE[f"torch.{op}"].signed


def test_a_power_that_is_no_whole_number_is_rounded_in_an_exact_op() -> None:
    ldexp = POINTWISE["torch.ldexp"]
    assert ldexp.exact
    assert isinstance(ldexp.value(3.0, 0.5), Near)
    assert not isinstance(ldexp.value(3.0, 2.0), Near)


@pytest.mark.parametrize("op", sorted(op for op, rule in POINTWISE.items() if rule.exact))
def test_what_an_exact_op_gives_of_narrow_numbers_is_narrow(op: str) -> None:
    """So that a result is compared bit for bit, whatever a kernel computes in."""
    results = list(_results_of_narrow_numbers(op))
    assert results or op in WHOLE
    # Arguments that are no tensors, such as a weight, need not be narrow.
    if op not in BESIDES:
        assert [result for result in results if not _is_narrow(result)] == []


def _results_of_narrow_numbers(op: str) -> Iterator[Any]:
    """Yield each result of an op on points whose numbers fit into 32 bits."""
    narrow = [float(numpy.float32(x)) for x in (0.3, -0.7, 1.7, -2.3, 1e-30, 3e38)]
    dtype = {"dtype": numpy.float32} if op in NARROW else {}
    for count in (1, 2, 3):
        for point in product(narrow, repeat=count):
            try:
                result = POINTWISE[op].value(*point, *BESIDES.get(op, ()), **dtype)
            except TypeError:  # another number of arguments, or ones that are whole
                break
            except ArithmeticError:
                continue
            yield from result if isinstance(result, tuple) else (result,)


def _is_narrow(number: Any) -> bool:
    """Whether a number fits into 32 bits, or is out of their range."""
    if type(number) is not float or not math.isfinite(number) or number == 0:
        return True
    is_in_range = 1e-37 <= abs(number) <= 3e38
    return not is_in_range or float(numpy.float32(number)) == number


WHOLE = {f"torch.{name}" for name in ("gcd", "lcm", "bitwise_and", "bitwise_or", "bitwise_xor",
         "bitwise_not", "Tensor.__rand__", "Tensor.__ror__", "Tensor.__rxor__")}  # fmt: skip


@pytest.mark.parametrize(
    ("op", "point", "slopes"),
    [
        ("fmax", (NAN, 1.0), (0.0, 1.0)),
        ("fmin", (1.0, NAN), (1.0, 0.0)),
        ("maximum", (2.0, 2.0), (0.5, 0.5)),
        ("max.binary", (1.0, 2.0), (0.0, 1.0)),
        ("abs", (0.0,), (0.0,)),
        ("abs", (-0.0,), (0.0,)),
        ("nn.functional.relu", (0.0,), (0.0,)),
        ("nn.functional.hardtanh", (1.0,), (0.0,)),
        ("nn.functional.leaky_relu", (0.0, 0.25), (0.25,)),
        ("sqrt", (0.0,), (INF,)),
        ("asin", (-1.0,), (INF,)),
        ("acos", (1.0,), (-INF,)),
        ("pow", (0.0, 0.0), (0.0, 0.0)),
        ("pow", (0.0, 1.0), (1.0, 0.0)),
        ("copysign", (-2.0, 0.0), (-1.0, 0.0)),
        ("nan_to_num", (NAN,), (0.0,)),
        ("logaddexp", (1.0, 1.0), (0.5, 0.5)),
        ("heaviside", (NAN, 1.0), None),
    ],
)
def test_slopes_at_ties_and_kinks_are_what_is_documented(
    op: str, point: tuple[Any, ...], slopes: Any
) -> None:
    rule = POINTWISE[f"torch.{op}"]
    assert (rule.slopes(*point) if rule.slopes is not None else None) == slopes


def ordinary(op: str) -> list[tuple[float, ...]]:
    """Points of an op away from what is special, where a definition has it."""
    count = sum(1 for _ in _arguments(op))
    found = [p for p in product(ORDINARY, repeat=count) if len(set(p)) == count]
    return [p for p in found if _defined(op, p) is not None]


def _arguments(op: str) -> range:
    rule = POINTWISE[op]
    for count in (1, 2, 3):
        try:
            rule.value(*ORDINARY[-count:], *BESIDES.get(op, ()))
        except TypeError:
            continue
        return range(count)
    raise AssertionError(op)


def _defined(op: str, point: Sequence[float]) -> Any:
    try:
        with mp.workprec(200):
            found = SCALARS[op](*map(mpf, point), *BESIDES.get(op, ()))
    except (Undefined, ValueError):
        return None
    return found if mp.im(found) == 0 else None


BOTH = sorted(POINTWISE.keys() & SCALARS.keys())


def test_most_ops_have_a_definition_in_arbitrary_precision_too() -> None:
    assert len(BOTH) > 70


@pytest.mark.parametrize("op", BOTH)
def test_values_elsewhere_are_those_of_other_definitions(op: str) -> None:
    points = ordinary(op)
    assert points
    for point in points:
        found = POINTWISE[op].value(*point, *BESIDES.get(op, ()), **_dtype(op))
        assert found == pytest.approx(float(_defined(op, point)), abs=1e-12)


def _dtype(op: str) -> dict[str, Any]:
    return {"dtype": numpy.float64} if op == "torch.nan_to_num" else {}


@pytest.mark.parametrize("op", [op for op in BOTH if POINTWISE[op].slopes is not None])
def test_slopes_elsewhere_are_differences(op: str) -> None:
    besides = BESIDES.get(op, ())
    slopes = POINTWISE[op].slopes
    assert slopes is not None
    compared = 0
    for point in ordinary(op):
        for place in range(len(point)):
            known = slopes(*point, *besides)[place]
            try:
                orders = [int(k == place) for k in range(len(point))]
                right = partial(lambda *xs: SCALARS[op](*xs, *besides), orders, point)
            except Undefined:
                continue
            if known is not None:
                assert known == pytest.approx(float(right), abs=1e-9), point
                compared += 1
    assert compared


# --- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "row", "value"),
    [
        ("sum", [], 0),
        ("sum", [INF, -INF], NAN),
        ("prod", [], 1),
        ("mean", [], NAN),
        ("mean", [INF, 1.0], INF),
        ("nansum", [NAN, 1.0], 1.0),
        ("nanmean", [NAN], NAN),
        ("var", [1.0], NAN),
        ("var", [1.0, 3.0], 2.0),
        ("std", [2.0, 2.0], 0.0),
        ("amax", [1.0, NAN, INF], NAN),
        ("argmax", [1.0, 2.0, 2.0], 1),
        ("argmin", [1.0, NAN, NAN], 1),
        ("any", [], False),
        ("all", [], True),
        ("any", [NAN], True),
        ("count_nonzero", [NAN, 0.0, -0.0], 1),
        ("median", [3.0, 1.0, 2.0, 4.0], 2.0),
        ("median", [1.0, NAN], NAN),
        ("nanmedian", [NAN, 5.0, 1.0], 1.0),
        ("logsumexp", [], -INF),
        ("logsumexp", [-INF, -INF], -INF),
        ("logsumexp", [INF, -INF], INF),
        ("linalg.vector_norm", [3.0, 4.0], 5.0),
        ("quantile", [1.0, NAN], NAN),
        ("nanquantile", [1.0, NAN, 3.0], 2.0),
    ],
)
def test_values_of_rows_are_by_definition(op: str, row: list[Any], value: Any) -> None:
    assert same(LINES[f"torch.{op}"].value(row), value)


@pytest.mark.parametrize(
    ("op", "row", "value"),
    [
        ("max.reduction_with_dim", [1.0, 2.0, 2.0], (2.0, 1)),
        ("aminmax", [2.0, -1.0], (-1.0, 2.0)),
        ("cummax", [1.0, 3.0, 3.0, 2.0], ([1.0, 3.0, 3.0, 3.0], [0, 1, 2, 2])),
        ("cumprod", [2.0, 0.0, 3.0], [2.0, 0.0, 0.0]),
    ],
)
def test_ops_of_several_results_have_them_all(op: str, row: list[Any], value: Any) -> None:
    assert LINES[f"torch.{op}"].value(row) == value


def test_a_median_of_a_dimension_names_an_index_that_is_the_only_one() -> None:
    assert PLACED["torch.median"].value([3.0, 1.0, 2.0]) == (2.0, 2)
    assert PLACED["torch.median"].value([1.0, 1.0, 2.0]) == (1.0, None)


@pytest.mark.parametrize(
    ("op", "row", "options", "slopes"),
    [
        ("amax", [1.0, 2.0, 2.0], {}, [0.0, 0.5, 0.5]),
        ("amax", [1.0, NAN], {}, [None, None]),
        ("max.reduction_no_dim", [NAN, 1.0, NAN], {}, [0.5, 0.0, 0.5]),
        ("max.reduction_with_dim", [2.0, 2.0], {}, [1.0, 0.0]),
        ("prod", [0.0, 2.0, 3.0], {}, [6.0, 0.0, 0.0]),
        ("prod", [0.0, 2.0, 0.0], {}, [0.0, 0.0, 0.0]),
        ("nansum", [NAN, 1.0], {}, [0.0, 1.0]),
        ("std", [1.0, 1.0], {}, [0.0, 0.0]),
        ("linalg.vector_norm", [0.0, 0.0], {}, [0.0, 0.0]),
        ("linalg.vector_norm", [2.0, -2.0], {"p": INF}, [0.5, -0.5]),
        ("linalg.vector_norm", [1.0, 0.0], {"p": 1}, [1.0, 0.0]),
        ("logsumexp", [-INF, 1.0], {}, [0.0, 1.0]),
    ],
)
def test_slopes_of_rows_are_what_is_documented(
    op: str, row: list[Any], options: dict[str, Any], slopes: Any
) -> None:
    line = LINES[f"torch.{op}"]
    assert line.slopes is not None
    assert line.slopes(row, **options) == [slopes]


DEFINED = sorted(LINES.keys() & DEFINITIONS.keys())
NEEDS_DIM = ("softmax", "logsumexp", "cum")


@pytest.mark.parametrize("op", DEFINED)
def test_rows_elsewhere_have_the_values_of_other_definitions(op: str) -> None:
    other, row = _definition(op), numpy.array([mpf(x) for x in ROW], dtype=object)
    with mp.workprec(300):
        expected = other(row).reshape(-1)
    found = LINES[op].value(ROW, **_options(op))
    assert numpy.ravel(found).tolist() == pytest.approx([float(x) for x in expected])


@pytest.mark.parametrize("op", [op for op in DEFINED if LINES[op].slopes is not None])
def test_rows_elsewhere_have_the_slopes_of_other_definitions(op: str) -> None:
    other, slopes_of = _definition(op), LINES[op].slopes
    assert slopes_of is not None
    slopes = slopes_of(ROW, **_options(op))[0]
    found = numpy.array(slopes, dtype=float).reshape(-1, len(ROW)).T.reshape(-1)
    expected = _slopes_by_differences(other)
    # Differences from the two sides of a kink disagree, and then they are NaN.
    known = [not mp.isnan(slope) for slope in expected]
    assert sum(known) >= len(ROW)
    assert list(compress(found, known)) == pytest.approx(
        [float(slope) for slope in compress(expected, known)]
    )


def _options(op: str) -> dict[str, Any]:
    """Return the keyword arguments of the rule of an op."""
    if "quantile" in op:
        return {"q": 0.5}
    return {"p": math.inf} if op == "torch.norm.inf" else {}


def _definition(op: str) -> Callable[[Any], Any]:
    """Return the other definition of an op, as a function of the row alone."""
    other = DEFINITIONS[op]
    if "quantile" in op:
        return lambda row: numpy.asarray(other(row, 0.5), dtype=object)
    if "unbiased" in op:
        return lambda row: numpy.asarray(other(row, True), dtype=object)
    if any(word in op for word in NEEDS_DIM):
        return lambda row: numpy.asarray(other(row, 0), dtype=object)
    options = _options(op)
    return lambda row: numpy.asarray(other(row, **options), dtype=object)


def _slopes_by_differences(function: Callable[[Any], Any]) -> list[Any]:
    """Return the derivative of each result in each place of ROW, place by place."""
    row = numpy.array([mpf(x) for x in ROW], dtype=object)
    with mp.workprec(300):
        target = Definite(lambda x: (function(x),))
        columns = [target.jvp(target.root, (row,), (_one(k),))[1][0] for k in range(len(ROW))]
    return [slope for column in columns for slope in column.reshape(-1)]


def _one(place: int) -> Any:
    return numpy.array([mpf(k == place) for k in range(len(ROW))], dtype=object)
