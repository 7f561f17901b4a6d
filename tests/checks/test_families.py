"""Families of programs: their definitions are right, and planted mistakes are noticed."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from gen.outcomes import Lacking, Mismatch, Unsuitable
from gen.targets.torch_target import TorchTarget
from programs.families import (
    distributions,
    equivalents,
    jagged,
    laws,
    masked,
    modules,
    optimizers,
    ordering,
    quantized,
    sparse,
)
from programs.families.tools import BackwardError, Results, Row, gradients
from tests.checks.cells import case

ROWS = {
    "programs.families.jagged.layer_norm": "of_offsets",
    "programs.families.masked.mean_by_row": "some_shown",
    "programs.families.sparse.times_turned": "coo",
    "programs.families.optimizers.adam": "foreach",
    "programs.families.modules.attention": "trained",
    "programs.families.ordering.both_ends": "zeros",
    "programs.families.distributions.gamma": "entropies",
    "programs.families.distributions.poisson": "moments",
}
SAMPLES = {
    f"programs.families.{name}": f"samples_of_{name.partition('.')[2]}"
    for name in ("optimizers.adam", "distributions.gamma", "distributions.poisson")
}


def cell(op: str, made: str, target: Any = None) -> Any:
    """Return the cell of a row at a word."""
    module = op.rpartition(".")[0]
    row = {
        "reference": f"{op}.by_definition",
        "samples": f"{module}:{SAMPLES.get(op, 'samples')}",
    }
    return case(op, axes={"made": made}, ops={op: row}, target=target)


def results(rows: Any, name: str, *args: Tensor, **options: Any) -> list[Tensor]:
    """Return what a row gives by its definition, without the kinds of results."""
    row: Row = getattr(rows, name)
    return list(row.by_definition(*args, **options)[1:])


class _Altered(TorchTarget):
    """A target whose results are off by a hundredth at one place."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    def forward(self, f: Any) -> Any:
        def g(*args: Any) -> Any:
            found = list(f(*args))
            found[self.place] = found[self.place] * 1.01 if self.place else found[0] + 1
            return tuple(found)

        return g


class _Without(TorchTarget):
    """A target that has no such family."""

    lacks = TorchTarget.lacks | {"family of rows"}


@pytest.mark.parametrize(("op", "made"), ROWS.items())
def test_a_row_equals_its_definition(op: str, made: str) -> None:
    cell(op, made).assert_same("forward", against="reference")


@pytest.mark.parametrize(("op", "made"), ROWS.items())
@pytest.mark.parametrize("place", [1, -1])
def test_an_altered_value_or_gradient_is_noticed(op: str, made: str, place: int) -> None:
    with pytest.raises(Mismatch, match="largest error"):
        cell(op, made, _Altered(place)).assert_same("forward", against="reference")


@pytest.mark.parametrize(("op", "made"), ROWS.items())
def test_another_number_or_shape_of_results_is_noticed(op: str, made: str) -> None:
    with pytest.raises(Mismatch, match=r"output 0 of .* largest error 1 "):
        cell(op, made, _Altered(0)).assert_same("forward", against="reference")


def test_a_word_without_samples_is_lacking() -> None:
    with pytest.raises(Lacking, match="nothing to compare"):
        cell("programs.families.sparse.times_matrix", "trained").assert_same(
            "forward", against="reference"
        )


def test_a_refusal_of_all_samples_is_lacking() -> None:
    with pytest.raises(Lacking, match="nothing to compare: refused"):
        cell("programs.families.sparse.softmax_0", "csr").assert_same(
            "forward", against="reference"
        )


