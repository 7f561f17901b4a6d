"""A partition knows the tangents of a joint graph by what the graph says of itself,
whoever made it."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import CodeGen

import runtime
from runtime import aot

X, Y, G = (torch.randn(3) for _ in range(3))
CUTS = [aot.default_partition, aot.min_cut_rematerialization_partition]


def joint(primals: list[torch.Tensor], tangents: list[torch.Tensor]) -> Any:
    """The results of ``(x * y).sin()`` and its gradients, written by hand."""
    (x, y), (g,) = primals, tangents
    product = x * y
    by_product = g * product.cos()
    return [product.sin()], [by_product * y, by_product * x]


def flat(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
    outs, gradients = joint([a, b], [c])
    return [*outs, *gradients]


def traced(*names: str) -> torch.fx.GraphModule:
    """The graph of ``flat``, with other names for its arguments."""
    module = aot.make_fx(flat)(X, Y, G)
    for n, name in zip(module.graph.find_nodes(op="placeholder"), names, strict=False):
        n.target = name
    module.recompile()
    return module


def check(module: torch.fx.GraphModule, joint_inputs: Any, cut: Any) -> None:
    forward, backward = cut(module, joint_inputs, num_fwd_outputs=1)
    out, *saved = forward(X, Y)
    torch.testing.assert_close(out, (X * Y).sin())
    torch.testing.assert_close(
        list(backward(*saved, G)), [G * (X * Y).cos() * Y, G * (X * Y).cos() * X]
    )


def inputs_of_halves(module: torch.fx.GraphModule, n_results: int) -> tuple[list[str], list[str]]:
    """The names of what the forward takes, and of what the backward takes and the forward does
    not give."""
    forward, backward = aot.default_partition(module, num_fwd_outputs=n_results)
    n_saved = len(forward.graph.output_node().args[0]) - n_results  # type: ignore[arg-type]
    primals, arguments = (
        [n.name for n in half.graph.find_nodes(op="placeholder")] for half in (forward, backward)
    )
    return primals, arguments[n_saved:]


@pytest.mark.parametrize("cut", CUTS)
def test_of_a_graph_that_names_them_as_torch_does(cut: Any) -> None:
    check(traced("primals_1", "primals_2", "tangents_1"), None, cut)


@pytest.mark.parametrize("cut", CUTS)
def test_of_a_graph_with_other_names_by_the_inputs_that_it_was_made_for(cut: Any) -> None:
    check(traced(), ((X, Y), (G,)), cut)


@pytest.mark.parametrize("trace", [aot.make_fx, make_fx], ids=["ours", "torch's"])
@pytest.mark.parametrize("cut", CUTS)
def test_of_a_function_of_two_lists_by_its_signature(cut: Any, trace: Any) -> None:
    def f(inputs: list[torch.Tensor], cotangents: list[torch.Tensor]) -> Any:
        outs, gradients = joint(inputs, cotangents)
        return [*outs, *gradients]

    check(trace(f)([X, Y], [G]), None, cut)


@pytest.mark.parametrize("trace", [aot.make_fx, make_fx], ids=["ours", "torch's"])
def test_a_list_of_no_tangents_is_one(trace: Any) -> None:
    module = trace(lambda inputs, cotangents: [inputs[0] * inputs[1]])([X, Y], [])
    assert inputs_of_halves(module, 1) == (["inputs_1", "inputs_2"], [])


@pytest.mark.parametrize(
    "module",
    [
        aot.make_fx(lambda x, tangents: [x * tangents])(X, G),
        aot.make_fx(lambda a, b, tangents: [a[0] * b[0] * tangents[0]])(
            [X], [Y], [G]
        ),  # three lists
        aot.make_fx(lambda a, tangents: [a["x"] * a["y"] * tangents[0]])({"x": X, "y": Y}, [G]),
    ],
)
def test_of_a_function_of_other_arguments_by_their_names(module: Any) -> None:
    *primals, tangent = (n.name for n in module.graph.find_nodes(op="placeholder"))
    assert tangent.startswith("tangents")
    assert inputs_of_halves(module, 0) == (primals, [tangent])


def test_of_a_graph_that_has_lost_an_input_by_the_names() -> None:
    module = aot.make_fx(lambda inputs, tangents: [inputs[0] * tangents[0]])([X, Y], [G])
    module.graph.erase_node(module.graph.find_nodes(op="placeholder")[1])
    assert inputs_of_halves(module, 0) == (["inputs_1"], ["tangents_1"])


@pytest.mark.parametrize("cut", CUTS)
def test_of_an_exported_joint_graph_whose_inputs_were_renamed(cut: Any) -> None:
    module = aot.aot_export_joint_simple(
        lambda x, y: [(x * y).sin()], [t.clone().requires_grad_() for t in (X, Y)], trace_joint=True
    )
    module.graph.set_codegen(CodeGen())
    for i, n in enumerate(n for n in module.graph.nodes if n.op == "placeholder"):
        n.target = f"renamed_{i}"
    module.recompile()
    check(module, None, cut)


def test_a_backward_pass_frees_each_saved_tensor_after_its_last_use() -> None:
    alive: list[bool] = []
    watched: list[weakref.ref[torch.Tensor]] = []

    def watching(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        def run(args: list[Any]) -> Any:
            watched.append(weakref.ref(args[0]))
            args.clear()
            gc.collect()
            alive.append(watched[0]() is not None)
            return [torch.ones(3)]

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    x = runtime.wrap(torch.randn(3), requires_grad=True)
    compiled = aot.aot_function(lambda x: x.exp().exp(), aot.nop, watching)
    compiled(x).sum().backward()
    y = compiled(x).sum()
    watched.clear()
    y.backward(retain_graph=True)
    assert alive == [False, True]
