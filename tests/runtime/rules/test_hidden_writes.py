"""Running statistics of norms: a trace leaves them as they were, and each replay updates them,
whether the result is used or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from runtime import jit
from runtime.aot import make_fx
from runtime.rules.hidden_writes import hidden_writes
from runtime.rules.ops import op_of

aten = torch.ops.aten
X = torch.arange(24.0).view(4, 3, 2).sin()
NORMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "batch_norm": lambda x, mean, var: functional.batch_norm(x, mean, var, training=True),
    "instance_norm": lambda x, mean, var: functional.instance_norm(x, mean, var),
    "parts of a norm": lambda x, mean, var: torch._batch_norm_impl_index(
        x, None, None, mean, var, True, 0.1, 1e-5, False
    )[0],
}
TRACERS: dict[str, Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]] = {
    "make_fx": lambda f: make_fx(f)(X),
    "make_fx, pre_dispatch": lambda f: make_fx(f, pre_dispatch=True)(X),
    "make_fx, symbolic": lambda f: make_fx(f, tracing_mode="symbolic", _allow_non_fake_inputs=True)(
        X
    ),
}


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("tracer", TRACERS)
def test_a_replay_updates_running_statistics_and_the_trace_does_not(
    tracer: str, norm: str, used: bool
) -> None:
    def program(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        y = NORMS[norm](x, mean, var)
        return y * 2 if used else x * 2

    mean, var = torch.zeros(3), torch.ones(3)
    traced = TRACERS[tracer](lambda x: program(x, mean, var))
    assert (mean.tolist(), var.tolist(), mean._version, var._version) == (
        [0.0] * 3,
        [1.0] * 3,
        0,
        0,
    )
    theirs = torch.zeros(3), torch.ones(3)
    torch.testing.assert_close(traced(X), program(X, *theirs))
    torch.testing.assert_close((mean, var), theirs)


def test_jit_updates_the_statistics_of_a_norm_whose_result_is_not_used() -> None:
    mean, var, theirs = torch.zeros(3), torch.ones(3), (torch.zeros(3), torch.ones(3))
    jitted = jit(lambda x: (functional.batch_norm(x, mean, var, training=True), x * 2)[1])
    for _ in range(2):
        jitted(X)
        functional.batch_norm(X, *theirs, training=True)
    torch.testing.assert_close((mean, var), theirs)


@pytest.mark.parametrize("pre_dispatch", [False, True])
@pytest.mark.parametrize("norm", ["of given statistics", "without statistics"])
def test_an_unused_norm_that_writes_nothing_is_left_out(norm: str, pre_dispatch: bool) -> None:
    def program(x: Tensor) -> Tensor:
        if norm == "of given statistics":
            functional.batch_norm(x, torch.zeros(3), torch.ones(3), training=False)
        else:
            functional.batch_norm(x, None, None, training=True)
        return x * 2

    calls = [
        n.target
        for n in make_fx(program, pre_dispatch=pre_dispatch)(X).graph.nodes
        if n.op == "call_function"
    ]
    assert aten.mul.Tensor in calls and not {
        aten.batch_norm.default,
        aten.native_batch_norm.default,
    } & set(calls)


def test_a_call_hides_the_writes_to_the_statistics_that_it_is_given() -> None:
    native, whole, other = (
        op_of(f.default) for f in (aten.native_batch_norm, aten.batch_norm, aten.exp)
    )
    x, mean, var = torch.ones(2, 3), torch.zeros(3), torch.ones(3)
    assert hidden_writes(native, (x, None, None, mean, var, True, 0.1, 1e-5), {}) == [
        "running_mean",
        "running_var",
    ]
    assert hidden_writes(native, (x, None, None, mean, var, False, 0.1, 1e-5), {}) == []
    assert hidden_writes(whole, (x, None, None, mean, None), {"training": True}) == ["running_mean"]
    assert hidden_writes(whole, (x, None, None, mean, var), {"training": False}) == []
    assert hidden_writes(other, (x,), {}) == []


def test_a_trace_puts_back_what_it_has_written_to_a_tensor_without_a_version() -> None:
    with torch.inference_mode():
        closed = torch.ones(2)
        traced = make_fx(lambda x: (closed.add_(x), x * 2)[1])(torch.ones(2))
        assert closed.tolist() == [1.0, 1.0]
        traced(torch.ones(2))
        assert closed.tolist() == [2.0, 2.0]
