"""For which results each call of a backward graph runs, and what makes it.

Inside: ``runtime.aot.capture.origins``. A backward for some cotangents shows which calls it runs,
and not whether a rule, a sum or the user's own code has made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import cond
from runtime.aot.capture.joint import joint_graph
from runtime.aot.capture.origins import ORIGIN
from runtime.checkpoint import checkpoint


class Exp(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0]


class Differentiates(runtime.autograd.Function):
    """Its backward is a backward pass of another level."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * runtime.func.grad(lambda x: (x.sin() + x * 2).sum())(x)


class WritesARow(runtime.autograd.Function):
    """Its backward writes to a view of an argument."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.x = x
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        with torch.no_grad():
            ctx.x[0].add_(1)
        return g * 2


def hooked(by: str) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        y = x.sin()
        if by == "tensor":
            y.register_hook(lambda g: g * 2)
        elif by == "pre":
            y.grad_fn.register_prehook(lambda gs: (gs[0] * 2,))
        else:
            y.grad_fn.register_hook(lambda gs, _: (gs[0] * 2,))
        return y * x

    return f


# of each call of the backward the results, as bits of a number, and what makes it
FOUND: dict[str, tuple[Callable[[Any], Any], str]] = {
    "one result": (lambda x: x.sin(), "cos=1RULE mul=1RULE"),
    "two results": (
        lambda x: (x.sin(), x.cos()),
        "sin_1=2RULE neg=2RULE mul=2RULE cos_1=1RULE mul_1=1RULE add=0SUM",
    ),
    "what two results share": (
        lambda x: (lambda y: (y.sin(), y.exp()))(x * 2),
        "mul_1=2RULE cos=1RULE mul_2=1RULE add=0SUM mul_3=3RULE",
    ),
    "a Function": (lambda x: (x * 2, Exp.apply(x)), "mul_1=2OWN mul_2=1RULE add=0SUM"),
    "a Function that differentiates": (
        lambda x: (x * 2, Differentiates.apply(x)),
        (
            "sin_1=2OWN mul_1=2OWN add=2OWN sum_1=2OWN ones_like=2OWN expand=2OWN mul_2=2OWN "
            "cos=2OWN mul_3=2OWN add_1=2OWN mul_4=2OWN mul_5=1RULE add_2=0SUM"
        ),
    ),
    "a Function that writes": (
        lambda x: WritesARow.apply(x),
        "select=1OWN add=1OWN select_scatter=1OWN mul_1=1OWN",
    ),
    "a checkpoint": (
        lambda x: (checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False), x.cos()),
        "sin_1=2RULE neg=2RULE mul=2RULE mul_1=1RULE cos_1=1RULE mul_2=1RULE add=0SUM",
    ),
    "a branch": (
        lambda x: cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)),
        "true_graph_1=1RULE false_graph_1=1RULE cond_1=1RULE getitem_1=1RULE",
    ),
    "a hook": (hooked("tensor"), "mul_1=1RULE mul_2=1RULE mul_3=1OWN cos=1OWN mul_4=1OWN add=0SUM"),
    "a hook before a node": (
        hooked("pre"),
        "mul_1=1RULE mul_2=1RULE mul_3=1OWN cos=1OWN mul_4=1OWN add=0SUM",
    ),
    "a hook after a node": (
        hooked("post"),
        "mul_1=1RULE mul_2=1RULE cos=1OWN mul_3=1OWN mul_4=1OWN add=0SUM",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_where_calls_of_a_backward_come_from(name: str) -> None:
    f, expected = FOUND[name]
    nodes = joint_graph(f, [torch.ones(2, 3)], [True]).module.graph.nodes
    assert (
        " ".join(
            f"{n.name}={n.meta[ORIGIN].roots}{n.meta[ORIGIN].kind.name}"
            for n in nodes
            if ORIGIN in n.meta
        )
        == expected
    )


def test_calls_of_a_program_have_no_origin() -> None:
    def f(x: Any) -> Any:
        return runtime.func.grad(lambda x: (x.sin() * 2).sum())(x) * x.cos()

    graph = joint_graph(f, [torch.ones(2)], [True]).module.graph
    forward = [n.name for n in graph.nodes if n.op == "call_function" and ORIGIN not in n.meta]
    assert forward == [
        "sin",
        "mul",
        "sum_1",
        "ones_like",
        "expand",
        "mul_1",
        "cos",
        "mul_2",
        "cos_1",
        "mul_3",
    ]
