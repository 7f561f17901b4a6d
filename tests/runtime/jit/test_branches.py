"""A program that branches on what it computes has a program for each side."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from runtime import jit
from runtime.jit import explain

from .training import Wrap, both


def test_a_branch_on_a_number_has_a_program_for_each_side() -> None:
    f = jit(lambda x: x if x.sum().item() > 0 else -x)
    for sign in (1, -1, 1, -1, -1):
        assert f(torch.full((3,), float(sign))).tolist() == [1.0] * 3
    assert len(explain(f).programs) == 2


def test_effects_of_a_branch_are_those_of_its_side() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        best = SimpleNamespace(loss=9.0, found=0)

        def step(x: Tensor) -> Tensor:
            loss = x.square().sum().item()
            if loss < best.loss:
                best.loss, best.found = loss, best.found + 1
                return x * 2
            return x * 3

        run = wrap(step)
        return [
            torch.stack((*run(torch.full((2,), x)), torch.tensor(best.loss + best.found)))
            for x in (4.0, 2.0, 3.0, 1.0, 0.5, 0.75, 0.25)
        ]

    both(program)


def test_a_loop_until_a_number_is_small_is_refused_with_its_line_after_many_lengths() -> None:
    def f(x: Tensor) -> Tensor:
        while x.sum().item() > 1:
            x = x / 2
        return x

    run = jit(f)
    with pytest.raises(RuntimeError, match=r"has taken 16 ways through branches.*test_branches.py"):
        for n in range(20):
            x = torch.full((1,), 2.0**n)
            assert torch.equal(run(x), f(x))


def _halved(x: Tensor) -> tuple[Tensor, int]:
    count = 0
    while x.sum() > 4:
        x, count = x / 2, count + 1
    return x, count


def _checked(x: Tensor) -> Tensor:
    if (x < 0).any():
        raise ValueError("negative")
    return x * 2


BRANCHES: dict[str, Callable[[Tensor], Any]] = {
    "a tensor of truths": lambda x: x * 2 if x.sum() > 0 else x,
    "a real one": lambda x: x * 2 if x[3] else x - 1,
    "an integer": lambda x: x * 2 if x.long()[3] else x - 1,
    "several": lambda x: x * 2 if (x[3] > 0 and x[1] > 0) or x.sum() < -3 else x - 1,
    "its negation": lambda x: x * 2 if not (x >= 0).all() else x - 1,
    "the bool of one": lambda x: (x >= 0).all().item() is True,
    "a number of a bool": lambda x: x * (int((x >= 0).all().item()) + 1),
    "elements that are equal": lambda x: x * 2 if torch.equal(x, x.abs()) else x,
    "elements that are close": lambda x: x * 2 if torch.allclose(x, x.abs()) else x,
    "the largest": lambda x: max(x[0], x[3], x[1]),
    "an order": lambda x: torch.stack(sorted([x[0], x[3], x[1]])),
    "an element among others": lambda x: x * 2 if 2.0 in x else x,
    "a loop": _halved,
    "an error": _checked,
    "a random draw": lambda x: x * 2 if torch.rand(()) > 0.5 else x,
}


@pytest.mark.parametrize("name", BRANCHES)
def test_a_branch_on_elements_has_a_program_for_each_side(name: str) -> None:
    def run(wrap: Wrap) -> list[object]:
        torch.manual_seed(0)
        branch, found = wrap(BRANCHES[name]), []
        for shift in (0.0, 3.0, 0.0, -2.0, 3.0, 0.0):
            try:
                found.append(branch(torch.arange(4.0) - shift))
            except ValueError:
                found.append(None)
        return found

    torch.testing.assert_close(run(jit), run(lambda f: f), rtol=0, atol=0)


def test_a_step_is_left_out_where_its_loss_or_its_gradient_is_bad() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        torch.manual_seed(0)
        layer = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(layer.parameters(), 0.01)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = layer(x).square().sum()
            if torch.isfinite(loss):
                loss.backward()
                if nn.utils.clip_grad_norm_(layer.parameters(), 1.0) > 1:
                    optimizer.step()
            return cast(Tensor, loss.detach())

        run = wrap(step)
        results = [run(torch.full((2,), x)) for x in (1.0, float("inf"), 0.01, 3.0, float("nan"))]
        return [torch.stack(results).nan_to_num(), layer.weight.detach()]

    both(program)


def test_an_average_of_weights_is_updated_in_a_jitted_step() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        torch.manual_seed(0)
        layer = nn.Linear(2, 1)
        average = torch.optim.swa_utils.AveragedModel(layer)
        optimizer = torch.optim.SGD(layer.parameters(), 0.01)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            layer(x).sum().backward()
            optimizer.step()
            average.update_parameters(layer)
            return cast(Tensor, average(x))

        run = wrap(step)
        results = [run(torch.full((2,), x)).detach() for x in (1.0, 2.0, 3.0)]
        return [*results, average.n_averaged, *(p.detach() for p in average.parameters())]

    both(program)


def test_a_branch_may_lead_to_a_result_that_requires_grad() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        weight = torch.ones(3, requires_grad=True)
        run = wrap(lambda x: (x * weight).sin() if x.sum() > 0 else x - weight)
        for sign in (1.0, -1.0, 2.0, -2.0):
            run(torch.full((3,), sign)).square().sum().backward()
        assert weight.grad is not None
        return [weight.grad]

    both(program)


class _Sided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.cos() if g.sum() > 2 else g


def _hooked(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 2 if g.sum() > 0 else g)
    return y.sin()


@pytest.mark.parametrize("program", [_Sided.apply, _hooked])
def test_a_branch_in_the_backward_pass_of_the_caller_is_refused_with_its_line(program: Any) -> None:
    with pytest.raises(RuntimeError, match=r"a backward pass branches on .*test_branches.py"):
        jit(lambda x: program(x))(torch.ones(3, requires_grad=True))


def test_a_program_for_any_sizes_goes_on_as_the_last_one() -> None:
    compiled = jit(_checked)
    for size in range(3, 8):
        assert torch.equal(compiled(torch.ones(size)), torch.full((size,), 2.0))
    assert len(explain(compiled).programs) == 2
    with pytest.raises(ValueError, match="negative"):
        compiled(-torch.ones(3))
