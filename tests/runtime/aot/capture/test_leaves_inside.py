"""Leaves and results inside a program that is captured, or a function that is transformed, say what
they say in eager mode, or refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime import jit

X = torch.ones(2)
WAYS: dict[str, Callable[[Any], Any]] = {
    "jit": lambda f: jit(lambda x: f(x.detach().clone().requires_grad_()) or x * 1),
    "grad": lambda f: runtime.func.grad(lambda x: f(x) or x.sum()),
    "vjp": lambda f: lambda x: runtime.func.vjp(lambda x: f(x) or x * 1, x),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_hook_that_nobody_would_call_is_refused(way: str) -> None:
    with pytest.raises(
        RuntimeError,
        match=r"register_post_accumulate_grad_hook\(\) of a tensor inside .* register_hook\(\)",
    ):
        WAYS[way](lambda leaf: leaf.register_post_accumulate_grad_hook(print) and None)(X)


@pytest.mark.parametrize("way", WAYS)
def test_a_leaf_that_shall_no_longer_require_grad_is_refused_as_a_leaf(way: str) -> None:
    inputs = "whose leaves are its inputs"
    refusal = {
        "jit": r"a leaf inside .* keeps its flag\. detach\(\)",
        "grad": inputs,
        "vjp": inputs,
    }
    with pytest.raises(RuntimeError, match=refusal[way]):
        WAYS[way](lambda leaf: leaf.requires_grad_(False) and None)(X)


def test_hooks_of_the_node_of_a_leaf_are_refused_where_its_gradient_arrives() -> None:
    def program(x: Any) -> Any:
        leaf = x.detach().clone().requires_grad_()
        leaf.view_as(leaf).grad_fn.next_functions[0][0].register_prehook(lambda grads: grads)
        leaf.sin().sum().backward()
        return leaf.grad

    with pytest.raises(RuntimeError, match="adds to the gradient of a tensor with hooks"):
        jit(program)(X)


@pytest.mark.parametrize("way", WAYS)
def test_hooks_are_registered_and_not_assigned(way: str) -> None:
    with pytest.raises(
        RuntimeError, match=r"assigns _backward_hooks of a tensor inside .* register_hook\(\)"
    ):
        WAYS[way](lambda leaf: setattr(leaf, "_backward_hooks", {0: print}))(X)


@pytest.mark.parametrize("way", WAYS)
def test_hooks_are_not_taken_away_by_assignment(way: str) -> None:
    def program(leaf: Any) -> None:
        leaf._backward_hooks = None  # there are none to lose
        leaf.register_hook(torch.cos)
        leaf._backward_hooks = None

    with pytest.raises(RuntimeError, match="assigns _backward_hooks"):
        WAYS[way](program)(X)


def test_a_result_says_whether_it_retains_its_gradient() -> None:
    def flags(x: Any) -> tuple[Any, ...]:
        y, z = x * 2, x.sin()
        y.retain_grad()
        (y * z).sum().backward()
        return y.retains_grad, z.retains_grad, x.retains_grad, y.grad * 1

    *found, gradient = jit(flags)(X.clone().requires_grad_())
    assert found == [True, False, False] and torch.equal(gradient, X.sin())
