"""A tensor where an op takes a number: the right result, an error, never a lost derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from gen.outcomes import Lacking, Mismatch
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import case, row_of

Tensor = torch.Tensor


def asserted(call: str, pipeline: str, against: str, *args: Any, target: Any = None) -> None:
    """Assert a pipeline of a function of this module, with tensors in place of its numbers."""
    ops = {f"own.{call}": row_of({"args": list(args)}, call=f"{__name__}:{call}")}
    made = case(f"own.{call}", target=target, ops=ops)
    made.assert_same(pipeline, against=against, form="tensor_number")


def right(x: Tensor, factor: float | Tensor) -> Tensor:
    """Compute with the tensor, as operators do."""
    return x * factor


def losing(x: Tensor, factor: float | Tensor) -> Tensor:
    """Copy the number out of the tensor."""
    if isinstance(factor, Tensor):
        factor = factor.detach()
    return x * factor


def refusing(x: Tensor, factor: float | Tensor) -> Tensor:
    """Take no tensor with a derivative."""
    if isinstance(factor, Tensor) and factor.requires_grad:
        raise TypeError("a number, please")
    return losing(x, factor)


def by_default(x: Tensor, *, factor: float | Tensor = 2.0) -> Tensor:
    """Have a number that a sample leaves out."""
    return losing(x, factor)


def rolled(x: Tensor, shift: int | Tensor) -> Tensor:
    """Take a whole number."""
    return torch.roll(x, int(shift))


def without_numbers(x: Tensor, other: Tensor) -> Tensor:
    return x * other


X = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
DERIVING = [
    ("vjp", "upstream"),
    ("backward", "upstream"),
    ("jvp", "upstream"),
    ("dual", "upstream"),
]


@pytest.mark.parametrize(("pipeline", "against"), DERIVING)
def test_a_derivative_by_a_number_is_that_of_differences(pipeline: str, against: str) -> None:
    asserted("right", pipeline, against, X, 3.0)
    with pytest.raises(Mismatch, match=r"of a tensor for argument 1.*largest error"):
        asserted("losing", pipeline, against, X, 3.0)


def test_an_error_is_no_lost_derivative() -> None:
    asserted("refusing", "vjp", "upstream", X, 3.0)


def test_a_number_that_a_sample_leaves_out_is_asked_for() -> None:
    with pytest.raises(Mismatch, match="of a tensor for factor"):
        asserted("by_default", "vjp", "upstream", X)


def test_a_batch_of_numbers_is_a_loop_over_them() -> None:
    asserted("right", "vmap", "loop", X, 3.0)
    asserted("rolled", "vmap", "loop", X, 1)  # torch refuses to read a number of a batch


class FirstOfBatch(TorchTarget):
    """A target whose batches have the number of their first entry."""

    def vmap(self, f: Callable[..., Any], in_dims: Any, out_dims: Any = 0) -> Callable[..., Any]:
        def g(*args: Tensor) -> Any:
            firsts = [
                x if dim is None else x.select(dim, 0) for x, dim in zip(args, in_dims, strict=True)
            ]
            size = next(
                x.shape[dim] for x, dim in zip(args, in_dims, strict=True) if dim is not None
            )
            return tuple(torch.stack([y] * size) for y in f(*firsts))

        return g


def test_a_batch_with_the_number_of_one_entry_is_wrong() -> None:
    with pytest.raises(Mismatch, match="largest error"):
        asserted("right", "vmap", "loop", X, 3.0, target=FirstOfBatch())


class FirstGraph(TorchTarget):
    """A target whose graphs have the number of the call that was captured."""

    def trace(self, f: Callable[..., Any], args: Sequence[Tensor], *, dynamic: bool) -> Any:
        number, *_ = args
        return lambda _, *others: f(number, *others)


def test_a_graph_with_the_number_of_one_call_is_wrong() -> None:
    asserted("rolled", "trace", "eager", X, 1)
    for call, number in (("rolled", 1), ("right", 3.0)):
        with pytest.raises(Mismatch, match="of a tensor for argument 1"):
            asserted(call, "trace", "eager", X, number, target=FirstGraph())


def test_an_op_without_numbers_lacks_the_form() -> None:
    with pytest.raises(Lacking, match="has no number that the op takes a tensor for"):
        asserted("without_numbers", "vjp", "upstream", X, X)
