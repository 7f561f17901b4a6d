"""What a jitted step finds and leaves in Python's state beside gradients: places of tensors,
leaves, optimizers of others, errors."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

import runtime
from runtime import jit
from runtime.jit.beginning import Beginning
from runtime.jit.outcome import _without_history_of_torch
from runtime.jit.sides import DRAWS, Side
from runtime.jit.steps import Steps, _Again, _Leaves
from runtime.seam.generator_states import GeneratorStates
from runtime.trace.number_reads import OtherSide, on_side

from .training import linear


def recorded() -> Tensor:
    return torch.ones(2, requires_grad=True) * 2


KEPT: dict[str, Callable[[], Any]] = {
    "a number": lambda: 3,
    "nothing": lambda: None,
    "a tensor": lambda: torch.ones(2),
    "a leaf": lambda: torch.ones(2, requires_grad=True),
    "a tensor of the session": lambda: runtime.tensor([1.0], requires_grad=True) * 2,
}


@pytest.mark.parametrize("name", KEPT)
def test_what_torch_has_not_recorded_is_what_is_at_a_place(name: str) -> None:
    x = KEPT[name]()
    assert _without_history_of_torch(x) is x


def test_a_gradient_does_not_cross_to_what_torch_has_recorded() -> None:
    x: Any = recorded()
    with torch.no_grad():
        assert _without_history_of_torch(x) is x
    found = _without_history_of_torch(x)
    assert (
        isinstance(found, runtime.Tensor)
        and found.requires_grad
        and found.tolist() == [2.0, 2.0]
        and found.output_nr == 0
    )
    with pytest.raises(RuntimeError, match="recorded by torch's own autograd"):
        (found * 2).sum().backward()


@pytest.mark.parametrize("uses", [False, True])
def test_what_torch_has_recorded_may_be_replaced_and_read_but_not_differentiated(
    uses: bool,
) -> None:
    owner = SimpleNamespace(h=recorded())
    weight = torch.ones(2, requires_grad=True)

    def step(x: Tensor) -> None:
        old = owner.h
        owner.h = x * 3
        ((old if uses else old.detach()) * weight).sum().backward()

    if uses:
        with pytest.raises(
            RuntimeError, match="reaches a tensor that has a history from before the call"
        ):
            jit(step)(torch.ones(2))
        return
    jit(step)(torch.ones(2))
    assert (
        owner.h.tolist() == [3.0, 3.0]
        and weight.grad is not None
        and weight.grad.tolist() == [2.0, 2.0]
    )


@pytest.mark.parametrize("of_session", [True, False])
@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_leaves_have_hooks_if_one_of_them_has_one(kind: str, of_session: bool) -> None:
    mine: list[Any] = [runtime.tensor([1.0], requires_grad=True) for _ in range(2)]
    torchs: list[Any] = [torch.ones(1, requires_grad=True) for _ in range(2)]
    leaves = _Leaves([*mine, *torchs])
    handle = getattr((mine if of_session else torchs)[1], kind)(lambda t: None)
    found = [leaves.hooked]
    handle.remove()
    found.append(leaves.hooked)
    assert found == [True, False]


@pytest.mark.parametrize(
    "error", [TypeError("of the program"), TypeError("SymInt"), ValueError("SymFloat")]
)
def test_an_error_of_the_program_is_that_error(error: Exception) -> None:
    def f(x: Tensor) -> Tensor:
        raise error

    with pytest.raises(type(error)) as raised:
        jit(f)(torch.ones(2))
    assert raised.value is error


def test_a_result_whose_gradient_the_program_wants_kept_is_refused() -> None:
    weight = torch.ones(2, requires_grad=True)

    @jit
    def f(x: Tensor) -> Tensor:
        y = weight * x
        y.retain_grad()
        y.sum().backward(retain_graph=True)
        return y

    with pytest.raises(RuntimeError, match=r"calls retain_grad\(\) of a tensor that it returns"):
        f(torch.ones(2))


def test_another_threads_optimizer_is_none_of_the_programs() -> None:
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.5)
    errors: list[BaseException] = []
    held = [optimizer]

    def other() -> None:
        try:
            for p in held[0].param_groups[0]["params"]:
                p.grad = torch.ones_like(p)
            held[0].step()
        except BaseException as e:
            errors.append(e)

    def f(x: Tensor) -> Tensor:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return x * 2

    before = [p.detach().clone() for p in model.parameters()]
    assert jit(f, ignore=held)(torch.ones(2)).tolist() == [2.0, 2.0] and errors == []
    for p, old in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), old - 0.5)


class Runs:
    """In place of the programs of a jitted function: each call does the next of ``outcomes``, which
    is a result or an error, or :class:`_Again` for one of this function."""

    def __init__(self, *outcomes: Any) -> None:
        self.steps = Steps(lambda x: x, False, threading.RLock())
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
    around = Steps(lambda x: x, False, threading.RLock())
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


def test_a_number_type_of_autocast_that_a_program_changes_is_refused() -> None:
    def f(x: Tensor) -> Tensor:
        torch.set_autocast_dtype("cpu", torch.float16)
        return x * 2

    for grad in (True, False):
        with torch.set_grad_enabled(grad), torch.autocast("cpu", dtype=torch.bfloat16):
            with pytest.raises(RuntimeError, match="leaves grad mode, autocast"):
                jit(f)(torch.ones(2))
            torch.set_autocast_dtype("cpu", torch.bfloat16)


def test_attributes_of_optimizers_and_schedulers_are_put_back_after_a_refusal() -> None:
    optimizer: Any = SGD(linear().parameters(), lr=0.5)
    scheduler = StepLR(optimizer, 2)
    before, epoch = dict(vars(optimizer)), scheduler.last_epoch

    @jit
    def f(x: Tensor) -> None:
        optimizer.more, optimizer.defaults = 1, {}
        scheduler.last_epoch += 3
        os.getcwd()

    with pytest.raises(RuntimeError, match="getcwd"):
        f(torch.ones(2))
    assert (
        vars(optimizer) == before
        and optimizer.defaults is before["defaults"]
        and scheduler.last_epoch == epoch
    )


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
    joint: Any = SimpleNamespace(traced=SimpleNamespace(graph=graph))
    begin = Beginning([leaf], (), False, require_alone=None).of(joint)
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


def test_gradients_from_before_a_call_are_those_of_its_own_arguments() -> None:
    run = jit(lambda x, y: (x * y).sum().backward())
    x, y = torch.ones(2, requires_grad=True), torch.full((2,), 3.0, requires_grad=True)
    y.grad = torch.full((2,), 10.0)
    for n in range(1, 4):
        run(x, y=y)
        assert (
            x.grad is not None
            and x.grad.tolist() == [3.0 * n] * 2
            and y.grad.tolist() == [10.0 + n] * 2
        )


@pytest.mark.parametrize("holder", ["attribute", "item", "buffer"])
def test_a_tensor_that_other_code_replaces_costs_two_more_programs(holder: str) -> None:
    held: Any = {"attribute": SimpleNamespace(), "item": {}, "buffer": nn.Module()}[holder]
    if holder == "buffer":
        held.register_buffer("batch", None)

    def put(batch: Tensor) -> None:
        if holder == "item":
            held["batch"] = batch
        else:
            held.batch = batch

    def f(x: Tensor) -> Tensor:
        batch = held["batch"] if holder == "item" else held.batch
        scale: Tensor = batch.sum()
        return x * scale

    step = jit(f)
    for n in range(1, 9):
        put(torch.full((n,), 2.0))
        assert torch.equal(step(torch.ones(2)), torch.full((2,), 2.0 * n))
    assert len(step.captured) <= 5


def test_a_training_step_on_a_batch_of_its_trainer_has_three_programs() -> None:
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.5)
    trainer = SimpleNamespace(batch=None)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(trainer.batch).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    expected, mine = trained(step, trainer, model), jit(step)
    for parameter, value in zip(trained(mine, trainer, model), expected, strict=True):
        assert torch.equal(parameter, value)
    assert len(mine.captured) == 3


def trained(step: Callable[[], Tensor], trainer: Any, model: nn.Module) -> list[Tensor]:
    """Train from the present parameters, and put these back. Return those after eight steps."""
    before = copy.deepcopy(model.state_dict())
    batches = torch.Generator().manual_seed(0)
    for _ in range(8):
        trainer.batch = torch.rand(5, 4, generator=batches)
        step()
    after = [p.detach().clone() for p in model.parameters()]
    model.load_state_dict(before)
    return after
