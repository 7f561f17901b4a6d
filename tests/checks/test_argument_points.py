"""Points by the kind of an argument: which arguments are found, and which mistakes show there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gen.language.axes import AXES, OF_ARGUMENTS
from gen.outcomes import Lacking, Mismatch
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import case, row_of

Tensor = torch.Tensor
D = torch.float64


def test_kinds_of_arguments_are_words_of_the_axis() -> None:
    assert set(OF_ARGUMENTS) < set(AXES["values"])


# --- which points there are -----------------------------------------------------------------------


class Plain(TorchTarget):
    """Torch under another name, so that it is compared with the plain op."""

    name = "plain"


class Noting(Plain):
    """A target that notes its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, ...]] = []

    def forward(self, f: Any) -> Any:
        def g(*inputs: Tensor) -> Any:
            self.seen.append(inputs)
            return f(*inputs)

        return g


def noted(word: str, op: str, *args: Any, **kwargs: Any) -> list[tuple[Tensor, ...]]:
    """Return the inputs of the points of a word, those that the op refuses included."""
    target = Noting()
    row = row_of({"args": list(args), "kwargs": kwargs})
    first = next(x for x in args if isinstance(x, Tensor))
    dtype = str(first.dtype).removeprefix("torch.")
    made = case(op, dtype, target, {"values": word}, ops={op: row})
    made.assert_same("forward", against="eager")
    return target.seen


def test_labels_are_ignored_equal_or_out_of_range() -> None:
    x, labels = torch.randn(3, 4, dtype=D), torch.tensor([0, 1, 2])
    found = {
        tuple(y.tolist()) for _, y in noted("labels", "torch.nn.functional.nll_loss", x, labels)
    }
    assert {(-100, -100, -100), (-100, 1, 2), (-1, 1, 2), (2, 2, 2), (4, 1, 2)} <= found


def test_indices_come_in_every_order() -> None:
    x, index = torch.randn(4, dtype=D), torch.tensor([2, 0, 3])
    found = {tuple(i.tolist()) for _, i in noted("indices", "torch.index_select", x, 0, index)}
    orders = {(0, 2, 3), (3, 2, 0), (3, 2, 0), (2, 2, 3), (0, 0, 0), (3, 3, 3), (-1, -1, -1)}
    assert orders <= found


def test_masks_hide_all_nothing_or_one() -> None:
    x, mask = torch.randn(3, dtype=D), torch.tensor([True, False, True])
    found = {tuple(m.int().tolist()) for _, m in noted("masks", "torch.masked_fill", x, mask, 0.5)}
    assert found == {(1, 1, 1), (0, 0, 0), (1, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 0)}


def test_a_probability_is_what_the_op_refuses_outside_of_0_and_1() -> None:
    op, p, target = "torch.nn.functional.binary_cross_entropy", torch.full((2,), 0.5), torch.ones(2)
    found = [x.tolist() for x, _ in noted("certain", op, p.to(D), target.to(D))]
    assert [0.0, 0.0] in found and [1.0, 1.0] in found and [0.0, 1.0] in found
    made = case("torch.sin", target=Plain(), axes={"values": "certain"})
    with pytest.raises(Lacking, match="no certain to compare at"):
        made.assert_same("forward", against="eager")


def test_the_last_size_is_next_to_those_of_vectors() -> None:
    found = noted("widths", "torch.sum", torch.randn(2, 3, dtype=D), 1)
    assert [tuple(x.shape) for (x,) in found][:3] == [(2, 7), (2, 8), (2, 9)]
    assert (2, 257) in [tuple(x.shape) for (x,) in found]


def test_sizes_are_0_together_and_alone() -> None:
    x = torch.randn(2, 3, dtype=D)
    found = noted("empty_dims", "torch.add", x, x.clone())
    shapes = {(tuple(a.shape), tuple(b.shape)) for a, b in found}
    assert {((0, 3), (0, 3)), ((2, 0), (2, 0)), ((0, 3), (2, 3))} <= shapes


def test_nan_and_infinity_stand_at_each_place() -> None:
    found = noted("each_place", "torch.amax", torch.zeros(3, dtype=D))
    assert [int((~x.isfinite()).nonzero()) for (x,) in found] == [0, 0, 1, 1, 2, 2]


def test_integers_are_at_the_ends_of_their_dtype_or_positive() -> None:
    x = torch.tensor([5, 2], dtype=torch.int8)
    found = [x.tolist() for (x,) in noted("ends", "torch.neg", x)]
    assert found[:3] == [[-128, -128], [127, 127], [-1, -1]]
    assert found[3:] == [[1, 2], [-128, 127]]


# --- which mistakes show --------------------------------------------------------------------------


class WrongTail(Plain):
    """A target whose kernels forget the last numbers of a row that no vector holds."""

    def forward(self, f: Any) -> Any:
        def g(*xs: Tensor) -> Any:
            (y,) = f(*xs)
            whole = y.shape[-1] // 8 * 8
            if whole and y.ndim:
                y[..., whole:] = 0
            return (y,)

        return g


def test_the_rest_of_a_row_that_is_no_vector_shows_at_other_widths() -> None:
    widths = {"values": "widths"}
    with pytest.raises(Mismatch, match="width 9"):
        case("torch.exp", "float32", WrongTail(), widths).assert_same("forward", against="pieces")
    case("torch.exp", "float32", axes=widths).assert_same("forward", against="pieces")


def of_bytes(x: Tensor) -> Tensor:
    """Return the sums of rows, wrongly for rows of more than 16 bytes without gaps."""
    sums = x.sum(-1)
    if not x.is_meta and x.shape[-1] > 16 and x.stride(-1) == 1:
        return sums - 1
    return sums


def test_torch_itself_is_compared_with_its_other_paths() -> None:
    row = row_of(
        {"args": [torch.arange(1, 9, dtype=torch.uint8).reshape(2, 4)]},
        call="tests.checks.test_argument_points:of_bytes",
    )
    made = case("own.of_bytes", "uint8", axes={"values": "widths"}, ops={"own.of_bytes": row})
    with pytest.raises(Mismatch, match="width 17"):
        made.assert_same("forward", against="pieces")


def mixing(x: Tensor) -> Tensor:
    """Return maxima of rows, in which a NaN of one row reaches the next one."""
    found = x.amax(-1)
    return torch.where(found.isnan().any(), found + found.roll(1) * 0, found)


def test_a_number_that_reaches_another_row_shows() -> None:
    x = torch.arange(6.0, dtype=D).reshape(2, 3)
    row = row_of({"args": [x]}, call="tests.checks.test_argument_points:mixing")
    made = case("own.mixing", axes={"values": "each_place"}, ops={"own.mixing": row})
    with pytest.raises(Mismatch, match="nan at 0 of input 0"):
        made.assert_same("forward", against="pieces")


class TakingAnyLabel(Plain):
    """A target that takes a label out of range for the last one."""

    def forward(self, f: Any) -> Any:
        return lambda x, y: f(x, y.clamp(max=x.shape[1] - 1))


def test_a_label_that_the_plain_op_refuses_must_be_refused() -> None:
    op, labels = "torch.nn.functional.nll_loss", {"values": "labels"}
    row = row_of({"args": [torch.randn(3, 4, dtype=D), torch.tensor([0, 1, 2])]})
    made = case(op, target=TakingAnyLabel(), axes=labels, ops={op: row})
    with pytest.raises(Mismatch, match="4 first in input 1 is taken, but the plain op raises"):
        made.assert_same("forward", against="eager")
    case(op, target=Plain(), axes=labels, ops={op: row}).assert_same("forward", against="eager")
