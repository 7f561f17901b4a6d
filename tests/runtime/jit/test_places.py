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
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from runtime import dropin, jit

from .training import linear


def recorded() -> Tensor:
    return torch.ones(2, requires_grad=True) * 2


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
    # locks are no state of a program
    begins, ends = threading.Lock(), threading.Lock()

    def other() -> None:
        begins.acquire()
        try:
            for p in held[0].param_groups[0]["params"]:
                p.grad = torch.ones_like(p)
            held[0].step()
        except BaseException as e:
            errors.append(e)
        ends.release()

    def f(x: Tensor) -> Tensor:
        begins.release()
        ends.acquire()
        return x * 2

    begins.acquire(), ends.acquire()
    thread = threading.Thread(target=other)
    thread.start()
    before = [p.detach().clone() for p in model.parameters()]
    assert jit(f, ignore=held)(torch.ones(2)).tolist() == [2.0, 2.0] and errors == []
    thread.join()
    for p, old in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), old - 0.5)


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


def test_a_parameter_that_a_program_makes_is_refused() -> None:
    model = torch.nn.Linear(2, 2)

    @jit
    def f(x: Tensor) -> Tensor:
        model.scale = torch.nn.Parameter(x * 2)
        return x.sum()

    with pytest.raises(RuntimeError, match=r"makes a Parameter.*'scale' of Linear.*test_places"):
        f(torch.ones(2))
    assert not hasattr(model, "scale")


def test_anomaly_mode_that_a_program_leaves_on_is_refused() -> None:
    @jit
    def f(x: Tensor) -> Tensor:
        torch.autograd.set_detect_anomaly(True, check_nan=False)
        return x * 2

    try:
        with pytest.raises(RuntimeError, match="anomaly mode changed"):
            f(torch.ones(2))
    finally:
        torch.autograd.set_detect_anomaly(False)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_parameter_from_outside_may_be_assigned_to_another_place(requires_grad: bool) -> None:
    with dropin.installed():
        state = SimpleNamespace(last=torch.zeros(2))
        weight = nn.Parameter(torch.ones(2), requires_grad=requires_grad)

        @jit
        def program(x: Tensor) -> Tensor:
            state.last = weight
            return x * 2

        for _ in range(4):
            program(torch.ones(2))
            assert state.last is weight
            state.last = torch.zeros(2)


def test_a_tensor_that_a_step_replaces_unread_may_share_the_memory_of_a_parameter() -> None:
    # torch.nn.utils.spectral_norm begins with `layer.weight = layer.weight_orig.data`
    losses = []
    for compile_step in (jit, lambda step: step):
        torch.manual_seed(0)
        layer = nn.utils.spectral_norm(nn.Linear(3, 2))
        optimizer = SGD(layer.parameters(), lr=0.1)

        def step(x: Tensor, layer: nn.Module = layer, optimizer: SGD = optimizer) -> Any:
            optimizer.zero_grad()
            loss = layer(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = compile_step(step)
        losses.append([run(torch.ones(4, 3)).item() for _ in range(4)])
    assert losses[0] == pytest.approx(losses[1])
    assert losses[0][0] != losses[0][1]


def test_a_tensor_that_shares_the_memory_of_a_written_one_and_is_read_is_refused() -> None:
    parameter = torch.ones(2)
    holder = SimpleNamespace(w=parameter.data)

    @jit
    def step(x: Tensor) -> Tensor:
        before: Tensor = holder.w * x
        holder.w = before
        parameter.add_(1)
        return before

    with pytest.raises(RuntimeError, match="share memory, and the program writes to it"):
        step(torch.ones(2))


def test_the_version_of_an_argument_that_shares_memory_with_a_written_tensor_is_refused() -> None:
    parameter = torch.ones(3)

    @jit
    def step(x: Tensor, part: Tensor) -> Tensor:
        before = part._version
        parameter.add_(1)
        return x * (part._version - before)

    with pytest.raises(RuntimeError, match="share memory, and the program writes to it"):
        step(torch.ones(1), parameter[:2])


def test_one_tensor_that_a_program_puts_into_two_places_needs_two_programs() -> None:
    best = SimpleNamespace()

    @jit
    def program(x: Tensor) -> Tensor:
        best.last = best.best = x * 2
        return x

    for i in range(6):
        program(torch.full((2,), float(i)))
        assert best.last is best.best
        assert best.last.tolist() == [2.0 * i] * 2
    assert len(jit.explain(program).programs) == 2
