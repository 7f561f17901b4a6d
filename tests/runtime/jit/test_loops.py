"""Training loops as people write them cost few programs: state that the program does not read, or
that changes from call to call, makes none."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from runtime import jit
from runtime.jit import explain

from .training import Wrap, assert_equal_bits, deep, normal

Loop = tuple[Callable[[Tensor], Any], Callable[[], list[Tensor]]]
"""One turn of a loop, and what it leaves."""


class Trainer:
    """Counts, keeps losses, and steps a schedule outside of its step."""

    def __init__(self, wrap: Wrap) -> None:
        self.model = deep()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.scheduler = lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.losses: list[float] = []
        self.loader = iter(range(100))
        self.steps = self.turns = 0
        self.step = wrap(self.train_step)

    def train_step(self, x: Tensor) -> Tensor:
        self.steps += 1
        self.optimizer.zero_grad()
        loss: Tensor = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def turn(self, x: Tensor) -> None:
        self.losses.append(self.step(x).item())
        self.turns += 1
        self.scheduler.step()
        next(self.loader)


def trainer(wrap: Wrap) -> tuple[Loop, Any]:
    t = Trainer(wrap)
    return (t.turn, lambda: [*t.model.parameters(), torch.tensor(t.steps)]), t.step


class Module(nn.Module):
    """Logs by a method, counts its steps, and has its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: dict[str, Tensor] = {}
        self.net, self.global_step = deep(), 0
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def log(self, name: str, value: Tensor) -> None:
        self.logged[name] = value

    def training_step(self, x: Tensor) -> Tensor:
        loss: Tensor = self.net(x).square().mean()
        self.log("loss", loss.detach())
        return loss

    def step(self, x: Tensor) -> None:
        self.optimizer.zero_grad()
        self.training_step(x).backward()
        self.optimizer.step()
        self.global_step += 1


def module_that_logs(wrap: Wrap) -> tuple[Loop, Any]:
    m = Module()
    step = wrap(m.step)
    return (
        step,
        lambda: [*m.parameters(), m.logged["loss"], torch.tensor(m.global_step)],
    ), step


def schedule_and_state_inside(wrap: Wrap) -> tuple[Loop, Any]:
    model, state = deep(), SimpleNamespace(step=0, epoch=0.0)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda n: max(0.0, 1 - n / 100))

    def step(x: Tensor) -> None:
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        state.step += 1
        state.epoch = state.step / 50

    run = wrap(step)
    return (run, lambda: [*model.parameters(), torch.tensor(state.epoch)]), run


def averages(wrap: Wrap) -> tuple[Loop, Any]:
    model = deep()
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.lerp_(p, 0.1)

    run = wrap(step)
    return (run, lambda: [*average.parameters()]), run


def mixed_precision(wrap: Wrap) -> tuple[Loop, Any]:
    model = deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).square().mean()
        scaled: Any = scaler.scale(loss)
        scaled.backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    run = wrap(step)
    return (run, lambda: [*model.parameters(), torch.tensor(scaler.get_scale())]), run


def accumulation(wrap: Wrap) -> tuple[Loop, Any]:
    model, state = deep(), SimpleNamespace(calls=0)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: Tensor) -> None:
        (model(x).square().mean() / 4).backward()
        state.calls += 1
        if state.calls % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()

    run = wrap(step)
    return (run, lambda: [*model.parameters(), torch.tensor(state.calls)]), run


@pytest.mark.parametrize(
    ("loop", "programs"),
    [
        (trainer, 2),
        (module_that_logs, 2),
        (schedule_and_state_inside, 2),
        (averages, 2),
        (mixed_precision, 2),
        (accumulation, 6),
    ],
)
def test_a_loop_is_as_in_eager_mode_and_costs_few_programs(loop: Any, programs: int) -> None:
    (turn, left), _ = loop(lambda f: f)
    (jitted_turn, jitted_left), step = loop(jit)
    for i in range(12):
        turn(normal(i, 8, 4))
        jitted_turn(normal(i, 8, 4))
        assert_equal_bits(jitted_left(), left())
    assert len(explain(step).programs) == programs
