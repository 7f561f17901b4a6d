"""A jitted program that scales gradients does what the scaler's numbers say at each call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runtime import jit
from runtime.jit import explain

from .training import Wrap, both, left, linear, normal


def _made() -> tuple[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
    model = linear()
    return (
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1),
    )


@pytest.mark.parametrize("found_by", ["name", "computed name", "list"])
def test_numbers_of_a_scaler_that_change_between_calls_are_noticed(found_by: str) -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model, optimizer, scaler = _made()
        several, named = [scaler], {"scaler": scaler}
        found: list[Tensor | None] = []

        def run_with(scaler: Any, x: Tensor) -> None:
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()

        def step(x: Tensor) -> None:
            if found_by == "name":
                run_with(scaler, x)
            elif found_by == "list":
                for s in several:
                    run_with(s, x)
            else:
                run_with(named["sca" + "ler"[:3]], x)

        run = wrap(step)
        for i in range(14):
            if i == 3:
                scaler.set_growth_factor(8.0)
            if i == 6:
                scaler.set_backoff_factor(0.25)
            if i == 10:
                scaler.set_growth_interval(3)
            x = normal(i, 8, 4)
            if i in (5, 7, 12):  # these steps are skipped
                x[0, 0] = torch.inf
            run(x)
            found += [
                torch.tensor(scaler.get_scale()),
                *(p.detach().clone() for p in model.parameters()),
            ]
        return found

    both(program)


def test_a_scaler_that_is_disabled_between_calls_is_noticed() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model, optimizer, scaler = _made()
        found: list[Tensor | None] = []

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss: Any = scaler.scale(model(x).square().mean())
            loss.backward()
            scaler.step(optimizer)
            scaler.update()
            scaled: Tensor = loss.detach()
            return scaled

        run = wrap(step)
        for i in range(6):
            scaler._enabled = i < 3
            found += [run(normal(i, 8, 4)), *left(model)]
        return found

    both(program)


def test_a_scaler_scales_in_one_program_and_steps_in_another() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model, optimizer, scaler = _made()
        found: list[Tensor | None] = []

        def add(x: Tensor) -> None:
            optimizer.zero_grad()
            scaled: Any = scaler.scale(model(x).square().mean())
            scaled.backward()

        def update() -> None:
            scaler.step(optimizer)
            scaler.update()

        adding, updating = wrap(add), wrap(update)
        for i in range(4):
            adding(normal(i, 8, 4))
            updating()
            found += [torch.tensor(scaler.get_scale()), *left(model)]
        return found

    both(program)


def test_a_fused_optimizer_asks_the_scaler_itself() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model, _, scaler = _made()
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        found: list[Tensor | None] = []

        def step(x: Tensor) -> None:
            optimizer.zero_grad()
            scaled: Any = scaler.scale(model(x).square().mean())
            scaled.backward()
            scaler.step(optimizer)
            scaler.update()

        run = wrap(step)
        for i in range(5):
            x = normal(i, 8, 4)
            if i == 2:
                x[0, 0] = torch.inf
            run(x)
            found += [
                torch.tensor(scaler.get_scale()),
                *(p.detach().clone() for p in model.parameters()),
            ]
        return found

    both(program)


def test_a_scaler_is_left_before_its_update_by_one_program_and_updated_by_another() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model, optimizer, scaler = _made()
        found: list[Tensor | None] = []

        def unscale(x: Tensor) -> None:
            optimizer.zero_grad()
            scaled: Any = scaler.scale(model(x).square().mean())
            scaled.backward()
            scaler.unscale_(optimizer)

        def update() -> None:
            scaler.step(optimizer)
            scaler.update()

        first, second = wrap(unscale), wrap(update)
        for i in range(4):
            first(normal(i, 8, 4))
            second()
            found += [torch.tensor(scaler.get_scale()), *left(model)]
        assert not scaler._per_optimizer_states
        return found

    both(program)


def test_the_numbers_of_a_scaler_are_set_by_each_call() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        _, _, scaler = _made()

        def f(x: Tensor) -> Tensor:
            scaler.set_growth_factor(scaler.get_growth_factor() + 1.0)
            return x * scaler.get_growth_factor()

        run = wrap(f)
        return [
            torch.stack((run(torch.ones(())), torch.tensor(scaler.get_growth_factor())))
            for _ in range(5)
        ]

    both(program)


def test_a_step_with_a_scaler_has_two_programs_and_one_for_steps_that_are_skipped() -> None:
    model, optimizer, scaler = _made()

    @jit
    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        scaled: Any = scaler.scale(model(x).square().mean())
        scaled.backward()
        scaler.step(optimizer)
        scaler.update()

    for i in range(12):
        x = normal(i, 8, 4)
        if i in (5, 7):
            x[0, 0] = torch.inf
        step(x)
    assert len(explain(step).programs) == 3
