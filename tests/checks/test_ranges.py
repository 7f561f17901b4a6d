"""Arguments out of range: what a target must refuse."""

from typing import Any

import pytest
import torch

from gen.outcomes import Lacking, Mismatch
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import case

RANGE, INDEX = {"values": "out_of_range"}, {"values": "no_index"}


class Wrapping(TorchTarget):
    """A target that takes an index modulo the size, as compiled code may."""

    name = "wrapping"

    def forward(self, f: Any) -> Any:
        def g(*xs: torch.Tensor) -> Any:
            size = xs[0].shape[0] if xs[0].ndim else 1
            return f(*(x.remainder(size) if x.dtype is torch.int64 else x for x in xs))

        return g


class Plain(TorchTarget):
    name = "plain"


def test_an_index_that_the_plain_op_refuses_must_be_refused() -> None:
    with pytest.raises(Mismatch, match="-1 in tensor 1 is taken, but the plain op raises"):
        case("torch.index_select", target=Wrapping(), axes=RANGE).assert_same(
            "forward", against="eager"
        )
    case("torch.index_select", target=Plain(), axes=RANGE).assert_same("forward", against="eager")


def test_an_index_that_no_dimension_has_must_be_refused_whatever_the_plain_op_does() -> None:
    case("torch.gather", axes=INDEX).assert_same("forward", against="eager")
    with pytest.raises(Mismatch, match="no dimension has it"):
        case("torch.take_along_dim", axes=INDEX).assert_same("forward", against="eager")


def test_vmap_must_refuse_what_a_loop_refuses() -> None:
    case("torch.gather", axes=RANGE).assert_same("vmap", against="loop")
    with pytest.raises(Mismatch, match="in tensor 1 is taken, but the plain op raises"):
        case("torch.nn.functional.embedding", axes=RANGE).assert_same("vmap", against="loop")


def test_torch_is_not_compared_with_itself() -> None:
    with pytest.raises(Lacking, match="compared with itself"):
        case("torch.index_select", axes=RANGE).assert_same("forward", against="eager")
