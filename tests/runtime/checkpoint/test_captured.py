"""A function that is checkpointed in a captured program writes to older tensors as often as in
eager mode: once in the forward pass, and once more when the backward pass runs it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torchs_checkpoint

import runtime
from runtime import jit
from runtime.aot import aot_function, make_fx, nop
from runtime.checkpoint import checkpoint

Tensor = torch.Tensor
Program = Callable[[Callable[..., Any], nn.BatchNorm1d, Tensor, Tensor], None]


def one(cp: Callable[..., Any], m: nn.BatchNorm1d, w: Tensor, x: Tensor) -> None:
    cp(lambda x: m(x * w), x).square().sum().backward()


def nested(cp: Callable[..., Any], m: nn.BatchNorm1d, w: Tensor, x: Tensor) -> None:
    cp(lambda x: cp(m, x * w).sin() * 2, x).square().sum().backward()


def in_a_row(cp: Callable[..., Any], m: nn.BatchNorm1d, w: Tensor, x: Tensor) -> None:
    cp(m, cp(m, x * w).sin()).square().sum().backward()


def two_results(cp: Callable[..., Any], m: nn.BatchNorm1d, w: Tensor, x: Tensor) -> None:
    a, b = cp(lambda x: (m(x * w), x.sin()), x)
    (a.square().sum() + b.sum()).backward()


def one_result_without_gradient(
    cp: Callable[..., Any], m: nn.BatchNorm1d, w: Tensor, x: Tensor
) -> None:
    _, b = cp(lambda x: (m(x), (x * w).sin()), x)
    b.sum().backward()


def no_backward(cp: Callable[..., Any], m: nn.BatchNorm1d, w: Tensor, x: Tensor) -> None:
    cp(m, x * w)
    (x * w).sum().backward()


def two_passes(cp: Callable[..., Any], m: nn.BatchNorm1d, w: Tensor, x: Tensor) -> None:
    y = cp(lambda x: m(x * w), x).square().sum()
    y.backward(retain_graph=True)
    y.backward()


def without_grad_mode(cp: Callable[..., Any], m: nn.BatchNorm1d, w: Tensor, x: Tensor) -> None:
    with torch.no_grad():
        cp(m, x)
    (x * w).sum().backward()


def after_the_last_saved(cp: Callable[..., Any], m: nn.BatchNorm1d, w: Tensor, x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        y = (x * w).sin()
        assert m.running_mean is not None
        m.running_mean += 1
        return y

    cp(f, x).sum().backward()


def to_a_tensor_of_the_step(
    cp: Callable[..., Any], m: nn.BatchNorm1d, w: Tensor, x: Tensor
) -> None:
    total = torch.zeros(2)

    def f(x: Tensor) -> Tensor:
        total.add_(x.detach().sum(0))
        return (x * w).sin().exp()

    cp(f, x).sum().backward()
    assert m.running_mean is not None
    m.running_mean += total


def of_what_it_writes(cp: Callable[..., Any], m: nn.BatchNorm1d, w: Tensor, x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        assert m.running_mean is not None
        m.running_mean.mul_(1.5).add_(1.0)
        return (x * w).sin() * m.running_mean.clone()

    cp(f, x).sum().backward()


def without_writes(cp: Callable[..., Any], m: nn.BatchNorm1d, w: Tensor, x: Tensor) -> None:
    cp(lambda x: (x * 2).sin(), x).square().sum().backward()


PROGRAMS: dict[str, Program] = {
    f.__name__: f
    for f in (
        one,
        nested,
        in_a_row,
        two_results,
        one_result_without_gradient,
        no_backward,
        two_passes,
        without_grad_mode,
        after_the_last_saved,
        to_a_tensor_of_the_step,
        of_what_it_writes,
    )
}


def trained(program: Program, wrap: Callable[..., Any], cp: Any, **how: Any) -> list[Tensor]:
    m = nn.BatchNorm1d(2)
    w = torch.tensor([1.5, -0.5], requires_grad=True)

    def called(f: Any, *args: Any) -> Any:
        return cp(f, *args, **how)

    step = wrap(lambda x: program(called, m, w, x))
    for k in range(3):
        step(torch.tensor([[1.0, 2.0], [3.0, 5.0]]) + k)
    assert m.running_mean is not None and m.running_var is not None and w.grad is not None
    assert m.num_batches_tracked is not None
    return [m.running_mean, m.running_var, m.num_batches_tracked, w.grad]


@pytest.mark.parametrize("early_stop", [True, False], ids=["stops early", "does not"])
@pytest.mark.parametrize("whose", [checkpoint, torchs_checkpoint], ids=["ours", "torch's"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_compiled_step_writes_as_often_as_an_eager_one(
    name: str, whose: Any, early_stop: bool
) -> None:
    how = {"use_reentrant": False, "early_stop": early_stop}
    expected = trained(PROGRAMS[name], lambda f: f, torchs_checkpoint, **how)
    torch.testing.assert_close(trained(PROGRAMS[name], jit, whose, **how), expected)


def test_torchs_checkpoint_of_values_of_the_session_runs_the_function_again() -> None:
    m = nn.BatchNorm1d(2).requires_grad_(False)
    x = runtime.tensor([[1.0, 2.0], [3.0, 5.0]], requires_grad=True)
    torchs_checkpoint(m, x, use_reentrant=False).square().sum().backward()
    assert m.num_batches_tracked is not None and m.num_batches_tracked.item() == 2


@pytest.mark.parametrize("whose", [checkpoint, torchs_checkpoint], ids=["ours", "torch's"])
@pytest.mark.parametrize("name", ["one", "of_what_it_writes", "without_writes"])
def test_a_reentrant_checkpoint_writes_twice(name: str, whose: Any) -> None:
    def program(cp: Callable[..., Any], m: nn.BatchNorm1d, w: Tensor, x: Tensor) -> None:
        y = x * w
        run = PROGRAMS.get(name, without_writes)
        run(lambda f, *given: cp(f, *given), m, w, y)

    expected = trained(program, lambda f: f, torchs_checkpoint, use_reentrant=True)
    torch.testing.assert_close(trained(program, jit, whose, use_reentrant=True), expected)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("whose", [checkpoint, torchs_checkpoint], ids=["ours", "torch's"])
def test_the_graph_of_make_fx_writes_twice(whose: Any, reentrant: bool) -> None:
    def step(m: nn.BatchNorm1d, cp: Any) -> Callable[[Tensor], Tensor | None]:
        def run(x: Tensor) -> Tensor | None:
            leaf = x.detach().clone().requires_grad_()
            cp(m, leaf, use_reentrant=reentrant).square().sum().backward()
            return leaf.grad

        return run

    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    m, eager = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    graph = make_fx(step(m, whose))(x)
    m.load_state_dict(eager.state_dict())
    found, expected = graph(x), step(eager, torchs_checkpoint)(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(dict(m.named_buffers()), dict(eager.named_buffers()))


def test_a_write_to_what_the_function_made_may_go_with_draws() -> None:
    f = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Dropout())

    def step(x: Tensor) -> None:
        checkpoint(f, x, use_reentrant=False).sum().backward()

    make_fx(step)(torch.ones(2, 2))
    jit(step)(torch.ones(2, 2))


def test_a_function_that_also_draws_is_refused() -> None:
    m = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())

    def step(x: Tensor) -> None:
        checkpoint(m, x, use_reentrant=False).sum().backward()

    with pytest.raises(RuntimeError, match=r"draws random numbers and writes .*test_captured\.py"):
        jit(step)(torch.ones(2, 2))


def test_a_compiled_forward_pass_alone_is_refused() -> None:
    m = nn.BatchNorm1d(2)
    f = aot_function(lambda x: checkpoint(m, x, use_reentrant=False), nop)
    with pytest.raises(RuntimeError, match=r"jit the whole step"):
        f(torch.ones(2, 2))


def test_a_reentrant_checkpoint_is_refused_that_computes_something_else_the_second_time() -> None:
    w = torch.full((3,), 0.5, requires_grad=True)
    calls = {"n": 0}

    def scaled(x: Tensor) -> Tensor:
        calls["n"] += 1
        return (x * w * calls["n"]).sin()

    @jit
    def step(x: Tensor) -> None:
        torchs_checkpoint(scaled, x * w, use_reentrant=True).sum().backward()

    with pytest.raises(RuntimeError, match=r"(?s)second run.*test_captured.py"):
        step(torch.ones(2, 3))
    assert calls["n"] == 0


def test_torchs_switch_of_early_stops_holds_in_a_compiled_program() -> None:
    w = torch.full((3,), 0.5, requires_grad=True)
    calls = {"n": 0}

    def counted(x: Tensor) -> Tensor:
        y = (x * w).sin()
        calls["n"] += 1
        return y * 2

    @jit
    def step(x: Tensor) -> None:
        with torch.utils.checkpoint.set_checkpoint_early_stop(False):
            loss = torchs_checkpoint(counted, x, use_reentrant=False).sum()
        loss.backward()

    for k in range(3):
        step(torch.ones(2, 3))
        assert calls["n"] == 2 * (k + 1)
