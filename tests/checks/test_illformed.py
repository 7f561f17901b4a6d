"""The check of ill-formed calls finds a vmap that treats the batch as a dimension of the op, and
one that refuses what a loop accepts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gen.checks import Case
from gen.outcomes import Mismatch, Vacuous
from gen.reference import Loop
from tests.checks.cells import case, row_of


class Sloppy(Loop):
    """Hands the whole batch to the op, which is right for many calls."""

    def vmap(
        self, f: Callable[..., Any], in_dims: tuple[int | None, ...], out_dims: Any = 0
    ) -> Callable[..., Any]:
        return f


class Strict(Loop):
    """Refuses whatever is not a batch of matrices."""

    def vmap(
        self, f: Callable[..., Any], in_dims: tuple[int | None, ...], out_dims: Any = 0
    ) -> Callable[..., Any]:
        def g(*args: torch.Tensor) -> Any:
            if any(x.ndim != 3 for x in args):
                raise RuntimeError("matrices only")
            return super(Strict, self).vmap(f, in_dims)(*args)

        return g


def check(target: Loop, op: str, *args: Any) -> Case:
    """Compare ill-formed variants of one call under vmap with a loop."""
    dtype = str(args[0].dtype).removeprefix("torch.")
    row = row_of({"args": list(args)})
    made = case(op, dtype, target, {"values": "ill_formed"}, ops={op: row})
    made.assert_same("vmap", against="loop")
    return made


MATRIX = torch.eye(3, dtype=torch.float64) + torch.ones(3, 3, dtype=torch.float64)


def test_a_loop_does_as_a_loop() -> None:
    assert check(Loop(), "torch.linalg.inv", MATRIX).compared
    assert check(Loop(), "torch.unsqueeze", torch.ones(2, 3), -1).compared


def test_a_batch_taken_for_a_dimension_is_seen() -> None:
    with pytest.raises(
        Mismatch,
        match=(
            r"tensor 0 without its first dimension, batch of 3 in \[0\]: "
            r"the loop raises .* and vmap gives"
        ),
    ):
        check(Sloppy(), "torch.linalg.inv", MATRIX)


def test_a_dimension_that_reaches_the_batch_is_seen() -> None:
    with pytest.raises(
        Mismatch, match=r"-3 in place of -1 .*: the loop raises IndexError.* and vmap gives"
    ):
        check(Sloppy(), "torch.sum", torch.ones(2, 3), -1)


def test_a_refusal_of_what_a_loop_takes_is_seen() -> None:
    with pytest.raises(
        Mismatch,
        match=(
            r"tensor 0 with a dimension more, .* vmap raises RuntimeError: "
            r"matrices only, and the loop gives"
        ),
    ):
        check(Strict(), "torch.linalg.inv", MATRIX)


def test_where_vmap_refuses_the_sample_itself_variants_say_nothing() -> None:
    with pytest.raises(Vacuous, match="vmap refuses the sample itself"):
        check(Strict(), "torch.sin", torch.ones(4))
