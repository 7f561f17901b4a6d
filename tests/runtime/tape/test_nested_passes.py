"""Backward passes inside backward passes, and callbacks at their ends. Torch's
engine is the oracle."""

import contextlib
import weakref
from typing import Any

import pytest
import torch

from ..scenarios import OURS, same


def leaf(*values: float) -> Any:
    return OURS.tensor(list(values), requires_grad=True)


def test_a_pass_inside_a_pass_ends_first() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([2.0], requires_grad=True)
        order: list[str] = []

        def nested(g: Any) -> None:
            order.append("outer hook")
            with torch.enable_grad():
                z = x.detach().requires_grad_() * 3
                z.register_hook(lambda g: order.append("inner hook"))
                z.backward()
            order.append("back")

        y = x * 2
        y.register_hook(nested)
        (y * 5).backward()
        return order, x.grad

    assert same(scenario)[0] == ["outer hook", "inner hook", "back"]


def one_inside_the_other(hook: Any) -> None:
    with torch.enable_grad():
        y = leaf(1.0) * 2
    y.register_hook(hook)
    y.backward()


@pytest.mark.usefixtures("routed")
def test_passes_nest_deeper_than_the_stack() -> None:
    depth = [0]

    def nested(g: Any) -> None:
        depth[0] += 1
        if depth[0] < 1500:
            one_inside_the_other(nested)

    one_inside_the_other(nested)
    assert depth[0] == 1500
    assert torch._C._current_graph_task_id() == -1


@pytest.mark.usefixtures("routed")
def test_an_error_far_down_comes_up_with_its_type() -> None:
    depth = [0]

    class Deep(Exception):
        pass

    def nested(g: Any) -> None:
        depth[0] += 1
        if depth[0] == 100:
            raise Deep("bottom")
        one_inside_the_other(nested)

    with pytest.raises(Deep, match="bottom"):
        one_inside_the_other(nested)
    assert torch._C._current_graph_task_id() == -1
    (leaf(1.0) * 2).backward()


def test_grad_mode_and_saved_tensor_hooks_go_along_to_deep_passes() -> None:
    depth = [0]
    packed: list[int] = []
    modes: list[bool] = []

    def nested(g: Any) -> None:
        depth[0] += 1
        modes.append(torch.is_grad_enabled())
        if depth[0] < 70:
            with torch.enable_grad():
                x = leaf(1.0)
                y = x * x
            y.register_hook(nested)
            y.backward()

    def pack(t: Any) -> Any:
        packed.append(1)
        return t

    with OURS.graph.saved_tensors_hooks(pack, lambda t: t):
        nested(None)
    assert modes[1:] == [False] * 69 and len(packed) == 2 * 69


def test_callbacks_run_when_the_pass_has_ended() -> None:
    def scenario(lib: Any) -> Any:
        order: list[str] = []
        queue = lib.autograd.Variable._execution_engine.queue_callback

        def callback() -> None:
            order.append("callback")
            queue(lambda: order.append("queued by a callback"))

        def hook(g: Any) -> None:
            order.append("hook")
            queue(callback)

        x = lib.tensor([1.0], requires_grad=True)
        y = x * 2
        y.register_hook(hook)
        x.register_hook(lambda g: order.append("leaf"))
        y.backward()
        return order

    assert same(scenario) == ["hook", "leaf", "callback", "queued by a callback"]


def test_callbacks_of_an_inner_pass_run_when_that_has_ended() -> None:
    def scenario(lib: Any) -> Any:
        order: list[str] = []
        queue = lib.autograd.Variable._execution_engine.queue_callback

        def inner(g: Any) -> None:
            queue(lambda: order.append("inner callback"))

        def outer(g: Any) -> None:
            queue(lambda: order.append("outer callback"))
            with torch.enable_grad():
                z = lib.tensor([1.0], requires_grad=True) * 2
            z.register_hook(inner)
            z.backward()
            order.append("outer hook ends")

        y = lib.tensor([1.0], requires_grad=True) * 2
        y.register_hook(outer)
        y.backward()
        return order

    assert same(scenario) == ["inner callback", "outer hook ends", "outer callback"]


def test_callbacks_need_a_pass() -> None:
    same(lambda lib: lib.autograd.Variable._execution_engine.queue_callback(lambda: None))


def test_an_error_on_a_fresh_stack_holds_nothing(without_collector: None) -> None:
    class Deep(Exception):
        pass

    gone: list[weakref.ref[Deep]] = []

    def nested(g: Any) -> None:
        depth.append(1)
        if len(depth) == 40:
            error = Deep()
            gone.append(weakref.ref(error))
            try:
                raise error
            finally:
                del error
        one_inside_the_other(nested)

    depth: list[int] = []
    with contextlib.suppress(Deep):
        one_inside_the_other(nested)
    assert [r() for r in gone] == [None]
