"""An op computes of its arguments, and not of what lies beside them in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gen.outcomes import Lacking, Mismatch, Vacuous
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import case, row_of

Tensor = torch.Tensor
VALUES = {"values": "neighbours"}
VECTOR = {"shape": [4]}


def row_behind(x: Tensor) -> Tensor:
    """Add up an element more than x has, if there is memory behind it."""
    room = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    return x.as_strided((min(x.numel() + 1, room),), (1,), x.storage_offset()).sum()


def row_before(x: Tensor) -> Tensor:
    """Leave a number in front of x, if there is memory."""
    if x.storage_offset():
        x.as_strided((1,), (1,), x.storage_offset() - 1).fill_(5)
    return x * 2


def trusting(x: Tensor, w: Tensor) -> Tensor:
    """Multiply x by as many weights as x has numbers, whether or not there are that many."""
    return x * w.as_strided(x.shape, (1,), w.storage_offset())


def asking(x: Tensor, w: Tensor) -> Tensor:
    """Multiply x by weights of its shape alone."""
    if x.shape != w.shape:
        raise ValueError("the weights have another shape")
    return x * w


def picked(x: Tensor, places: Tensor) -> Tensor:
    """Return numbers at places, whatever they are."""
    start = x.storage_offset()
    piece = x.as_strided((1,), (1,), 0)
    return torch.stack([piece.as_strided((), (), start + int(i)) for i in places])


def drawn(x: Tensor) -> Tensor:
    return torch.rand_like(x)


def cell(function: Any, *args: Any) -> Any:
    call = f"tests.checks.test_neighbours:{function.__name__}"
    row = row_of({"args": list(args)}, call=call)
    return case(
        f"own.{function.__name__}",
        "float32",
        TorchTarget(),
        VALUES,
        ops={f"own.{function.__name__}": row},
    )


PLACES = {"shape": [3], "domain": "permutation"}
FAULTS = {
    "a number behind the argument": (
        row_behind,
        (VECTOR,),
        "the sample as it is: output 0 depends",
    ),
    "a write before the argument": (row_before, (VECTOR,), "it writes beside argument 0"),
    "too few weights": (trusting, (VECTOR, VECTOR), "input 1 with 3 of 4 in dimension 0: output 0"),
    "an index too large": (
        picked,
        (VECTOR, PLACES),
        "input 1 with the number 4 in front: output 0",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_op_that_leaves_its_arguments_is_found(name: str) -> None:
    function, args, says = FAULTS[name]
    with pytest.raises(Mismatch, match=says):
        cell(function, *args).assert_same("forward", against="eager")


def test_an_op_that_refuses_what_is_too_small_is_right() -> None:
    cell(asking, VECTOR, VECTOR).assert_same("forward", against="eager")


def test_an_op_of_torch_that_takes_another_shape_is_right() -> None:
    case(
        "torch.mul",
        "float32",
        TorchTarget(),
        VALUES,
        ops={"torch.mul": row_of({"args": [VECTOR, {"shape": [1]}]})},
    ).assert_same("forward", against="eager")


def test_an_op_that_draws_is_not_asked() -> None:
    with pytest.raises((Lacking, Vacuous), match="draws random numbers"):
        cell(drawn, VECTOR).assert_same("forward", against="eager")
