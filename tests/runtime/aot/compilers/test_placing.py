"""New values of arguments are computed in the caller's memory, where nothing can tell; and copied
there otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import runtime
from runtime import aot
from runtime.aot import nop

from . import random_graphs
from .placed_arguments import placed

X, Y = torch.randn(4, 3), torch.randn(4, 3)


def test_a_new_value_is_computed_in_the_argument() -> None:
    assert placed(lambda x, y: (x.mul_(y), None)[1], X, Y) == {0: 0}
    assert placed(lambda x, y: (x.copy_(y * 2), None)[1], X, Y) == {0: 0}
    assert placed(lambda x: (x.mul_(2), None)[1], X) == {0: 0}


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: x.copy_(y),
        lambda x, y: x.fill_(2),
        lambda x, y: x.fill_(y[0, 0]),
        lambda x, y: x.zero_(),
    ],
)
def test_a_tensor_that_is_set_is_set_in_place(f: Any) -> None:
    assert placed(lambda x, y: (f(x, y), None)[1], X, Y) == {0: 0}


def test_several_writes_to_an_argument_need_no_buffer() -> None:
    def f(x: Tensor, y: Tensor) -> None:
        x.mul_(0.9).addcmul_(y, y, value=0.1)

    assert placed(f, X, Y) == {0: 0}
    compiled = aot.aot_function(f, aot.nop)
    x, y = torch.randn(1000, 1000), torch.randn(1000, 1000)
    compiled(x, y)
    # torch 2.12 warns once that a second cycle would clear the events, unless they are kept
    with torch.profiler.profile(
        profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
    ) as seen:
        compiled(x, y)
    assert (
        sum(e.self_cpu_memory_usage for e in seen.key_averages() if e.self_cpu_memory_usage > 0)
        < x.nbytes
    )


def test_arguments_take_the_values_of_one_another() -> None:
    def swap(x: Tensor, y: Tensor) -> None:
        z = x.clone()
        x.copy_(y)
        y.copy_(z)

    def exchange(x: Tensor, y: Tensor) -> None:
        u = x * 1.5
        x.mul_(y)
        y.copy_(u)

    assert placed(swap, X, Y) == {1: 0}  # `y` takes `x` itself, which so is written last
    assert placed(exchange, X, Y) == {0: 0}  # `u` is read from `x` before, and `y` is read after


def test_a_written_argument_with_gaps_is_copied() -> None:
    base = torch.randn(8, 3)
    rows, before = base[::2], base.clone()
    expected = rows * 2
    aot.aot_function(lambda x: (x.mul_(2), None)[1], aot.nop)(rows)
    assert torch.equal(rows, expected) and torch.equal(base[1::2], before[1::2])


def test_arguments_that_share_memory_are_written_after_the_graph() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y

    base, expected = torch.arange(6.0), torch.arange(6.0)
    compiled = aot.aot_function(f, aot.nop)
    for mine, theirs in ((base[:4], expected[:4]), (base[2:], expected[2:])):
        assert torch.equal(compiled(mine, mine), f(theirs, theirs)) and torch.equal(base, expected)
    assert torch.equal(compiled(base[:4], base[2:]), f(expected[:4], expected[2:])) and torch.equal(
        base, expected
    )
    assert torch.equal(
        compiled(base[:4], torch.ones(4)), f(expected[:4], torch.ones(4))
    ) and torch.equal(base, expected)


def test_a_write_that_autograd_sees_is_not_carried_out_by_the_graph() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(w)
        return x.sum()

    w = runtime.wrap(torch.full((3,), 2.0), requires_grad=True)
    x = runtime.wrap(torch.ones(3))
    aot.aot_function(f, aot.nop)(x, w).backward()
    assert (
        x._version == 1
        and torch.equal(runtime.unwrap(w.grad), torch.ones(3))
        and torch.equal(runtime.unwrap(x), torch.full((3,), 2.0))
    )


def test_a_write_under_no_grad_to_a_leaf_is_in_place_and_counted() -> None:
    @torch.no_grad()
    def f(w: Tensor) -> None:
        w.sub_(0.1 * w)

    for make in (torch.nn.Parameter, lambda t: runtime.wrap(t, requires_grad=True), lambda t: t):
        w = make(torch.ones(3))
        before, version = w.data_ptr(), w._version
        aot.aot_function(f, aot.nop)(w)
        assert (
            w.data_ptr() == before
            and w._version == version + 1
            and torch.equal(runtime.unwrap(w).detach(), torch.full((3,), 0.9))
        )


def test_a_view_of_what_a_program_writes_takes_its_history_again() -> None:
    """A write under no_grad to a base is one for its views, whose history the
    session asks for again."""
    base = runtime.wrap(torch.ones(3))
    view = base[:2]
    generation = base._generation
    aot.aot_function(lambda x: (x.mul_(2), None)[1], aot.nop)(base)
    assert base._generation == generation + 1 and torch.equal(
        runtime.unwrap(view), torch.full((2,), 2.0)
    )


def test_what_a_backward_has_saved_knows_that_it_was_overwritten() -> None:
    w = runtime.wrap(torch.ones(3), requires_grad=True)
    loss = (w * w).sum()
    aot.aot_function(torch.no_grad()(lambda w: (w.mul_(2), None)[1]), aot.nop)(w)
    with pytest.raises(RuntimeError, match="version"):
        loss.backward()


def test_hidden_writes_are_not_counted() -> None:
    def f(x: Tensor) -> None:
        x.data.mul_(2)

    assert placed(f, X) == {}


def test_an_inference_tensor_is_written_in_inference_mode_alone() -> None:
    def f(x: Tensor) -> None:
        x.mul_(2).add_(1)

    compiled = aot.aot_function(f, aot.nop)
    with torch.inference_mode():
        x = torch.ones(3)
        compiled(x)
        compiled(x)
        assert torch.equal(x, torch.full((3,), 7.0))
    with pytest.raises(RuntimeError, match="nference"):
        compiled(x)


def test_random_programs_do_what_this_test_is_about() -> None:
    def placed(seed: int) -> bool:
        found: list[Any] = []

        def keep(module: Any, inputs: list[Any]) -> Any:
            run: Any = nop(module, inputs)
            found.append(run.placed)
            return run

        aot.aot_function(random_graphs.compiled(random_graphs.program(seed)), keep)(
            *random_graphs.inputs(seed)
        )
        return any(found)

    assert sum(map(placed, range(30))) > 8
