"""Modes, autocast, checkpoints and torch.autograd.functional around ops, and memory of buffers and
of saved results."""

from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from gen.outcomes import Lacking, Mismatch
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import case

MATRIX = {"shape": [2, 3]}
HERE = "tests.checks.test_surroundings"


def check(
    row: str, dtype: str = "float64", *, op: str = "own.op", against: str = "eager", **words: str
) -> None:
    """Compare a function of this file as an op."""
    case(op, dtype, ops={op: ROWS[row]}).assert_same("forward", against=against, **words)


class Confused(TorchTarget):
    """A target that is wrong inside of a mode."""

    def forward(self, f: Any) -> Any:
        def g(*args: Any) -> Any:
            inside = (
                _get_current_dispatch_mode_stack()
                or _get_current_function_mode_stack()
                or torch.is_inference_mode_enabled()
            )
            return tuple(y + 1 if inside else y for y in f(*args))

        return g


@pytest.mark.parametrize("mode", ["dispatch_mode", "function_mode", "inference_mode"])
def test_a_target_that_a_mode_confuses_is_noticed(mode: str) -> None:
    case("torch.sin", axes={"under": mode}).assert_same("forward", against="eager")
    with pytest.raises(Mismatch):
        case("torch.sin", target=Confused(), axes={"under": mode}).assert_same(
            "forward", against="eager"
        )


def without_autocast(x: Any, y: Any) -> Any:
    with torch.autocast("cpu", enabled=False):
        return torch.mm(x, y)


def test_an_op_that_autocast_does_not_reach_is_noticed() -> None:
    case("torch.mm", "float32").assert_same("forward", against="eager", form="autocast")
    with pytest.raises(Mismatch, match=r"dtype torch\.float32, expected torch\.bfloat16"):
        check("without_autocast", "float32", op="torch.mm", form="autocast")


class Redrawing(TorchTarget):
    """A target whose checkpoints draw other numbers in the second run."""

    def checkpoint(self, f: Any, args: Any, cotangents: Any, *, reentrant: bool) -> Any:
        outputs = torch.utils.checkpoint.checkpoint(
            f, *args, use_reentrant=reentrant, preserve_rng_state=False
        )
        torch.autograd.backward(outputs, tuple(cotangents))
        return outputs, tuple(x.grad for x in args if x.requires_grad)


@pytest.mark.parametrize("way", ["reentrant", "not_reentrant"])
def test_a_checkpoint_that_draws_again_is_noticed(way: str) -> None:
    case("torch.sin", axes={"reentrant": way}).assert_same("checkpoint", against="upstream")
    with pytest.raises(Mismatch, match="largest error"):
        case("torch.sin", target=Redrawing(), axes={"reentrant": way}).assert_same(
            "checkpoint", against="upstream"
        )


class Wrong(TorchTarget):
    """A target whose functional derivatives are off by a factor."""

    def functional(self, name: str, f: Any, args: Any, along: Any) -> Any:
        return (*(found := super().functional(name, f, args, along))[:-1], found[-1] * 1.001)


@pytest.mark.parametrize("name", ["vjp", "jvp", "jacobian", "hessian", "vhp", "hvp"])
def test_a_functional_derivative_that_is_off_is_noticed(name: str) -> None:
    case("torch.mul", only=0).assert_same(f"functional.{name}", against="upstream")
    with pytest.raises(Mismatch, match="largest error"):
        case("torch.mul", target=Wrong(), only=0).assert_same(
            f"functional.{name}", against="upstream"
        )


def flat_sin(x: Any) -> Any:
    return x.sin().reshape(-1)


def sin_after_a_write(x: Any, *, out: Any) -> Any:
    return out.fill_(0).add_(x.reshape(-1).clone()).sin_()


def test_a_write_over_an_input_is_noticed() -> None:
    case("torch.sin").assert_same("forward", against="eager", form="out_of_input")
    with pytest.raises(Mismatch, match="memory of an input"):
        check("flat_sin", form="out_of_input")


def fill_with_zeros(x: Any, *, out: Any) -> Any:
    return out.fill_(0)


def test_a_buffer_that_stays_too_small_is_noticed() -> None:
    case("torch.sin").assert_same("forward", against="eager", form="out_small")
    with pytest.raises(Mismatch, match="has shape"):
        check("buffer_of_any_size", form="out_small")


def sin_without_the_sign(x: Any, *, out: Any) -> Any:
    return torch.sin(x, out=torch._neg_view(out))


def test_a_write_to_memory_without_the_sign_that_it_shows_is_noticed() -> None:
    case("torch.sin", "complex128").assert_same("forward", against="eager", form="out_lazy")
    with pytest.raises(Mismatch, match="out=negated"):
        check("buffer_without_sign", form="out_lazy")


