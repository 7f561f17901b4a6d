"""A jitted case compares every call of one jitted function, so that a replay of the
wrong thing is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gen.checks import Case, Cell, Family
from gen.language.axes import Axes
from gen.outcomes import Lacking, Mismatch
from gen.targets.torch_target import TorchTarget

OWN: dict[str, dict[str, Any]] = {
    "own.product": {
        "call": "torch:mul",
        "reference": "torch:mul",
        "samples": [{"args": [{"shape": [4, 3]}, {"shape": [4, 3]}]}],
        "errors": [
            {
                "args": [{"shape": [2]}, {"shape": [3]}],
                "raises": "RuntimeError",
                "match": "must match the size",
            }
        ],
    },
}
Flat = Callable[..., Any]


class Jitting(TorchTarget):
    """A target whose jit is right, and which notes the shapes of the calls."""

    lacks = frozenset[str]()

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[tuple[int, ...]]] = []

    def jit(self, f: Flat) -> Flat:
        self.calls.append([])
        return lambda *args: self.run(f, self.calls[-1], args)

    def run(self, f: Flat, calls: list[tuple[int, ...]], args: tuple[Any, ...]) -> Any:
        calls.append(tuple(args[0].shape))
        return f(*args)


class Repeating(Jitting):
    """Replays the results of the first call."""

    def jit(self, f: Flat) -> Flat:
        known: list[Any] = []

        def g(*args: Any) -> Any:
            known.append(f(*args))
            return known[0]

        return g


class WrongAt(Jitting):
    """Adds one to the results of a call by its number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def run(self, f: Flat, calls: list[tuple[int, ...]], args: tuple[Any, ...]) -> Any:
        outputs = super().run(f, calls, args)
        return tuple(x + (len(calls) == self.number) for x in outputs)


class Swallowing(Jitting):
    """Loses the exceptions of the op."""

    def run(self, f: Flat, calls: list[tuple[int, ...]], args: tuple[Any, ...]) -> Any:
        try:
            return super().run(f, calls, args)
        except RuntimeError:
            return (args[0],)


def case(target: Any, run: str = "jitted", op: str = "own.product") -> Case:
    return Case(
        Cell(op, "float64", Axes.varying({"run": run}), "full", ()),
        "check",
        Family("tests", OWN),
        target,
    )


PIPELINES = ["forward", "vjp", "vmap", "grad", "vmap . vjp", "backward", "trace", "trace . vjp"]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_right_jit_passes(pipeline: str) -> None:
    target = Jitting()
    case(target).assert_same(pipeline, against="loop")
    assert target.calls


@pytest.mark.parametrize("pipeline", PIPELINES[:-2])
def test_a_jit_that_repeats_its_first_results_is_seen(pipeline: str) -> None:
    with pytest.raises(Mismatch):
        case(Repeating()).assert_same(pipeline, against="loop")


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_every_call_is_compared(number: int) -> None:
    with pytest.raises(Mismatch, match="largest error 1 "):
        case(WrongAt(number)).assert_same("vjp", against="loop")


def test_calls_have_the_sizes_of_the_sample_then_two_larger_ones() -> None:
    target = Jitting()
    case(target).assert_same("vjp", against="loop")
    assert target.calls == [[(4, 3), (4, 3), (8, 3), (16, 3)]]


def test_a_plain_case_is_not_jitted() -> None:
    target = Jitting()
    case(target, run="plain").assert_same("vjp", against="loop")
    assert not target.calls


def test_a_graph_is_jitted_itself() -> None:
    graphs = []

    class Graphs(Jitting):
        def jit(self, f: Flat) -> Flat:
            graphs.append(f)
            return super().jit(f)

    case(Graphs()).assert_same("trace", against="eager")
    assert all(isinstance(graph, torch.fx.GraphModule) for graph in graphs) and graphs


def test_own_references_and_numbers_are_compared_call_by_call() -> None:
    case(Jitting()).assert_same("forward", against="reference")
    case(Jitting()).assert_same("backward . backward", against="numeric")
    for number in (1, 2):
        with pytest.raises(Mismatch):
            case(WrongAt(number)).assert_same("forward", against="reference")
        with pytest.raises(Mismatch):
            case(WrongAt(number)).assert_same("backward . backward", against="numeric")


def test_a_jitted_op_must_raise_too() -> None:
    case(Jitting()).assert_same("forward", against="raises")
    with pytest.raises(Mismatch, match="no RuntimeError was raised"):
        case(Swallowing()).assert_same("forward", against="raises")


def test_a_target_without_jit_lacks_it() -> None:
    with pytest.raises(Lacking, match="target torch lacks jit"):
        case(TorchTarget()).assert_same("vjp", against="loop")


def test_a_jitted_case_makes_the_choices_of_its_plain_form() -> None:
    assert case(Jitting()).seed == case(Jitting(), run="plain").seed
