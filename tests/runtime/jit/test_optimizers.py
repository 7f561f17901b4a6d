"""A jitted step of an optimizer leaves what an eager one leaves: parameters,
gradients, and its state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runtime import jit
from runtime.jit import explain

from .training import Wrap, assert_equal_bits, both, deep, left, linear, normal, step_of

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Adam by foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr_decay=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "RAdam, which branches on the number of steps": lambda p: torch.optim.RAdam(p),
    "a fused kernel": lambda p: torch.optim.AdamW(p, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_hundred_steps_leave_the_bits_of_eager_steps(name: str) -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = deep()
        optimizer = OPTIMIZERS[name](model.parameters())

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            return loss.detach()

        run = wrap(step)
        losses = [run(normal(i, 8, 4), normal(-i, 8, 2)) for i in range(100)]
        state = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, Tensor)]
        return [*losses, *left(model), *state]

    both(program)


def test_steady_steps_run_one_program_though_a_scheduler_changes_the_learning_rate() -> None:
    model = deep()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    @jit
    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for i in range(10):
        step(normal(i, 8, 4))
        scheduler.step()
    first, steady = explain(step).programs  # one makes the state of the optimizer
    assert "exp_avg" not in first.why and "not there" in steady.why


def test_schedulers_of_any_number_of_a_group_are_followed() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = deep()
        optimizer = torch.optim.AdamW(
            [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}],  # type: ignore[index]
            lr=0.01,
        )
        # changes betas, too
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.1, 0.2], total_steps=10)
        found: list[Tensor | None] = []

        run = wrap(step_of(model, optimizer))
        for i in range(6):
            run(normal(i, 8, 4))
            scheduler.step()
            found += left(model)
        return found

    both(program)


def test_state_that_is_loaded_or_dropped_and_groups_that_are_added_are_noticed() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = deep()
        optimizer = torch.optim.Adam(model[0].parameters(), lr=0.01)  # type: ignore[index]
        found: list[Tensor | None] = []

        run = wrap(step_of(model, optimizer))

        def steps() -> None:
            for i in range(3):
                run(normal(i, 8, 4))
            found.extend(left(model))

        steps()
        state = copy.deepcopy(optimizer.state_dict())
        steps()
        optimizer.load_state_dict(state)
        steps()
        optimizer.param_groups[0]["betas"] = (0.5, 0.9)
        steps()
        optimizer.state.clear()
        steps()
        optimizer.add_param_group({"params": model[2].parameters()})  # type: ignore[index]
        steps()
        return found

    both(program)


def test_several_optimizers_step_in_one_program() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        generator, judge = nn.Linear(3, 4), nn.Linear(4, 1)
        with torch.no_grad():
            for i, p in enumerate((*generator.parameters(), *judge.parameters())):
                p.copy_(normal(i, *p.shape))
        of_generator = torch.optim.Adam(generator.parameters(), lr=0.01)
        of_judge = torch.optim.RMSprop(judge.parameters())
        found: list[Tensor | None] = []

        def step(noise: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
            of_judge.zero_grad()
            judged = (
                F.softplus(-judge(real)).mean()
                + F.softplus(judge(generator(noise).detach())).mean()
            )
            judged.backward()
            of_judge.step()
            of_generator.zero_grad()
            generated = F.softplus(-judge(generator(noise))).mean()
            generated.backward()
            of_generator.step()
            return judged.detach(), generated.detach()

        run = wrap(step)
        for i in range(5):
            found += run(normal(i, 8, 3), normal(-i, 8, 4))
            found += left(generator) + left(judge)
        return found

    both(program)


def test_a_closure_given_to_the_optimizer_runs_in_the_program() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Tensor) -> Tensor:
            def closure() -> Tensor:
                optimizer.zero_grad()
                loss: Tensor = model(x).square().mean()
                loss.backward()
                return loss

            loss: Tensor = optimizer.step(closure)
            return loss

        run = wrap(step)
        return [*(run(normal(i, 8, 4)).detach() for i in range(4)), *left(model)]

    both(program)


def test_a_step_that_cannot_be_captured_changes_nothing() -> None:
    class Patient(torch.optim.Adam):
        """Asks for the value of an element."""

        def step(self, closure: Any = None) -> Any:
            result = super().step(closure)
            int(next(iter(self.state.values()))["step"].item())
            return result

    model = linear()
    optimizer = Patient(model.parameters())

    @jit
    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step(normal(0, 8, 4))  # which makes the state, so that the number is known
    before, groups, state = (
        left(model),
        [dict(g) for g in optimizer.param_groups],
        copy.deepcopy(optimizer.state_dict()),
    )
    with pytest.raises(RuntimeError, match="asks for the value of a number"):
        step(normal(1, 8, 4))
    assert_equal_bits(left(model), before)
    assert [dict(g) for g in optimizer.param_groups] == groups
    for old, now in zip(
        state["state"].values(), optimizer.state_dict()["state"].values(), strict=True
    ):
        assert_equal_bits(list(now.values()), list(old.values()))


def test_a_gradient_scaler_skips_steps_and_adapts_its_scale() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = linear()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        found: list[Tensor | None] = []

        def step(x: Tensor) -> None:
            optimizer.zero_grad()
            loss = F.dropout(model(x), 0.3).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

        run = wrap(step)
        torch.manual_seed(7)
        for i in range(9):
            x = normal(i, 8, 4)
            if i in (3, 4, 7):
                x[0, 0] = torch.inf
            run(x)
            found += [
                *(p.detach().clone() for p in model.parameters()),
                torch.tensor(scaler.get_scale()),
                torch.rand(1),
            ]
        return found

    both(program)


class Lion(torch.optim.Optimizer):
    """An optimizer of a user, which counts its steps as a number."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["t"] = state.get("t", 0) + 1
            p.add_(p.grad, alpha=-0.1 / state["t"])


def test_numbers_in_the_state_of_a_users_optimizer_count_on() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = linear()
        optimizer = Lion(model.parameters())
        run = wrap(step_of(model, optimizer))
        found: list[Tensor | None] = []
        for i in range(5):
            run(normal(i, 8, 4))
            found += left(model)
            found += [torch.tensor(s["t"]) for s in optimizer.state.values()]
        return found

    both(program)