class _Doubled(torch.autograd.Function):
    """A function whose backward pass raises the error that it is called with."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, error: Exception) -> Tensor:
        ctx.error = error
        return x * 2

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        raise ctx.error


def row_that_fails_backward(error: Exception) -> Row:
    def program(x: Tensor) -> Results:
        result: Tensor = _Doubled.apply(x, error)  # type: ignore[no-untyped-call]
        return tuple(gradients([result], [x]))

    return Row(program, program, may_refuse=True)


def test_a_backward_pass_that_fails_is_no_refusal() -> None:
    row = row_that_fails_backward(RuntimeError("expand is unsupported"))
    with pytest.raises(BackwardError, match="expand is unsupported"):
        row(torch.ones(2, requires_grad=True))


def test_a_derivative_that_is_not_implemented_is_a_refusal() -> None:
    row = row_that_fails_backward(NotImplementedError("no formula"))
    with pytest.raises(Unsuitable, match="refused: no formula"):
        row(torch.ones(2, requires_grad=True))


def test_the_components_of_a_nested_tensor_are_rows() -> None:
    """A hole of one row lies behind each component: the sums are 0+1, and 3."""
    x = torch.arange(5.0, dtype=torch.float64)[:, None].expand(5, 4)
    w = torch.zeros(4, 4, dtype=torch.float64)
    found = results(jagged, "sum_1", x, w, made="of_lengths", sizes=[2, 1])
    assert [part.tolist() for part in found[:2]] == [[1.0] * 4, [3.0] * 4]


def test_a_masked_mean_is_that_of_shown_elements() -> None:
    x = torch.tensor([[1.0, 2.0], [8.0, 4.0]], dtype=torch.float64)
    value, gradient, *_ = results(masked, "mean_by_row", x, x, made="row_hidden", shape=[2, 2])
    assert value.tolist() == [1.5, 0.0]  # nothing is shown of the second row
    assert gradient[0, 0] == gradient[0, 1] == math.cos(1.0) / 2
    assert gradient[1].tolist() == [0.0, 0.0]


def test_repeated_places_of_a_sparse_matrix_are_added() -> None:
    v = torch.arange(1.0, 9, dtype=torch.float64)
    d, e = torch.eye(6, 4, dtype=torch.float64), torch.zeros(4, 6, dtype=torch.float64)
    value, *_ = results(sparse, "as_dense", v, d, e, made="uncoalesced", pattern="repeated")
    assert value[3, 4] == 1 + 3 + 7 and value[0, 1] == 2 + 5


def test_momentum_is_that_of_the_definition() -> None:
    """One step is p - 0.1 g. A second one is that less 0.1 (0.9 g + the next gradient)."""
    x, y = torch.ones(2, 3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    found = results(optimizers, "sgd", x, y, made="for_loop", how="plain", momentum=0.9)
    slopes = [math.sin((t + 0.5) ** 2 + 0.3) + 0.05 for t in (1, 2)]
    first = 1 - 0.1 * slopes[0]
    second = first - 0.1 * (0.9 * slopes[0] + slopes[1])
    assert found[0][0, 0].item() == pytest.approx(first, rel=1e-12)
    assert found[5][0, 0].item() == pytest.approx(second, rel=1e-12)


def test_attention_of_equal_rows_is_the_value_of_one() -> None:
    """All keys are equal, so the shares are, whatever is hidden."""
    x = torch.ones(3, 4, 8, dtype=torch.float64)
    plain, *_ = results(modules, "attention", x, made="without_grad", hidden="nothing")
    later, *_ = results(modules, "attention", x, made="without_grad", hidden="later")
    torch.testing.assert_close(plain, later)
    torch.testing.assert_close(plain[0, 0], plain[2, 3])


@pytest.mark.parametrize(
    ("name", "made", "expected"),
    [
        ("largest", "nan_inside", [math.nan, 2]),  # the place of the NaN
        ("smallest", "infinities", [-math.inf, 4]),
        ("median", "nan_last", [math.nan]),
        ("nanmedian", "nan_last", [-1.0]),  # of -1, 2.5, 0.5, -1.5
        ("mode", "nan_first", [-1.5]),  # each number occurs once, and the least one counts
        ("kth_all", "nan_inside", [math.nan]),
        ("bottom_half", "nan_first", [[-1.5, 0.5]]),
        ("quantile_lower", "infinities", [-math.inf]),
        ("in_few", "nan_first", [[False, True, False, False, False]]),
        ("counted", "nan_and_infinities", [[1, 0, 0, 1, 0]]),
        ("distinct", "all_equal", [[1.0], [1.0] * 5, [5]]),
    ],
)
def test_an_order_puts_nan_behind_all_numbers(name: str, made: str, expected: list[Any]) -> None:
    """The line is -1, 2.5, 0.5, -1.5, 2 before special numbers stand in it."""
    mark = torch.zeros(2, dtype=torch.float64)
    found = results(ordering, name, mark, made=made, shapes=[(5, "rows")])
    for one, right in zip(found, expected, strict=False):
        first = one if name == "distinct" else one[0]
        torch.testing.assert_close(
            first, torch.tensor(right).to(first.dtype), rtol=0, atol=0, equal_nan=True
        )


def test_a_nan_is_sought_behind_all_numbers() -> None:
    """The line is -1.5, 0.5, 2, 2.5, NaN. Sought are -inf, …, 0.25, 1, 2.5, 3, inf and NaN."""
    mark = torch.zeros(2, dtype=torch.float64)
    (left,) = results(ordering, "searched_lines_left", mark, made="nan_first", shapes=[(5, "rows")])
    (right,) = results(
        ordering, "searched_lines_right", mark, made="nan_first", shapes=[(5, "rows")]
    )
    assert left[0].tolist() == [0, 0, 1, 1, 1, 1, 2, 3, 4, 4, 4]
    assert right[0].tolist() == [0, 0, 1, 1, 1, 1, 2, 4, 4, 4, 5]


LAWS_AND_PARAMETERS = [
    (name, p) for name, law in laws.LAWS.items() for p in law.parameters if not law.steep(**p)
]


@pytest.mark.parametrize(("name", "p"), LAWS_AND_PARAMETERS)
def test_a_density_has_the_integral_1(name: str, p: dict[str, float]) -> None:
    assert laws.LAWS[name].probability(math.inf, **p) == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize(
    ("name", "p", "mean", "variance"),
    [
        ("normal", {"loc": 3.0, "scale": 2.0}, 3.0, 4.0),
        ("exponential", {"rate": 4.0}, 0.25, 0.0625),
        ("uniform", {"low": 1.0, "high": 4.0}, 2.5, 0.75),
        ("pareto", {"scale": 2.0, "alpha": 4.0}, 8 / 3, 8 / 9),
        ("laplace", {"loc": 0.0, "scale": 1.5}, 0.0, 4.5),
        ("gumbel", {"loc": 0.0, "scale": 1.0}, 0.5772156649015329, math.pi**2 / 6),
        ("geometric", {"probs": 0.25}, 3.0, 12.0),
        ("binomial", {"probs": 0.2}, 1.0, 0.8),
    ],
)
def test_moments_by_quadrature_are_those_of_textbooks(
    name: str, p: dict[str, float], mean: float, variance: float
) -> None:
    law = laws.LAWS[name]
    assert law.expected(lambda x: x, **p) == pytest.approx(mean, rel=1e-10, abs=1e-12)
    assert law.expected(lambda x: (x - mean) ** 2, **p) == pytest.approx(variance, rel=1e-10)


@pytest.fixture
def no_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the mode of each law be NaN."""
    for law in laws.LAWS.values():
        p = {name: torch.tensor(number) for name, number in law.parameters[0].items()}
        kind = type(law.make(**p))
        monkeypatch.setattr(kind, "mode", property(lambda law: torch.tensor(math.nan)))


