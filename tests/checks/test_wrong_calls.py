"""Calls with mixed dtypes, other ranks and a wrong out=: what the plain op refuses, a target, vmap
and the meta device must refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gen.outcomes import ErrorMismatch, Mismatch
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import case, row_of

Tensor = torch.Tensor
WRONG = {"values": "wrong_call"}


class Plain(TorchTarget):
    """Torch under another name, so that it is compared with the plain op."""

    name = "plain"


class Promoting(Plain):
    """A target that promotes dtypes before it calls the op, as compiled code may."""

    def forward(self, f: Any) -> Any:
        return lambda *xs: f(*(x.float() if x.dtype is torch.float64 else x for x in xs))


class WithoutBuffers(Plain):
    """A target that writes to a buffer of any dtype."""

    def forward(self, f: Any) -> Any:
        def g(*xs: Tensor) -> Any:
            if len(xs) < 3:
                return f(*xs)
            (result,) = f(*xs[:2], torch.zeros(2, 2))
            return (xs[2].copy_(result) if xs[2].shape == result.shape else f(*xs)[0],)

        return g


def mm(target: Any, row: Any = None) -> Any:
    sample = row_of({"args": [torch.randn(2, 3), torch.randn(3, 2)]}, out="torch.mm")
    return case("torch.mm", "float32", target, WRONG, ops={"torch.mm": sample})


def test_a_target_that_agrees_with_the_plain_op_passes() -> None:
    mm(Plain()).assert_same("forward", against="eager")


def test_mixed_dtypes_that_the_plain_op_refuses_must_be_refused() -> None:
    with pytest.raises(
        Mismatch, match=r"input 1 in float64: the plain op raises .* the target takes"
    ):
        mm(Promoting()).assert_same("forward", against="eager")


def test_a_buffer_of_a_wrong_dtype_must_be_refused() -> None:
    with pytest.raises(Mismatch, match=r"out= 0 in int64: the plain op raises .* the target takes"):
        mm(WithoutBuffers()).assert_same("forward", against="eager")


class Loose(Plain):
    """A target whose vmap promotes dtypes before it calls the op."""

    def vmap(self, f: Any, in_dims: Any, out_dims: Any = 0) -> Any:
        mapped = super().vmap(f, in_dims, out_dims)
        return lambda *xs: mapped(*(x.float() for x in xs))


def test_vmap_must_refuse_mixed_dtypes_that_a_loop_refuses() -> None:
    mm(Plain()).assert_same("vmap", against="loop")
    with pytest.raises(Mismatch, match=r"input 0 in int64: the loop raises .* vmap takes"):
        mm(Loose()).assert_same("vmap", against="loop")


def checked_on_the_cpu(x: Tensor, y: Tensor) -> Tensor:
    """Return a sum that refuses tensors of other ranks, on the CPU alone."""
    if not x.is_meta and x.ndim != y.ndim:
        raise ValueError("other ranks")
    return x + y


def test_what_meta_takes_the_cpu_must_take() -> None:
    row = row_of(
        {"args": [torch.ones(2, 2), torch.ones(2, 2)]},
        call="tests.checks.test_wrong_calls:checked_on_the_cpu",
    )
    made = case("own.checked", "float32", axes=WRONG, ops={"own.checked": row})
    with pytest.raises(
        Mismatch, match=r"the plain op raises ValueError.* the meta device takes it"
    ):
        made.assert_same("forward", against="eager")
    with pytest.raises(Mismatch, match=r"input 1 in float64: .* and the meta device takes it"):
        mm(TorchTarget()).assert_same("forward", against="eager")  # docs/findings.md, F130


def refused(x: Tensor, y: Tensor) -> Tensor:
    """Return a sum that refuses tensors of other ranks wherever they are."""
    if x.ndim != y.ndim:
        raise RuntimeError("the ranks differ")
    return x + y


def asserted(x: Tensor, y: Tensor) -> Tensor:
    """Return a sum of which an assertion fails for tensors of other ranks."""
    if x.ndim != y.ndim:
        raise RuntimeError('x.dim() == y.dim() INTERNAL ASSERT FAILED at "sum.cpp":1')
    return x + y


def test_an_assertion_of_torchs_own_is_no_refusal() -> None:
    def made(name: str) -> Any:
        row = row_of(
            {"args": [torch.ones(2, 2), torch.ones(2, 2)]},
            call=f"tests.checks.test_wrong_calls:{name}",
        )
        return case("own.sum", "float32", axes=WRONG, ops={"own.sum": row})

    made("refused").assert_same("forward", against="eager")
    with pytest.raises(ErrorMismatch, match="an assertion of torch's own fails"):
        made("asserted").assert_same("forward", against="eager")
