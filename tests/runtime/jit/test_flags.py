"""``requires_grad_()`` and ``retain_grad()`` in a jitted step do what they do in an eager one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runtime import jit

from .training import Wrap, both, left, linear, normal


@pytest.mark.parametrize("by", ["method", "attribute"])
@pytest.mark.parametrize("ends_frozen", [True, False])
def test_a_judge_is_frozen_while_the_generator_learns(by: str, ends_frozen: bool) -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        torch.manual_seed(0)
        generator, judge = (
            nn.Linear(3, 4),
            nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(0.2), nn.Linear(4, 1)),
        )
        of_generator, of_judge = (
            torch.optim.Adam(generator.parameters()),
            torch.optim.Adam(judge.parameters()),
        )
        found: list[Tensor | None] = []

        def learns(flag: bool) -> None:
            if by == "method":
                judge.requires_grad_(flag)
            else:
                for p in judge.parameters():
                    p.requires_grad = flag

        def step(noise: Tensor, real: Tensor) -> Tensor:
            learns(True)
            of_judge.zero_grad()
            fake = generator(noise)
            loss = judge(fake.detach()).mean() - judge(real).mean()
            loss.backward()
            of_judge.step()
            learns(False)
            of_generator.zero_grad()
            F.softplus(-judge(fake)).mean().backward()
            of_generator.step()
            learns(not ends_frozen)
            result: Tensor = loss.detach()
            return result

        run = wrap(step)
        for i in range(5):
            found += [run(normal(i, 8, 3), normal(-i, 8, 4)), *left(generator), *left(judge)]
            found.append(torch.tensor([p.requires_grad for p in judge.parameters()]))
        return found

    both(program)


@pytest.mark.parametrize("refrozen", [True, False])
def test_a_parameter_that_the_step_lets_learn_gets_its_gradient(refrozen: bool) -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model: Any = linear().requires_grad_(False)

        def step(x: Tensor) -> Tensor:
            model.weight.requires_grad_()
            model(x).square().mean().backward()
            if refrozen:
                model.weight.requires_grad_(False)
            g: Tensor = model.weight.grad.clone()
            return g

        run = wrap(step)
        return [
            t
            for i in range(3)
            for t in (run(normal(i, 8, 4)), *left(model), torch.tensor(model.weight.requires_grad))
        ]

    both(program)


def test_a_frozen_parameter_can_be_written_to_and_its_gradient_dropped() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model: Any = linear()

        def step(x: Tensor) -> None:
            model(x).square().mean().backward()
            model.requires_grad_(False)
            model.weight.add_(model.weight.grad)
            model.zero_grad()
            model.requires_grad_(True)
            model(x).mean().backward()

        run = wrap(step)
        return [t for i in range(3) for t in (run(normal(i, 8, 4)), *left(model))]

    both(program)


def test_a_parameter_that_the_step_freezes_before_the_backward_pass_gets_no_gradient() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model: Any = linear()

        def step(x: Tensor) -> None:
            loss = model(x).square().mean()
            model.weight.requires_grad_(False)
            loss.backward()
            model.weight.requires_grad_(True)

        run = wrap(step)
        return [t for i in range(3) for t in (run(normal(i, 8, 4)), *left(model))]

    both(program)


def test_a_parameter_that_the_step_freezes_has_its_gradient_from_before() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model: Any = linear()

        def step(x: Tensor) -> Tensor:
            model.weight.requires_grad_(False)
            g: Tensor = model.weight.grad.clone()
            model.weight.requires_grad_(True)
            return g

        run = wrap(step)
        found: list[Tensor | None] = []
        for i in range(3):
            model(normal(i, 8, 4)).mean().backward()
            found += [run(normal(i, 8, 4)), *left(model)]
        return found

    both(program)


def test_a_capture_that_fails_leaves_the_flags() -> None:
    model = linear()

    @jit
    def f(x: Tensor) -> Tensor:
        model.requires_grad_(False)
        return x if x.tolist()[0] > 0 else -x

    with pytest.raises(RuntimeError, match="asks for the elements"):
        f(torch.ones(2))
    assert all(p.requires_grad for p in model.parameters())


def test_a_tensor_that_the_step_computes_can_retain_its_gradient() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        w = torch.ones(3, requires_grad=True)

        def f(x: Tensor) -> tuple[Any, Any, Any]:
            h = w * x
            h.retain_grad()
            k = h * 2
            k.retain_grad()
            (k * h).sum().backward(retain_graph=True)
            assert h.grad is not None
            first = h.grad.clone()
            h.square().sum().backward()
            return first, h.grad, k.grad

        run = wrap(f)
        return [t for i in range(3) for t in run(normal(i, 3))]

    both(program)


def test_a_result_that_retains_its_gradient_is_refused() -> None:
    w = torch.ones(3, requires_grad=True)

    @jit
    def f(x: Tensor) -> Tensor:
        h = w * x
        h.retain_grad()
        return h

    with pytest.raises(RuntimeError, match="Call it of the result"):
        f(torch.ones(3))


def test_backward_takes_a_gradient() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = linear()

        def step(x: Tensor, g: Tensor) -> None:
            model(x).backward(g)

        run = wrap(step)
        return [t for i in range(3) for t in (run(normal(i, 8, 4), normal(-i, 8, 2)), *left(model))]

    both(program)


def test_eager_code_in_the_same_autocast_block_has_casts_of_its_own() -> None:
    model = linear()
    run = jit(lambda x: model(x).sum().backward())
    x = normal(0, 8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        run(x)
        after = model(x)
        run(x[:4])
    assert torch.equal(after, F.linear(x.bfloat16(), *(p.bfloat16() for p in model.parameters())))


def test_a_program_that_looks_for_nan_in_gradients_is_refused() -> None:
    @jit
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.set_detect_anomaly(True):
            (gradient,) = torch.autograd.grad(x.sqrt().sum(), x)
            return gradient

    with pytest.raises(RuntimeError, match=r"(?s)anomaly mode looks for NaN.*test_flags.py"):
        f(torch.ones(2, requires_grad=True))


def test_anomaly_mode_that_its_caller_switches_on_later_is_refused_too() -> None:
    weight = torch.zeros(2, requires_grad=True)

    @jit
    def f(x: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad((weight.sqrt() * 0 * x).sum(), weight)
        return gradient

    assert f(torch.ones(2)).isnan().all()
    with torch.autograd.set_detect_anomaly(True):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="anomaly mode looks for NaN"):
                f(torch.ones(2))
    assert f(torch.ones(2)).isnan().all()


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
def test_a_program_that_notes_where_gradients_are_from_is_captured() -> None:
    @jit
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            (gradient,) = torch.autograd.grad(x.sqrt().sum(), x)
            return gradient

    assert torch.equal(f(torch.ones(2, requires_grad=True)), torch.full((2,), 0.5))