@pytest.mark.usefixtures("no_mode")
@pytest.mark.parametrize("name", ["uniform", "beta", "bernoulli"])
def test_no_mode_is_right_where_no_number_is_the_densest(name: str) -> None:
    """A uniform law is flat, a beta law grows to infinity at 0, and two results are as likely."""
    with pytest.raises(Unsuitable, match="no mode"):
        results_of_torch(name, "modes", 1)


@pytest.mark.usefixtures("no_mode")
@pytest.mark.parametrize("name", ["normal", "gamma", "kumaraswamy", "poisson"])
def test_no_mode_is_noticed_where_a_number_is_the_densest(name: str) -> None:
    assert results_of_torch(name, "modes", 0) == [0.0, 0.0]


def results_of_torch(name: str, made: str, number: int) -> list[float]:
    """Return what torch answers to a question about a law with some of its parameters."""
    row: Row = getattr(distributions, name)
    return row(torch.zeros(2), made=made, number=number)[-1].tolist()  # type: ignore[no-any-return]


def test_a_law_of_no_chance_has_the_logarithms_0_and_minus_infinity() -> None:
    (found,) = results(distributions, "bernoulli", torch.zeros(2), made="certain", number=0)
    assert found.tolist() == [0.0, -math.inf, -math.inf, 0.0]


def test_a_probability_is_the_integral_up_to_a_number() -> None:
    law = laws.LAWS["cauchy"]
    for x in (-30.0, -1.0, 0.0, 0.3, 5.0):
        right = 0.5 + math.atan(x) / math.pi
        assert law.probability(x, loc=0.0, scale=1.0) == pytest.approx(right, rel=1e-11)


def marks(*forms: Any) -> list[int]:
    """Return the marks of forms of a call."""
    row = equivalents.row_of(forms, lambda x: (x,))
    return row(torch.ones(2))[1].tolist()  # type: ignore[no-any-return]


def refused(error: Exception) -> Any:
    """Return a form of a call that is refused."""

    def form(x: Tensor) -> Tensor:
        raise error

    return form


def test_forms_that_mean_the_same_are_compared() -> None:
    assert marks(lambda x: x * 2, lambda x: 2 * x, lambda x: x + x) == [1, 1, 1]
    assert marks(lambda x: x * 2, refused(RuntimeError("no strides"))) == [1, 0]
    assert marks(refused(IndexError("out of range")), lambda x: x * 2) == [0, 1]
    assert marks(lambda x: x * 2, lambda x: x * 3) == [1, 2]
    assert marks(lambda x: x * 2, lambda x: x[:1] * 2) == [1, 2]


def test_a_form_that_torch_does_not_have_is_left_out() -> None:
    assert marks(lambda x: x * 2, refused(NotImplementedError("no kernel"))) == [1, 1]
    with pytest.raises(Unsuitable, match="refused in each form"):
        marks(refused(RuntimeError("no strides")), refused(TypeError("no dims")))


@pytest.mark.parametrize(
    ("number", "last", "first"),
    [(2.5, 10, 9), (-2.5, 4, 5), (0.5, 8, 7), (-0.5, 6, 7), (1.2, 8, 8)],
)
def test_a_number_between_two_whole_ones_goes_to_the_even_one(
    number: float, last: int, first: int
) -> None:
    """The zero point is 7, so that the sum of 0.5 and 7 is rounded up, and 0.5 itself down."""
    assert quantized.rounds_last(number, 1.0, 7) == last
    assert quantized.rounds_first(number, 1.0, 7) == first


def test_a_target_may_lack_a_family() -> None:
    op = "programs.families.sparse.times_matrix"
    lacking = cell(op, "csr", _Without())
    lacking.family = type(lacking.family)("of rows", lacking.family.ops)
    with pytest.raises(Lacking, match="lacks family of rows"):
        lacking.assert_same("forward", against="reference")
