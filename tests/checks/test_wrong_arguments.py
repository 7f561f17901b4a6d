"""A kernel that gets wrong arguments returns or raises an error, and does nothing else."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from gen.outcomes import Lacking, Mismatch
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import case, row_of

Tensor = torch.Tensor
VALUES = {"values": "wrong_arguments"}
NUMBERS = {"shape": [4]}


def dying(x: Tensor, dim: int) -> Tensor:
    """End the process where dim is huge."""
    if dim > 1000:
        os.kill(os.getpid(), signal.SIGSEGV)
    return x.sum()


def dying_of_shapes(x: Tensor, dim: int) -> Tensor:
    """End the process where x has another rank."""
    if x.dim() != 1:
        os.abort()
    return x.sum()


def dividing(x: Tensor, dim: int) -> Tensor:
    """End the process as a division by zero does, where dim is 0."""
    if not dim:
        os.kill(os.getpid(), signal.SIGFPE)
    return x.sum()


def trusting(x: Tensor, dim: int) -> Tensor:
    """Add up four numbers, whether or not there are as many."""
    raw = (ctypes.c_char * (4 * x.element_size())).from_address(x.data_ptr())
    return torch.frombuffer(bytearray(raw), dtype=x.dtype).sum()


def leaving(x: Tensor, dim: int) -> Tensor:
    """Write a number behind x, where dim is the number of its elements."""
    if dim == x.numel() + 1:
        ctypes.c_float.from_address(x.data_ptr() + 4 * x.numel()).value = 5.0
    return x.sum()


def asserting(x: Tensor, dim: int) -> Tensor:
    if x.dim() != 1:
        raise RuntimeError('x.dim() == 1 INTERNAL ASSERT FAILED at "kernel.cpp":1')
    return x.sum()


def changing(x: Tensor, dim: int) -> Tensor:
    """Set x to zero before it refuses dim."""
    if dim < 0:
        x.zero_()
        raise ValueError("dim is negative")
    return x.sum()


def endless(x: Tensor, dim: int) -> Tensor:
    """Never return where dim is far below zero."""
    while dim < -1000:
        time.process_time()
    return x.sum()


def asking(x: Tensor, dim: int) -> Tensor:
    if x.shape != (4,) or not 0 <= dim < 4:
        raise ValueError("x has another shape, or no such place")
    return x[dim] * 2


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    with torch.library._scoped_library("planted_kernels", "DEF") as scoped:
        yield scoped


def cell(library: torch.library.Library, function: Callable[..., Any], target: Any = None) -> Any:
    """A cell of a kernel that torch's dispatcher calls by the name of the function."""
    name = function.__name__
    library.define(f"{name}(Tensor x, int dim) -> Tensor")
    library.impl(name, function, "CPU")
    op = f"torch.ops.planted_kernels.{name}.default"
    row = row_of({"args": [NUMBERS, 1]})
    return case(op, "float32", target or TorchTarget(), VALUES, ops={op: row})


FAULTS = {
    dying: r"planted_kernels::dying: SIGSEGV: dim that is 2\*\*31, dim that is 2\*\*62",
    dividing: "planted_kernels::dividing: SIGFPE: dim that is 0",
    trusting: "result 0 depends on what lies beside the arguments: x with 1 of 4 in dimension 0",
    leaving: "it writes beside x: dim that is 5",
    asserting: "an assertion of torch's own fails: .*: x with a dimension less, x with a",
    changing: "it changes x, which the schema does not say: dim that is -1",
}


@pytest.mark.parametrize("function", FAULTS, ids=lambda function: function.__name__)
def test_what_no_call_may_do_is_named(
    library: torch.library.Library, function: Callable[..., Any]
) -> None:
    with pytest.raises(Mismatch, match=FAULTS[function]):
        cell(library, function).assert_same("forward", against="eager")


@pytest.mark.parametrize("function", [asking, endless], ids=lambda function: function.__name__)
def test_a_kernel_that_refuses_or_takes_long_is_right(
    library: torch.library.Library, function: Callable[..., Any]
) -> None:
    cell(library, function).assert_same("forward", against="eager")


def test_the_calls_behind_one_that_ends_the_process_are_made(
    library: torch.library.Library,
) -> None:
    with pytest.raises(Mismatch, match="SIGABRT: x with a dimension less, x with a dimension more"):
        cell(library, dying_of_shapes).assert_same("forward", against="eager")


def test_a_function_without_a_schema_is_asked_by_the_types_of_its_arguments() -> None:
    call = "tests.checks.test_wrong_arguments:dying"
    row = row_of({"args": [NUMBERS, 1]}, call=call)
    one = case("own.dying", "float32", TorchTarget(), VALUES, ops={"own.dying": row})
    with pytest.raises(Mismatch, match=r"own.dying: SIGSEGV: argument 1 that is 2\*\*31"):
        one.assert_same("forward", against="eager")


def test_an_op_with_recorded_calls_is_asked_for_all_its_overloads() -> None:
    op = "torch.ops.aten.reflection_pad2d_backward"
    row = row_of({"args": [NUMBERS]}, call="gen.checks.kernels.recorded")
    one = case(op, "float32", TorchTarget(), VALUES, ops={op: row})
    with pytest.raises(Mismatch) as raised:
        one.assert_same("forward", against="eager")
    assert "reflection_pad2d_backward: " in str(raised.value)
    assert "reflection_pad2d_backward.grad_input: " in str(raised.value)


def test_another_target_has_no_kernels_of_its_own(library: torch.library.Library) -> None:
    target = TorchTarget()
    target.name = "mine"
    with pytest.raises(Lacking, match="target torch asks them"):
        cell(library, asking, target).assert_same("forward", against="eager")
