"""Arguments that are no tensors, in range and out of it: what the plain op refuses, a target, the
meta device and the op's other ways must refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gen.outcomes import Lacking, Mismatch
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import case, row_of

Tensor = torch.Tensor
NUMBERS = {"values": "wrong_number"}


class Plain(TorchTarget):
    """Torch under another name, so that it is compared with the plain op."""

    name = "plain"


class Rounding(Plain):
    """A target that gives whole numbers."""

    def forward(self, f: Any) -> Any:
        return lambda *xs: tuple(y.round() for y in f(*xs))


class Answering(Plain):
    """A target that gives zeros where the op refuses."""

    def forward(self, f: Any) -> Any:
        def g(*xs: Tensor) -> Any:
            try:
                return f(*xs)
            except Exception:
                return (torch.zeros(()),)

        return g


def cell(op: str, target: Any, *args: Any, **row: Any) -> Any:
    return case(op, "float32", target, NUMBERS, ops={op: row_of({"args": list(args)}, **row)})


def rolled(target: Any) -> Any:
    return cell("torch.roll", target, torch.randn(3, 2), 1, 0)


def test_a_target_that_agrees_with_the_plain_op_passes() -> None:
    rolled(Plain()).assert_same("forward", against="eager")


def test_a_dimension_that_there_is_not_must_be_refused() -> None:
    with pytest.raises(
        Mismatch, match=r"2 in place of 0 for argument 2: the plain op raises IndexError"
    ):
        rolled(Answering()).assert_same("forward", against="eager")


def test_other_numbers_must_give_what_the_plain_op_gives() -> None:
    with pytest.raises(Mismatch, match=r"2 in place of 1 for argument 1: output 0 of 1"):
        rolled(Rounding()).assert_same("forward", against="eager")


def halved(x: Tensor, *, times: int = 1, reduction: str = "mean") -> Tensor:
    """Return halves, or the mean of them, and refuse other words on the CPU alone."""
    if reduction not in ("mean", "none") and not x.is_meta:
        raise ValueError(f"no reduction {reduction}")
    y = x / times
    return y.mean() if reduction == "mean" else y


def test_arguments_that_a_sample_leaves_out_are_asked_for() -> None:
    with pytest.raises(Mismatch, match=r"reduction='x': the plain op raises ValueError.* meta"):
        made = cell("own.halved", TorchTarget(), torch.ones(2), call=f"{__name__}:halved")
        made.assert_same("forward", against="eager")


def filled(x: Tensor, value: float, *, out: Tensor | None = None) -> Tensor:
    """Return a constant like `x`, which a buffer holds as 1 at most."""
    result = torch.full_like(x, value)
    if out is None:
        return result
    return out.resize_(x.shape).copy_(result.clamp_max(1))


def test_a_buffer_must_get_what_the_plain_op_gives() -> None:
    call = f"{__name__}:filled"
    with pytest.raises(Mismatch, match=r"1.5 in place of 0.25 for argument 1: output 0 of 1"):
        made = cell("own.filled", TorchTarget(), torch.ones(2), 0.25, call=call, out=call)
        made.assert_same("forward", against="eager")


def test_a_sum_in_bytes_must_be_taken_of_what_requires_grad() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(Mismatch, match=r"dtype=int8: the op with gradients raises"):
        cell("torch.sum", TorchTarget(), x, 0).assert_same("forward", against="eager")


def test_an_op_of_tensors_alone_says_nothing() -> None:
    made = cell("torch.sin", Plain(), torch.ones(2))
    with pytest.raises(Lacking, match="no argument that is no tensor"):
        made.assert_same("forward", against="eager")
