"""Comparison with exact values and derivatives: tails count, and what has no derivative is
left out and said."""

import json
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from gen.outcomes import Lacking, Mismatch
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import case
from tests.checks.test_case import Corrupted

TAILS = {"values": "tails"}


@pytest.fixture(autouse=True)
def _stores_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep results that are stored out of the folder in which the tests run."""
    monkeypatch.chdir(tmp_path)


class Shifted(TorchTarget):
    """A target whose gradients are off by an absolute error that only tails show."""

    def vjp(self, f: Any, *primals: Any) -> Any:
        outputs, pullback = super().vjp(f, *primals)
        return outputs, lambda v: tuple(g + 1e-14 for g in pullback(v))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "pipeline", ["forward", "vjp", "jvp", "vjp . jvp", "jvp . vjp . vjp", "backward . backward"]
)
def test_right_derivatives_pass_to_the_third_order(pipeline: Any, dtype: Any) -> None:
    checked = case("torch.sin", dtype, axes=TAILS)
    checked.assert_same(pipeline, against="exact")
    assert checked.compared == 1


def test_functions_of_two_numbers_are_differentiated_by_both() -> None:
    case("torch.mul", axes=TAILS).assert_same("vjp . vjp", against="exact")
    case("torch.atan2", axes=TAILS).assert_same("vjp", against="exact")


@pytest.mark.parametrize("method", ["vjp", "jvp"])
def test_a_derivative_off_by_a_factor_is_noticed(method: Any) -> None:
    with pytest.raises(Mismatch, match="entries are off; worst at"):
        case("torch.exp", target=Corrupted(method), axes=TAILS).assert_same(method, against="exact")


def test_an_absolute_error_that_a_usual_tolerance_allows_is_noticed_in_the_tail() -> None:
    with pytest.raises(Mismatch, match="worst at"):
        case("torch.exp", target=Shifted(), axes=TAILS).assert_same("vjp", against="exact")
    case("torch.exp", target=Shifted()).assert_same("vjp", against="upstream")


class Enlarged(TorchTarget):
    """A target whose values are a hundredth too large."""

    def forward(self, f: Any) -> Any:
        return lambda *inputs: tuple(1.01 * y for y in f(*inputs))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("values", ["tiny", "subnormal"])
def test_a_value_off_by_a_factor_is_noticed_however_small_it_is(values: str, dtype: str) -> None:
    with pytest.raises(Mismatch, match="worst at"):
        case("torch.abs", dtype, target=Enlarged(), axes={"values": values}).assert_same(
            "forward", against="exact"
        )


class HalfOfSquares(TorchTarget):
    """A target that halves the squares of negative numbers."""

    def forward(self, f: Any) -> Any:
        def g(x: torch.Tensor, y: torch.Tensor) -> Any:
            return (torch.where((x < 0) & (y == 2), 0.5, 1.0) * f(x, y)[0],)

        return g


def test_a_value_is_compared_where_there_is_none_a_few_ulps_away() -> None:
    with pytest.raises(Mismatch, match=r"worst at \(-.*, 2\)"):
        case("torch.pow", target=HalfOfSquares(), axes=TAILS).assert_same(
            "forward", against="exact"
        )


class OneLess(TorchTarget):
    """A target whose results are one less where the argument is a whole number, but for 0."""

    def forward(self, f: Any) -> Any:
        return lambda x: (f(x)[0] - ((x == x.trunc()) & (x != 0)).to(x),)


def test_a_jump_beside_an_argument_allows_no_error() -> None:
    with pytest.raises(Mismatch, match="worst at"):
        case("torch.floor", target=OneLess(), axes=TAILS).assert_same("forward", against="exact")


class DoubledWhereSmall(TorchTarget):
    """A target that doubles gradients below 1e-60."""

    def vjp(self, f: Any, *primals: Any) -> Any:
        outputs, pullback = super().vjp(f, *primals)
        return outputs, lambda v: tuple(torch.where(g.abs() < 1e-60, 2 * g, g) for g in pullback(v))


def test_a_derivative_is_compared_however_small_it_is() -> None:
    with pytest.raises(Mismatch, match=r"worst at \(-[37]00\)"):
        case("torch.exp", target=DoubledWhereSmall(), axes=TAILS).assert_same(
            "vjp", against="exact"
        )


def test_the_rounding_of_subnormal_numbers_on_the_way_is_no_mistake() -> None:
    # exp(-100) has 27 steps of the smallest number, and 20 times its error shows
    case("torch.erf", "float32", axes=TAILS).assert_same("jvp . jvp", against="exact")


def test_the_tail_of_torch_s_own_sigmoid_is_noticed() -> None:
    with pytest.raises(Mismatch, match=r"exactly -?[0-9.]+e-23"):
        case("torch.sigmoid", axes=TAILS).assert_same("vjp", against="exact")


def test_points_outside_of_the_domain_are_left_out_with_the_reason() -> None:
    with pytest.raises(Lacking, match=r"erfinv outside of \(-1, 1\) \(8 entries\)"):
        case("torch.erfinv", axes={"values": "huge"}).assert_same("forward", against="exact")


def test_other_constants_of_an_op_are_other_functions() -> None:
    checked = case("torch.nn.functional.gelu", axes={"values": "tiny"})
    checked.assert_same("vjp", against="exact")
    assert checked.compared == 2  # approximate="none" and "tanh"


def says(op: str, pipe: Connection) -> None:
    """Compare an op with exact values, and send the reason if nothing was compared."""
    try:
        case(op, axes={"values": "tiny"}).assert_same("forward", against="exact")
    except (Lacking, Mismatch) as reason:
        pipe.send(str(reason))
    else:
        pipe.send("compared")


def said_in_another_process(op: str) -> str:
    """Return what :func:`says` sends, of a process whose results end with it."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=says, args=(op, there))
    process.start()
    text: str = here.recv()
    process.join()
    return text


def test_results_are_stored_for_the_next_run(tmp_path: Path) -> None:
    assert said_in_another_process("torch.cosh") == "compared"
    (path,) = (tmp_path / ".cache/exact").iterdir()
    assert path.name.startswith("torch.cosh-")
    results = json.loads(path.read_text())
    assert any(torch.finfo(torch.float64).tiny.hex() in key for key in results)
    path.write_text(json.dumps(dict.fromkeys(results, "what the file says")))
    assert "what the file says" in said_in_another_process("torch.cosh")


def test_an_exact_value_that_is_wrong_allows_no_error(tmp_path: Path) -> None:
    assert said_in_another_process("torch.cosh") == "compared"
    (path,) = (tmp_path / ".cache/exact").iterdir()
    results = json.loads(path.read_text())
    wrong = next(key for key in results if torch.finfo(torch.float64).tiny.hex() in key)
    path.write_text(json.dumps(results | {wrong: 1.01 * results[wrong]}))
    assert "exactly 1.01" in said_in_another_process("torch.cosh")
