"""Schedules of learning rates, and the same by the formula of the rate after each step.

    exponential(x, made="reloaded")      # rates of two groups after each of ten steps

``made`` says what happens between two steps: nothing, the schedule and its optimizer are loaded
from their state, are copied, or a new schedule goes on at this step. It may also say that the
schedule is the only one of a sequence, which changes nothing. The formulas are those of
torch's documentation and of the papers that it names: of the step alone, but for plateaus.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import lr_scheduler, swa_utils

from programs.families.tools import Results, Row

Rule = Callable[[float, int], float]
Make = Callable[..., Any]

STEPS = 10
TURN = 4  # the step before which something happens
RATES = (0.5, 0.125)  # of the two groups
LOSSES = (3.0, 2.0, 2.0, 2.1, 1.9, 1.9, 1.8999, 1.9, 1.9, 1.9, 1.0)


# --- formulas: the rate of a group after some steps -----------------------------------------------


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def _line(start: float, end: float, share: float) -> float:
    return start + (end - start) * share


def _warm_restarts(base: float, step: int) -> float:
    """Return the rate with periods of 3, 6, 12, … steps."""
    period = 3
    while step >= period:
        step, period = step - period, period * 2
    return _cosine(base, 0.01, step / period)


def _cyclic(scale: Callable[[int, int], float]) -> Rule:
    """Return a rate that rises from 0.1 for 2 steps and falls for 3. `scale` is of a cycle and a
    step.
    """

    def rate(base: float, step: int) -> float:
        cycle, place = divmod(step, 5)
        height = place / 2 if place <= 2 else (5 - place) / 3
        return 0.1 + 0.4 * height * scale(cycle, step)

    return rate


def _one_cycle(anneal: Callable[[float, float, float], float], phases: int) -> Rule:
    """Return the rate of one rise and fall over eleven steps, from 1/25 of the largest rate to
    1/10,000 of that."""

    def rate(base: float, step: int) -> float:
        first, low = 0.3 * (STEPS + 1) - 1, 0.4 / 25
        ends = [(first, low, 0.4), (float(STEPS), 0.4, low / 1e4)]
        if phases == 3:
            ends[1:] = [(2 * first, 0.4, low), (float(STEPS), low, low / 1e4)]
        begin = 0.0
        for end, start, stop in ends:
            if step <= end:
                return anneal(start, stop, (step - begin) / (end - begin))
            begin = end
        raise ValueError(f"step {step} is behind the last one")

    return rate


def _product(factor: Callable[[int], float]) -> Rule:
    return lambda base, step: base * math.prod(factor(k) for k in range(1, step + 1))


def _averaging(base: float, step: int) -> float:
    """Return the rate on its way from that of the optimizer to 0.05 in 4 steps."""
    return _cosine(base, 0.05, min(1.0, step / 4))


def _passed(marks: Sequence[int], step: int) -> int:
    """Return how many marks a step has reached."""
    return sum(mark <= step for mark in marks)


def _plateau(mode: str, relative: bool) -> Rule:
    """Return the rate that is halved after two bad losses, and then rests for one."""

    def rate(base: float, step: int) -> float:
        sign = 1.0 if mode == "min" else -1.0
        best, bad, resting = math.inf, 0, 0
        for loss in LOSSES[1 : step + 1]:
            loss = sign * loss
            margin = 0.01 * abs(best) if relative and math.isfinite(best) else 0.01
            if loss < best - margin:
                best, bad = loss, 0
            else:
                bad += 1
            if resting:
                resting, bad = resting - 1, 0
            if bad > 1:
                base, bad, resting = max(base / 2, 0.1), 0, 1
        return base

    return rate


SCHEDULES: dict[str, tuple[Make, Rule]] = {
    "by_function": (
        lambda o, **k: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step), **k),
        lambda base, step: base / (1 + step),
    ),
    "by_factors": (
        lambda o, **k: lr_scheduler.MultiplicativeLR(o, lambda step: 1 - 0.05 * step, **k),
        _product(lambda step: 1 - 0.05 * step),
    ),
    "stepwise": (
        lambda o, **k: lr_scheduler.StepLR(o, 3, 0.5, **k),
        lambda base, step: base * 0.5 ** (step // 3),
    ),
    "at_marks": (
        lambda o, **k: lr_scheduler.MultiStepLR(o, [3, 5, 5, 7], 0.5, **k),
        lambda base, step: base * 0.5 ** _passed([3, 5, 5, 7], step),
    ),
    "constant": (
        lambda o, **k: lr_scheduler.ConstantLR(o, 0.25, 6, **k),
        lambda base, step: base * (0.25 if step < 6 else 1),
    ),
    "linear": (
        lambda o, **k: lr_scheduler.LinearLR(o, 0.25, 0.75, 6, **k),
        lambda base, step: base * _line(0.25, 0.75, min(step, 6) / 6),
    ),
    "exponential": (
        lambda o, **k: lr_scheduler.ExponentialLR(o, 0.9, **k),
        lambda base, step: base * 0.9**step,
    ),
    "polynomial": (
        lambda o, **k: lr_scheduler.PolynomialLR(o, 7, 2.0, **k),
        lambda base, step: base * (1 - min(step, 7) / 7) ** 2,
    ),
    "cosine": (
        lambda o, **k: lr_scheduler.CosineAnnealingLR(o, 6, 0.01, **k),
        lambda base, step: _cosine(base, 0.01, step / 6),
    ),
    "warm_restarts": (
        lambda o, **k: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2, 0.01, **k),
        _warm_restarts,
    ),
    "cyclic": (
        lambda o, **k: lr_scheduler.CyclicLR(o, 0.1, 0.5, 2, 3, cycle_momentum=False, **k),
        _cyclic(lambda cycle, step: 1.0),
    ),
    "cyclic_halved": (
        lambda o, **k: lr_scheduler.CyclicLR(
            o, 0.1, 0.5, 2, 3, mode="triangular2", cycle_momentum=False, **k
        ),
        _cyclic(lambda cycle, step: 0.5**cycle),
    ),
    "cyclic_by_powers": (
        lambda o, **k: lr_scheduler.CyclicLR(
            o, 0.1, 0.5, 2, 3, mode="exp_range", gamma=0.9, cycle_momentum=False, **k
        ),
        _cyclic(lambda cycle, step: 0.9**step),
    ),
    "one_cycle": (
        lambda o, **k: lr_scheduler.OneCycleLR(o, 0.4, STEPS + 1, cycle_momentum=False, **k),
        _one_cycle(_cosine, 2),
    ),
    "one_cycle_of_lines": (
        lambda o, **k: lr_scheduler.OneCycleLR(
            o, 0.4, STEPS + 1, anneal_strategy="linear", cycle_momentum=False, **k
        ),
        _one_cycle(_line, 2),
    ),
    "one_cycle_in_three": (
        lambda o, **k: lr_scheduler.OneCycleLR(
            o, 0.4, STEPS + 1, three_phase=True, cycle_momentum=False, **k
        ),
        _one_cycle(_cosine, 3),
    ),
    "plateau": (
        lambda o, **k: lr_scheduler.ReduceLROnPlateau(
            o, "min", 0.5, 1, 0.01, "rel", cooldown=1, min_lr=0.1
        ),
        _plateau("min", relative=True),
    ),
    "plateau_of_gains": (
        lambda o, **k: lr_scheduler.ReduceLROnPlateau(
            o, "max", 0.5, 1, 0.01, "abs", cooldown=1, min_lr=0.1
        ),
        _plateau("max", relative=False),
    ),
    "averaging": (
        lambda o, **k: swa_utils.SWALR(o, 0.05, 4, **k),
        _averaging,
    ),
    "in_sequence": (
        lambda o, **k: lr_scheduler.SequentialLR(
            o,
            [lr_scheduler.ConstantLR(o, 0.25, 9), lr_scheduler.ExponentialLR(o, 0.9)],
            [3],
            **k,
        ),
        lambda base, step: base * 0.25 if step < 3 else base * 0.9 ** (step - 3),
    ),
    "three_in_sequence": (
        lambda o, **k: lr_scheduler.SequentialLR(
            o,
            [
                lr_scheduler.LinearLR(o, 0.5, 1.0, 3),
                lr_scheduler.StepLR(o, 2, 0.5),
                lr_scheduler.CosineAnnealingLR(o, 6, 0.01),
            ],
            [3, 6],
            **k,
        ),
        lambda base, step: (
            base * _line(0.5, 1.0, min(step, 3) / 3)
            if step < 3
            else base * 0.5 ** ((step - 3) // 2)
            if step < 6
            else _cosine(base, 0.01, (step - 6) / 6)
        ),
    ),
    "chained": (
        lambda o, **k: lr_scheduler.ChainedScheduler(
            [lr_scheduler.ConstantLR(o, 0.25, 6), lr_scheduler.ExponentialLR(o, 0.9)], o
        ),
        lambda base, step: base * (0.25 if step < 6 else 1) * 0.9**step,
    ),
}
"""What makes each schedule for an optimizer, and the rate of a group after some steps."""


def _optimizer(rates: Sequence[float]) -> torch.optim.Optimizer:
    leaves = [torch.zeros(2, requires_grad=True) for _ in rates]
    groups = [{"params": [leaf], "lr": rate} for leaf, rate in zip(leaves, rates, strict=True)]
    return torch.optim.SGD(groups, lr=1.0)


def _step(schedule: Any, optimizer: Any, step: int) -> None:
    optimizer.step()
    if isinstance(schedule, lr_scheduler.ReduceLROnPlateau):
        schedule.step(LOSSES[step])
        return
    schedule.step()


def _changed(make: Make, schedule: Any, optimizer: Any, made: str) -> tuple[Any, Any]:
    """Return the schedule and optimizer with which the steps go on."""
    if made == "deep_copy":
        return copy.deepcopy((schedule, optimizer))
    if made == "reloaded":
        other = _optimizer([1.0 for _ in RATES])
        loaded = make(other)
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        loaded.load_state_dict(copy.deepcopy(schedule.state_dict()))
        return loaded, other
    if made == "resumed":
        # the index of the last epoch is one less than the steps that have been taken
        return make(optimizer, last_epoch=TURN - 2), optimizer
    return schedule, optimizer


def _wrap(make: Make, made: str) -> Make:
    """Return what makes the schedule, or a sequence of this schedule alone."""
    if made != "in_a_sequence":
        return make
    return lambda o, **k: lr_scheduler.SequentialLR(o, [make(o, **k)], [])


def _run(make: Make, made: str) -> Results:
    """Return the rates of each group after each step."""
    make = _wrap(make, made)
    optimizer = _optimizer(RATES)
    schedule = make(optimizer)
    found = [_rates(schedule, optimizer)]
    for step in range(1, STEPS + 1):
        if step == TURN:
            schedule, optimizer = _changed(make, schedule, optimizer, made)
        _step(schedule, optimizer, step)
        found.append(_rates(schedule, optimizer))
    return tuple(found)


def _rates(schedule: Any, optimizer: Any) -> Tensor:
    groups = [float(group["lr"]) for group in optimizer.param_groups]
    last = [float(rate) for rate in schedule.get_last_lr()]
    return torch.tensor([groups, last], dtype=torch.float64)


def _row(make: Make, rule: Rule) -> Row:
    def program(x: Tensor, *, made: str) -> Results:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of steps of an optimizer that has no gradients
            return (x, *_run(make, made))

    def definition(x: Tensor, *, made: str) -> Results:
        rates = [[rule(base, step) for base in RATES] for step in range(STEPS + 1)]
        return (x, *(torch.tensor([row, row], dtype=torch.float64) for row in rates))

    return Row(program, definition)


def samples(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return a number that is passed on, and what happens between the steps."""
    words = ("stepped", "reloaded", "deep_copy", "resumed", "in_a_sequence")
    return [
        {"args": [{"shape": [1], "domain": "positive"}], "kwargs": {"made": word}} for word in words
    ]


globals().update({name: _row(*pair) for name, pair in SCHEDULES.items()})
