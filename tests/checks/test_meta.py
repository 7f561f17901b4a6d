"""On the meta device shapes and dtypes are compared, and nothing else is claimed."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from gen.checks import Case, Cell, Family
from gen.language.axes import USUAL
from gen.outcomes import Lacking, Mismatch
from gen.targets.torch_target import TorchTarget


def run(op: str, pipeline: str, target: Any) -> None:
    Case(
        Cell(op, "float32", USUAL, "full", ()), pipeline, Family("meta"), target, "meta"
    ).assert_same(pipeline, against="loop")


class WrongShape(TorchTarget):
    def vmap(
        self, f: Callable[..., Any], in_dims: Sequence[int | None], out_dims: Any = 0
    ) -> Callable[..., Any]:
        right = super().vmap(f, tuple(in_dims))
        return lambda *args: tuple(out.unsqueeze(-1) for out in right(*args))


@pytest.mark.parametrize("pipeline", ["vjp", "vmap", "vmap . vjp"])
def test_a_right_target_has_the_right_shapes(pipeline: str) -> None:
    run("torch.mul", pipeline, TorchTarget())


def test_a_wrong_shape_is_seen() -> None:
    with pytest.raises(Mismatch, match="has shape"):
        run("torch.mul", "vmap", WrongShape())


def test_an_op_that_needs_values_has_nothing_to_compare() -> None:
    with pytest.raises(Lacking, match="needs values"):
        run("torch.nonzero", "forward", TorchTarget())


def test_where_a_transform_alone_needs_values_it_fails_with_its_own_error() -> None:
    class Reading(TorchTarget):
        def vmap(
            self, f: Callable[..., Any], in_dims: Sequence[int | None], out_dims: Any = 0
        ) -> Callable[..., Any]:
            return lambda *args: (args[0].sum().item(),)

    with pytest.raises(RuntimeError, match="meta tensors"):
        run("torch.mul", "vmap", Reading())


@pytest.mark.parametrize("pipeline", ["jacrev", "trace"])
def test_what_a_program_holds_besides_its_inputs_is_on_the_meta_device_too(pipeline: str) -> None:
    run("torch.bmm", pipeline, TorchTarget())


def test_a_sample_that_names_the_device_of_its_result_is_not_run() -> None:
    with pytest.raises(Lacking, match="names the device"):
        run("torch.ones", "forward", TorchTarget())


def test_the_target_is_given_no_values() -> None:
    seen: list[str] = []

    class Watching(TorchTarget):
        def forward(self, f: Callable[..., Any]) -> Callable[..., Any]:
            def g(*args: Any) -> Any:
                seen.extend(x.device.type for x in args if isinstance(x, torch.Tensor))
                return f(*args)

            return g

    run("torch.sin", "forward", Watching())
    assert set(seen) == {"meta"}