def test_a_result_of_integers_has_no_lazy_bit() -> None:
    with pytest.raises(Lacking, match="integers have no lazy bits"):
        case("torch.lt").assert_same("forward", against="eager", form="out_lazy")


def sin_of_each_element(x: Any) -> Any:
    one = x.as_strided((), ())
    for _ in range(x.numel()):
        one.sin_()
    return x


def test_a_write_to_one_number_several_times_is_noticed() -> None:
    case("torch.sin").assert_same("forward", against="eager", form="inplace_overlapping")
    with pytest.raises(Mismatch, match="in place, overlapping"):
        check("written_several_times", form="inplace_overlapping")


def test_a_write_over_an_input_that_is_still_read_is_noticed() -> None:
    case("torch.add").assert_same("forward", against="eager", form="inplace_of_input")
    with pytest.raises(Mismatch, match="in place on the memory of input 1"):
        check("written_from_the_end", form="inplace_of_input")
    with pytest.raises(Lacking, match="no input that the first one could overlap with"):
        case("torch.sin").assert_same("forward", against="eager", form="inplace_of_input")


def add_from_the_end(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    for target, other in zip(x.view(-1).flip(0).unbind(), y.view(-1).flip(0).unbind(), strict=True):
        target.add_(other)
    return x


def test_where_no_input_has_memory_for_a_result_there_is_nothing_to_compare() -> None:
    with pytest.raises(Lacking, match="no input that a result could overlap with"):
        case("torch.lt").assert_same("forward", against="eager", form="out_of_input")


def test_a_result_that_changes_in_a_file_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case("torch.transpose_copy").assert_same("forward", against="eager", form="reloaded")
    load = torch.load
    monkeypatch.setattr(
        torch,
        "load",
        lambda *args, **kwargs: tuple(x.clone().contiguous() + 1 for x in load(*args, **kwargs)),
    )
    with pytest.raises(Mismatch):
        case("torch.sin").assert_same("forward", against="eager", form="reloaded")


def without_bits(x: Any) -> Any:
    """Take the memory of `x`, whatever its lazy bits say."""
    return (
        torch.empty(0, dtype=x.dtype)
        .set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())
        .sin()
    )


def lazy_sin(x: Any) -> Any:
    return without_bits(x) if x.is_conj() or x.is_neg() else x.sin()


@pytest.mark.parametrize("layout", ["conjugated", "negated"])
def test_an_op_that_reads_memory_without_its_bits_is_noticed(layout: str) -> None:
    case("torch.sin", "complex128").assert_same("forward", against="eager", layout=layout)
    with pytest.raises(Mismatch):
        check("lazy_sin", "complex128", layout=layout)


def sin_in_another_order(x: Any) -> Any:
    """Transpose the memory of fake results."""
    from torch._subclasses import FakeTensor

    y = x.sin()
    return y.t().contiguous().t() if isinstance(x, FakeTensor) else y


def test_an_op_whose_fake_results_lie_in_another_order_is_noticed() -> None:
    case("torch.sin").assert_same("forward", against="fake")
    with pytest.raises(Mismatch, match="as a fake tensor"):
        check("sin_in_another_order", against="fake")


def square_of_large_numbers(x: Any) -> Any:
    return (x * 200).square() / 40_000


def test_an_op_that_overflows_in_half_precision_is_noticed() -> None:
    case("torch.square", "float16").assert_same("forward", against="float64")
    with pytest.raises(Mismatch, match="inf"):
        check("square_of_large_numbers", "float16", against="float64")


def _row(call: str, *args: dict[str, Any], **more: str) -> dict[str, Any]:
    return {"call": call, "samples": [{"args": list(args)}], **more}


ROWS = {
    "without_autocast": _row(f"{HERE}:without_autocast", {"shape": [2, 3]}, {"shape": [3, 2]}),
    "flat_sin": _row(f"{HERE}:flat_sin", MATRIX, out=f"{HERE}.sin_after_a_write"),
    "buffer_of_any_size": _row("torch:sin", MATRIX, out=f"{HERE}.fill_with_zeros"),
    "buffer_without_sign": _row("torch:sin", MATRIX, out=f"{HERE}.sin_without_the_sign"),
    "written_several_times": _row("torch:sin", MATRIX, inplace=f"{HERE}.sin_of_each_element"),
    "written_from_the_end": _row("torch:add", MATRIX, MATRIX, inplace=f"{HERE}.add_from_the_end"),
    "lazy_sin": _row(f"{HERE}:lazy_sin", MATRIX),
    "sin_in_another_order": _row(f"{HERE}:sin_in_another_order", MATRIX),
    "square_of_large_numbers": _row(
        f"{HERE}:square_of_large_numbers", {"shape": [3], "low": 2.0, "high": 3.0}
    ),
}
