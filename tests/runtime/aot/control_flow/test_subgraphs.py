"""Operators of torch that call a function do what the function does, and others are
refused by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

import runtime
from runtime.aot import aot_function, make_fx, nop
from runtime.func import grad, jvp, vmap

HIGHER = torch.ops.higher_order
X, W = torch.tensor([[0.3, 0.4], [0.5, -0.2]]), torch.tensor([[1.0, 2.0], [-1.0, 0.5]])


def body(x: Any, w: Any) -> Any:
    return (x.sin() * w,)


def graph() -> fx.GraphModule:
    return fx.symbolic_trace(body)


CALLS: dict[str, Callable[..., Any]] = {
    "invoke_quant": lambda x, w: HIGHER.invoke_quant(graph(), x, w, scheme="nf4")[0],
    "invoke_quant_packed": lambda x, w: HIGHER.invoke_quant_packed(body, x, w, scheme="nf4")[0],
    "invoke_subgraph": lambda x, w: HIGHER.invoke_subgraph(graph(), "name", x, w)[0],
    "hints_wrapper": lambda x, w: HIGHER.hints_wrapper(body, (x, w), {}, hints={"fast": True})[0],
    "strict_mode": lambda x, w: HIGHER.strict_mode(body, (x, w))[0],
    "run_const_graph": lambda x, w: HIGHER.run_const_graph(graph(), (x, w))[0],
    "with_effects": lambda x, w: HIGHER.with_effects(
        torch.tensor([]), torch.ops.aten.mul.Tensor, x.sin(), w
    )[1],
    "foreach_map": lambda x, w: torch._higher_order_ops.foreach_map(torch.mul, [x.sin()], [w])[0],
    "_export_tracepoint": lambda x, w: body(
        *HIGHER._export_tracepoint(x, w, kind="module_call_inputs", path="layer")
    )[0],
    "nested_compile_region": lambda x, w: torch.compiler.nested_compile_region(body)(x, w)[0],
    "InvokeQuant": lambda x, w: torch._higher_order_ops.InvokeQuant()(body, x, w, scheme="nf4")[0],
    "wrap": lambda x, w: HIGHER.wrap(body, x, w)[0],
    "tag_activation_checkpoint": lambda x, w: HIGHER.tag_activation_checkpoint(
        graph(), x, w, use_reentrant=False
    )[0],
    "wrap_with_set_grad_enabled": lambda x, w: HIGHER.wrap_with_set_grad_enabled(True, body, x, w)[
        0
    ],
}


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return CALLS[request.param]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_function_has_the_values_and_gradients_of_the_function(
    call: Callable[..., Any], dynamic: bool
) -> None:
    x, w = (runtime.wrap(t.clone(), requires_grad=True) for t in (X, W))
    found = aot_function(call, nop, dynamic=dynamic)(x, w)
    found.sum().backward()
    assert runtime.unwrap(found).equal(X.sin() * W)
    assert runtime.unwrap(x.grad).equal(X.cos() * W) and runtime.unwrap(w.grad).equal(X.sin())


def test_tensors_of_the_session_take_it(call: Callable[..., Any]) -> None:
    x, w = (runtime.wrap(t.clone(), requires_grad=True) for t in (X, W))
    found = call(x, w)
    found.sum().backward()
    assert runtime.unwrap(found).equal(X.sin() * W) and runtime.unwrap(x.grad).equal(X.cos() * W)


def test_a_graph_has_the_calls_of_the_function(call: Callable[..., Any]) -> None:
    module = make_fx(call)(X, W)
    assert [n.target for n in module.graph.nodes if n.op == "call_function"] == [
        torch.ops.aten.sin.default,
        torch.ops.aten.mul.Tensor,
    ]
    assert module(W, X).equal(W.sin() * X)


def test_transforms_see_the_calls_of_the_function(call: Callable[..., Any]) -> None:
    assert grad(lambda x: call(x, W).sum())(X).equal(X.cos() * W)
    assert jvp(lambda x: call(x, W), (X,), (W,))[1].equal(X.cos() * W * W)
    assert vmap(call, (0, None))(torch.stack([X, W]), W).equal(torch.stack([X, W]).sin() * W)


def test_a_functional_form_of_a_write_leaves_the_argument_as_it_is() -> None:
    def add(x: Any) -> None:
        x.add_(1)

    with torch.library._scoped_library("subgraphs_test", "FRAGMENT") as library:
        library.define("add_one(Tensor(a!) x) -> ()")
        library.impl("add_one", add, "CompositeExplicitAutograd")
        add_one = torch.ops.subgraphs_test.add_one.default
        x = X.clone()
        found = make_fx(lambda x: HIGHER.auto_functionalized(add_one, x=x)[1])(x)(x)
    assert found.equal(X + 1) and x.equal(X)


def test_an_effect_is_printed_for_each_call_and_refused_in_a_trace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def program(x: Any) -> Any:
        HIGHER.print("{} of {name}", 3, name="x")
        return x.sin()

    for _ in range(2):
        grad(lambda x: program(x).sum())(X)
    assert capsys.readouterr().out == "3 of x\n3 of x\n"
    with pytest.raises(
        NotImplementedError,
        match=r"would print once.* Return what is to be printed.*test_subgraphs\.py",
    ):
        aot_function(program, nop)(X)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "run_and_save_rng_state": (
        lambda x: HIGHER.run_and_save_rng_state(torch.ops.aten.bernoulli.default, x)[1],
        "Use the program",
    ),
    "while_loop_stack_output": (
        lambda x: HIGHER.while_loop_stack_output(
            lambda x: x.sum() < 3, lambda x: (x + 1,), (x,), ()
        )[0],
        "Use runtime.aot.scan",
    ),
    "flex_attention": (
        lambda x: importlib.import_module("torch.nn.attention.flex_attention").flex_attention(
            *[x.reshape(1, 1, 2, 2)] * 3
        ),
        "Use scaled_dot_product_attention",
    ),
}


@pytest.mark.parametrize("name", ["run_and_save_rng_state", "while_loop_stack_output"])
@pytest.mark.parametrize(
    "transform",
    [lambda f: aot_function(f, nop), make_fx, lambda f: grad(lambda x: f(x).sum()), vmap],
)
def test_others_are_refused_by_name(name: str, transform: Callable[..., Any]) -> None:
    program, advice = REFUSED[name]
    with pytest.raises(
        NotImplementedError, match=f"higher_order.{name} is no part.* {advice}.*test_subgraphs"
    ):
        out = transform(program)(X)
        if callable(out):
            out(X)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_attention_by_a_function_of_scores_is_refused_by_name() -> None:
    program, advice = REFUSED["flex_attention"]
    with pytest.raises(
        NotImplementedError,
        match=f"higher_order.flex_attention is no part.* {advice}.*test_subgraphs",
    ):
        aot_function(program, nop)(X)
