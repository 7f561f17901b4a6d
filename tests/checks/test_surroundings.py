"""Modes, autocast, checkpoints and torch.autograd.functional around ops, and memory of buffers and
of saved results."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from gen.outcomes import Lacking, Mismatch
from gen.samples import samples
from gen.targets.torch_target import TorchTarget
from tests.checks.test_case import case


def planted(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Ops with other functions for the rest of a test."""
    made = samples.make_op
    monkeypatch.setattr(samples, "make_op", lambda name, row: replace(made(name, row), **changes))
    monkeypatch.setattr(samples.STORE, "_pools", {})


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


def test_an_op_that_autocast_does_not_reach_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case("torch.mm", "float32").assert_same("forward", against="eager", form="autocast")
    planted(monkeypatch, call=without_autocast)
    with pytest.raises(Mismatch, match=r"dtype torch\.float32, expected torch\.bfloat16"):
        case("torch.mm", "float32").assert_same("forward", against="eager", form="autocast")


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


def test_a_write_over_an_input_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case("torch.sin").assert_same("forward", against="eager", form="out_of_input")
    planted(
        monkeypatch,
        call=lambda x: x.sin().reshape(-1),
        out=lambda x, out: out.fill_(0).add_(x.reshape(-1).clone()).sin_(),
    )
    with pytest.raises(Mismatch, match="memory of an input"):
        case("torch.sin").assert_same("forward", against="eager", form="out_of_input")


def test_a_buffer_that_stays_too_small_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case("torch.sin").assert_same("forward", against="eager", form="out_small")
    planted(monkeypatch, out=lambda x, out: out.fill_(0))
    with pytest.raises(Mismatch, match="has shape"):
        case("torch.sin").assert_same("forward", against="eager", form="out_small")


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
    """The memory of `x`, whatever its lazy bits say."""
    return (
        torch.empty(0, dtype=x.dtype)
        .set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())
        .sin()
    )


@pytest.mark.parametrize("layout", ["conjugated", "negated"])
def test_an_op_that_reads_memory_without_its_bits_is_noticed(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case("torch.sin", "complex128").assert_same("forward", against="eager", layout=layout)
    planted(monkeypatch, call=lambda x: without_bits(x) if x.is_conj() or x.is_neg() else x.sin())
    with pytest.raises(Mismatch):
        case("torch.sin", "complex128").assert_same("forward", against="eager", layout=layout)


def test_an_op_whose_fake_results_lie_in_another_order_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case("torch.sin").assert_same("forward", against="fake")
    from torch._subclasses import FakeTensor

    planted(
        monkeypatch,
        call=lambda x: (
            x.sin().t().contiguous().t() if isinstance(x, FakeTensor) and x.ndim == 2 else x.sin()
        ),
    )
    with pytest.raises(Mismatch, match="as a fake tensor"):
        case("torch.sin").assert_same("forward", against="fake")


def test_an_op_that_overflows_in_half_precision_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case("torch.square", "float16").assert_same("forward", against="float64")
    planted(monkeypatch, call=lambda x: (x * 200).square() / 40_000)
    with pytest.raises(Mismatch, match="inf"):
        case("torch.square", "float16").assert_same("forward", against="float64")
