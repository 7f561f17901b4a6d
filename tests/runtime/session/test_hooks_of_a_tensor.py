"""The hooks of a tensor of the session where its flag or the hooks themselves are assigned.
Torch is the oracle."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ..scenarios import same


def _leaf(lib: Any) -> Any:
    return lib.tensor([1.0, 2.0], requires_grad=True)


def _notes() -> list[Any]:
    return []


def _end(y: Any) -> Any:
    """The node of the leaf that ``y``, a sum of a product, was made from."""
    return y.grad_fn.next_functions[0][0].next_functions[0][0]


def _times(factor: float, seen: list[Any], name: str) -> Callable[[Any], Any]:
    def hook(g: Any) -> Any:
        seen.append(name)
        return g * factor

    return hook


def test_a_leaf_that_was_frozen_in_between_keeps_its_node() -> None:
    def scenario(lib: Any) -> Any:
        x, seen = _leaf(lib), _notes()
        first = (x * 2).sum()
        _end(first).register_hook(lambda *_: seen.append("node"))
        x.requires_grad_(False)
        x.requires_grad_(True)
        x.register_hook(_times(10, seen, "tensor"))
        second = (x * 3).sum()
        kept = _end(second) is _end(first)
        second.backward()
        first.backward()
        return kept, seen, x.grad

    assert same(scenario) == [True, ["tensor", "node"] * 2, [50.0, 50.0]]


def test_a_dtype_of_the_gradient_set_while_a_leaf_is_frozen_counts_for_uses_before() -> None:
    def scenario(lib: Any) -> Any:
        x = _leaf(lib)
        y = (x * 2).sum()
        x.requires_grad_(False)
        x.grad_dtype = torch.float64
        x.requires_grad_(True)
        y.backward()
        return x.grad.dtype, x.grad

    assert same(scenario) == [torch.float64, [2.0, 2.0]]


def test_hooks_of_a_leaf_that_is_frozen_run_and_its_gradient_stays() -> None:
    def scenario(lib: Any) -> Any:
        x, seen = _leaf(lib), _notes()
        x.register_hook(_times(10, seen, "tensor"))
        x.register_post_accumulate_grad_hook(lambda p: seen.append(p is x))
        y = (x * 2).sum()
        _end(y).register_hook(lambda *_: seen.append("node"))
        x.requires_grad_(False)
        y.backward()
        return seen, x.grad

    assert same(scenario) == [["tensor", True, "node"], None]


def test_hooks_that_are_assigned_to_a_frozen_leaf_are_those_of_its_node() -> None:
    def scenario(lib: Any) -> Any:
        x, seen = _leaf(lib), _notes()
        x.register_hook(_times(10, seen, "first"))
        y = (x * 2).sum()
        x.requires_grad_(False)
        x._backward_hooks = OrderedDict({1: _times(3, seen, "assigned")})
        x.requires_grad_(True)
        y.backward()
        return seen, x.grad

    assert same(scenario) == [["assigned"], [6.0, 6.0]]


def test_a_leaf_that_got_a_history_after_its_use_has_no_place_for_the_gradient() -> None:
    def scenario(lib: Any) -> Any:
        x, w = _leaf(lib), _leaf(lib)
        y = (x * 2).sum()
        x.requires_grad_(False)
        x.mul_(w)
        y.backward()

    assert same(scenario) == (
        "RuntimeError",
        "leaf variable has been moved into the graph interior",
    )


def _assigned(y: Any, seen: list[Any]) -> None:
    y._backward_hooks = OrderedDict({1: _times(3, seen, "assigned")})


def _assigned_then_registered(y: Any, seen: list[Any]) -> None:
    _assigned(y, seen)
    y.register_hook(_times(5, seen, "later"))


def _cleared(y: Any, seen: list[Any]) -> None:
    y._backward_hooks = None


def _cleared_then_registered(y: Any, seen: list[Any]) -> None:
    y._backward_hooks = None
    y.register_hook(_times(5, seen, "later"))
    seen.append(y._backward_hooks is None)


def _assigned_to_a_view(y: Any, seen: list[Any]) -> None:
    _assigned(y.view(2), seen)


def _assigned_before_a_write(y: Any, seen: list[Any]) -> None:
    _assigned(y, seen)
    y.mul_(2)
    seen.append(y._backward_hooks is None)
    y.register_hook(_times(5, seen, "later"))


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        _assigned,
        _assigned_then_registered,
        _cleared,
        _cleared_then_registered,
        _assigned_to_a_view,
        _assigned_before_a_write,
    ],
)
def test_what_is_assigned_to_the_hooks_of_a_result_is_shown_and_leaves_its_node_as_it_was(
    change: Callable[[Any, list[Any]], None], hooked: bool
) -> None:
    def scenario(lib: Any) -> Any:
        x, seen = _leaf(lib), _notes()
        y = x * 2
        if hooked:
            y.register_hook(_times(10, seen, "first"))
        change(y, seen)
        shown = y._backward_hooks is None
        y.sum().backward()
        return seen, shown, x.grad

    assert isinstance(same(scenario), list)


def test_hooks_of_the_results_of_one_node_are_assigned_apart() -> None:
    def scenario(lib: Any) -> Any:
        x, seen = _leaf(lib), _notes()
        a, b = x.unbind()
        a.register_hook(_times(2, seen, "a"))
        b.register_hook(_times(3, seen, "b"))
        a._backward_hooks = None
        shown = a._backward_hooks is None, len(b._backward_hooks)
        (a + b).backward()
        return seen, shown, x.grad

    assert same(scenario) == [["a", "b"], [True, 1], [2.0, 3.0]]
