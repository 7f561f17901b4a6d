"""A jitted program that scales gradients does what the scaler's numbers say at each call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runtime import jit
from runtime.jit.scalers import Scalers, make_again

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


def test_a_scaler_that_the_program_leaves_before_its_update_is_refused_and_put_back() -> None:
    model, optimizer, scaler = _made()

    @jit
    def step(x: Tensor) -> None:
        scaled: Any = scaler.scale(model(x).square().mean())
        scaled.backward()
        scaler.unscale_(optimizer)

    with pytest.raises(
        RuntimeError, match=r"Let one jitted function call unscale_\(\), step\(\) and update\(\)"
    ):
        step(normal(0, 8, 4))
    assert not scaler._per_optimizer_states


def test_a_scaler_whose_numbers_the_program_sets_is_refused_and_put_back() -> None:
    _, _, scaler = _made()

    @jit
    def f(x: Tensor) -> Tensor:
        scaler.set_growth_factor(3.0)
        return x * 2

    with pytest.raises(RuntimeError, match="changes 'growth_factor' of a GradScaler"):
        f(torch.ones(2))
    assert scaler.get_growth_factor() == 2.0


def test_a_scaler_that_the_program_finds_before_its_update_is_refused() -> None:
    model, optimizer, scaler = _made()
    scaled: Any = scaler.scale(model(normal(0, 8, 4)).square().mean())
    scaled.backward()
    scaler.unscale_(optimizer)
    states = scaler._per_optimizer_states

    @jit
    def update() -> None:
        scaler.step(optimizer)
        scaler.update()

    with pytest.raises(RuntimeError, match="in the middle of its work, or finds it there"):
        update()
    assert scaler._per_optimizer_states is states and len(states) == 1
    scaler.step(optimizer)
    scaler.update()
    assert not scaler._per_optimizer_states


def test_a_scaler_is_given_a_scale_of_its_own_on_a_device() -> None:
    _, optimizer, scaler = _made()
    scaler._scale = scaler._growth_tracker = torch.tensor(7.0)
    scaler._per_optimizer_states[id(optimizer)] = {}
    make_again(scaler, torch.device("meta"))
    assert not scaler._per_optimizer_states
    assert (
        scaler._scale is not None
        and scaler._scale.device.type == "meta"
        and scaler._growth_tracker is not scaler._scale
    )
    make_again(scaler, torch.device("cpu"))
    assert scaler.get_scale() == 4.0 and scaler._get_growth_tracker() == 0


def test_scalers_are_as_they_were_after_a_run() -> None:
    _, optimizer, scaler = _made()
    off = torch.amp.GradScaler("cpu", enabled=False)
    before, states = dict(vars(scaler)), scaler._per_optimizer_states
    state = states[id(optimizer)]
    with Scalers([scaler, off]) as run:
        assert run.made is None and scaler._per_optimizer_states is not states
        scaler._per_optimizer_states[id(optimizer)]["stage"] = 3
        assert scaler._per_optimizer_states[1]["stage"] is state["stage"]  # made as before
        scaler._scale = torch.ones(1)
        with pytest.raises(RuntimeError, match="in the middle of its work"):
            run.reads()
    assert vars(scaler) == before and states == {id(optimizer): state} and state["stage"] != 3
    states.clear()
    with Scalers([scaler, off]) as run:
        assert {r.name for r in run.reads()} == set(vars(scaler)) - {"_per_optimizer_states"}
