"""Axis `batch`: dimensions of outputs, negative dimensions, no entries, and mistakes."""

from typing import Any

import pytest

from gen.outcomes import Mismatch
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import case


class AtTheFront(TorchTarget):
    """A target that takes every place for the batch of an output for the front, once an output
    has two dimensions."""

    def vmap(self, f: Any, in_dims: Any, out_dims: Any = 0) -> Any:
        return super().vmap(f, in_dims, 0)


class FromTheFront(TorchTarget):
    """A target that counts negative dimensions of inputs from the front."""

    def vmap(self, f: Any, in_dims: Any, out_dims: Any = 0) -> Any:
        return super().vmap(f, tuple(d if d is None else abs(d) - 1 for d in in_dims), out_dims)


class OneEntry(TorchTarget):
    """A target that gives one entry for none."""

    def vmap(self, f: Any, in_dims: Any, out_dims: Any = 0) -> Any:
        mapped = super().vmap(f, in_dims, out_dims)
        return lambda *args: tuple(
            y if len(y) else y.new_zeros((1, *y.shape[1:])) for y in mapped(*args)
        )


class Lenient(TorchTarget):
    """A target that broadcasts a batch of one entry."""

    def vmap(self, f: Any, in_dims: Any, out_dims: Any = 0) -> Any:
        def g(*args: Any) -> Any:
            size = max(x.shape[0] for x in args if x.ndim)
            grown = [
                x.expand(size, *x.shape[1:]) if x.ndim and x.shape[0] == 1 else x for x in args
            ]
            return super(Lenient, self).vmap(f, in_dims, out_dims)(*grown)

        return g


class Broken(TorchTarget):
    """A target that gives wrong answers after it has raised an error."""

    raised = False

    def vmap(self, f: Any, in_dims: Any, out_dims: Any = 0) -> Any:
        def g(*args: Any) -> Any:
            try:
                found = super(Broken, self).vmap(f, in_dims, out_dims)(*args)
            except Exception:
                self.raised = True
                raise
            return tuple(y + 1 for y in found) if self.raised else found

        return g


def run(batch: str, target: Any = None, op: str = "torch.mul", pipeline: str = "vmap") -> None:
    case(op, target=target, axes={"batch": batch}).assert_same(pipeline, against="loop")


@pytest.mark.parametrize("batch", ["out_dims", "negative", "empty", "mistaken"])
def test_the_right_answer_passes(batch: str) -> None:
    run(batch, op="torch.sin")


def test_ignored_out_dims_are_noticed() -> None:
    with pytest.raises(Mismatch, match="has shape"):
        run("out_dims", AtTheFront(), "torch.sin")


def test_negative_dimensions_that_are_counted_from_the_front_are_noticed() -> None:
    with pytest.raises(Mismatch):
        run("negative", FromTheFront(), "torch.sin")


def test_an_entry_out_of_nothing_is_noticed() -> None:
    with pytest.raises(Mismatch, match=r"without entries.*has shape \[1"):
        run("empty", OneEntry(), "torch.sin")


def test_a_gradient_of_what_is_not_batched_is_zero_without_entries() -> None:
    case("torch.mm", axes={"batch": "empty"}).assert_same("vjp . vmap", against="loop")


def test_an_answer_to_batches_of_other_sizes_is_noticed() -> None:
    with pytest.raises(Mismatch, match="vmap answers a mistake; batches of other sizes"):
        run("mistaken", Lenient(), "torch.mm")


def test_a_target_that_an_error_leaves_broken_is_noticed() -> None:
    with pytest.raises(Mismatch, match="largest error"):
        run("mistaken", Broken(), "torch.mm")
