"""Running statistics of norms: a trace leaves them as they were, and each replay updates them,
whether the result is used or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from runtime import jit
from runtime.aot import make_fx

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


UNUSED: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Any], list[str]]] = {
    "native, in training": (
        lambda x, mean, var: aten.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5),
        ["mean", "var"],
    ),
    "native, in evaluation": (
        lambda x, mean, var: aten.native_batch_norm(x, None, None, mean, var, False, 0.1, 1e-5),
        [],
    ),
    "whole, in evaluation": (
        lambda x, mean, var: functional.batch_norm(x, mean, var, training=False),
        [],
    ),
    "no norm": (lambda x, mean, var: torch.exp(x), []),
}


@pytest.mark.parametrize("name", UNUSED)
def test_an_unused_call_stays_for_the_statistics_that_it_writes(name: str) -> None:
    call, written = UNUSED[name]

    def program(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        call(x, mean, var)
        return x * 2

    def changed(f: Any) -> list[str]:
        statistics = {"mean": torch.zeros(3), "var": torch.ones(3)}
        before = {name: t.clone() for name, t in statistics.items()}
        f(X, *statistics.values())
        return [name for name, t in statistics.items() if not torch.equal(t, before[name])]

    traced = make_fx(program)(X, torch.zeros(3), torch.ones(3))
    assert changed(traced) == changed(program) == written
    calls = [n.target for n in traced.graph.nodes if n.op == "call_function"]
    assert (calls == [aten.mul.Tensor]) is (written == [])


def test_a_trace_puts_back_what_it_has_written_to_a_tensor_without_a_version() -> None:
    with torch.inference_mode():
        closed = torch.ones(2)
        traced = make_fx(lambda x: (closed.add_(x), x * 2)[1])(torch.ones(2))
        assert closed.tolist() == [1.0, 1.0]
        traced(torch.ones(2))
        assert closed.tolist() == [2.0, 2.0]
