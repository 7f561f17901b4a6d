"""How a step runs its program until it is for the call: again, for the other side of a branch, and
what is put back and noted between.

Inside: ``runtime.jit.steps``, ``sides`` and ``beginning``. A program of a user takes these ways
only if its draws happen to fall so. Here the outcome of each run is given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx

import runtime
from runtime.jit.beginning import Beginning, Leaves
from runtime.jit.sides import DRAWS, Side, Sides
from runtime.jit.steps import Steps, _Again
from runtime.jit.turns import Turns
from runtime.seam.generator_states import GeneratorStates
from runtime.trace.number_reads import OtherSide, on_side


class Runs:
    """In place of the programs of a jitted function: each call does the next of ``outcomes``, which
    is a result or an error, or :class:`_Again` for one of this function."""

    def __init__(self, *outcomes: Any) -> None:
        self.steps = Steps(lambda x: x, False, Turns())
        self.left = list(outcomes)
        self.sides: list[Any] = []
        self.call = self.steps.around(self.run)

    def run(self, *args: Any) -> Any:
        self.sides.append(args[0] if isinstance(args[0], Side) else None)
        assert args[-1] == "x"
        outcome = self.left.pop(0)
        if outcome is _Again:
            outcome = _Again(self.steps)
        if isinstance(outcome, BaseException):
            DRAWS.before = GeneratorStates()
            torch.rand(1)
            raise outcome
        return outcome

    def __call__(self) -> Any:
        found = self.call("x")
        assert self.left == []
        return found


def test_a_program_that_is_to_be_captured_again_is_run_again() -> None:
    runs = Runs(_Again, _Again, 5)
    assert runs() == 5 and runs.sides == [None] * 3


def test_a_program_inside_leaves_the_one_around_it_to_be_captured_again() -> None:
    around = Steps(lambda x: x, False, Turns())
    with pytest.raises(_Again) as raised:
        Runs(_Again(around))()
    assert raised.value.steps is around


def test_the_side_that_a_branch_took_last_is_tried_first() -> None:
    runs = Runs(OtherSide(), 5)
    assert runs() == 5
    first, second = runs.steps.sides.known
    assert runs.sides == [None, first] and isinstance(first, Side) and second is None
    runs.left = [6]
    assert runs() == 6 and runs.sides[2:] == [first]
    runs.left = [OtherSide(), 7]
    assert (
        runs() == 7 and runs.sides[3:] == [first, None] and runs.steps.sides.known == [None, first]
    )
    runs.left = [OtherSide(), OtherSide(), _Again, 8]
    assert runs() == 8
    third = runs.steps.sides.known[0]
    assert (
        runs.sides[5:] == [None, first, third, third]
        and third not in (None, first)
        and runs.steps.sides.known == [third, None, first]
    )


def test_a_branch_that_takes_another_side_whenever_it_is_run_is_an_error() -> None:
    runs = Runs(OtherSide(), OtherSide())
    with pytest.raises(RuntimeError, match="takes another side whenever it is run"):
        runs()
    assert runs.left == [] and runs.steps.sides.known == [None]


@pytest.mark.parametrize("sides", [1, 2])
def test_what_a_program_for_another_side_has_drawn_is_drawn_again(sides: int) -> None:
    runs = Runs(*(OtherSide() for _ in range(sides)), 5)
    if sides == 2:
        runs.steps.sides.known.append(Side())
    torch.manual_seed(3)
    assert runs() == 5
    found = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(found, torch.rand(1))
    DRAWS.before = None


def test_a_capture_goes_the_way_that_is_known_of_the_call() -> None:
    tried: list[str | None] = []

    def run(side: Side | None) -> str:
        """A call on the way "-+-", whose captures take "+" where they are not told the side."""
        way = "" if side is None else side.way
        tried.append(way)
        taken = way + "+++"[len(way) :]
        for k, (ours, theirs) in enumerate(zip(taken, "-+-", strict=True)):
            if ours != theirs:
                raise OtherSide(way="-+-"[: k + 1])
        return way

    sides = Sides()
    with pytest.raises(OtherSide) as other:
        run(sides.known[0])
    assert sides.by_another(run, other.value) == "-+-"
    assert tried == ["", "-", "-+-"]
    assert run(sides.known[0]) == "-+-"


@pytest.mark.parametrize("of_session", [True, False])
@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_leaves_have_hooks_if_one_of_them_has_one(kind: str, of_session: bool) -> None:
    mine: list[Any] = [runtime.tensor([1.0], requires_grad=True) for _ in range(2)]
    torchs: list[Any] = [torch.ones(1, requires_grad=True) for _ in range(2)]
    leaves = Leaves([*mine, *torchs])
    handle = getattr((mine if of_session else torchs)[1], kind)(lambda t: None)
    found = [leaves.hooked]
    handle.remove()
    found.append(leaves.hooked)
    assert found == [True, False]


@pytest.mark.parametrize("sided", [True, False])
def test_before_a_graph_that_may_be_for_another_side_gradients_stay_and_draws_are_noted(
    sided: bool,
) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch.ops.aten.bernoulli.default, (x,))
    if sided:
        graph.call_function(on_side, (x, True))
    leaf: Any = torch.ones(1, requires_grad=True)
    leaf.grad = torch.ones(1)
    joint: Any = SimpleNamespace(traced=fx.GraphModule({}, graph))
    begin = Beginning([leaf], (), (), False, require_alone=None).of(joint)
    assert begin is not None
    lost = begin(SimpleNamespace(leaves=[]))  # type: ignore[arg-type]
    before: Any = DRAWS.before
    DRAWS.before = None
    if sided:
        assert (
            list(lost) == []
            and leaf.grad is not None
            and before is not None
            and torch.equal(before._cpu, torch.get_rng_state())
        )
    else:
        assert lost == [".grad is None of 1 tensor"] and leaf.grad is None and before is None
