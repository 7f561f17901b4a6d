"""Graphs of a program before dispatch: what they give, what stays whole, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime.aot import aot_export_module

aten: Any = torch.ops.aten


class Program(torch.nn.Module):
    """A module without state that calls ``f``."""

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *args: Any) -> Any:
        return self.f(*args)


def exported(f: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The graph of ``f`` and its signature."""
    return aot_export_module(Program(f), args, trace_joint=False, pre_dispatch=True, **options)


def targets(module: Any) -> list[Any]:
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def test_it_gives_new_values_of_arguments_and_then_all_results() -> None:
    def f(x: Any, k: Any, y: Any, z: Any) -> Any:
        x.add_(1)
        x.mul_(2)
        return {"a": x * k, "b": (z, x[0], 4)}

    x, y, z = torch.ones(2, 3), torch.ones(2, 3), torch.ones(1)
    graph, signature = exported(f, x, 3, y, z)
    assert type(graph.graph.output_node().args[0]) is tuple
    results = graph(torch.zeros(2, 3), 3, y, z)
    assert type(results) is tuple
    new, *rest = results
    assert new.tolist() == [[2.0] * 3] * 2
    made = torch.utils._pytree.tree_unflatten(rest, signature.out_spec)
    assert made["a"].tolist() == [[6.0] * 3] * 2
    assert made["b"][0] is z
    assert made["b"][1].tolist() == [2.0] * 3
    assert made["b"][2] == 4
    assert list(signature.user_inputs_to_mutate.values()) == signature.user_inputs[:1]
    assert len(signature.user_inputs) == 4 and len(signature.user_outputs) == 4


def test_a_trace_writes_to_nothing() -> None:
    x = torch.ones(2, 3)
    exported(lambda x: x.add_(1).mul_(2), x)
    assert x.sum() == 6 and x._version == 0


def test_a_change_of_sizes_of_an_argument_is_refused_and_not_made() -> None:
    y = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match=r"metadata mutation: argument 0 .*aten::t_"):
        exported(lambda y: y.t_() * 2, y)
    assert y.shape == (2, 3)


def linear_without_grad(x: Any, w: Any) -> Any:
    with torch.no_grad():
        y = torch.nn.functional.linear(x, w)
    return torch.nn.functional.silu(y).matmul(w)


def test_modes_and_some_composite_ops_stay() -> None:
    x = torch.ones(2, 2)
    found = targets(exported(linear_without_grad, x, x)[0])
    assert found.count(torch._C._set_grad_enabled) == 2
    assert {aten.linear.default, aten.matmul.default, aten.silu.default} <= set(found)


def test_ops_of_a_table_are_decomposed() -> None:
    x = torch.ones(2, 2)
    table = {aten.silu.default: lambda x: x * x.sigmoid()}
    found = targets(exported(linear_without_grad, x, x, decompositions=table)[0])
    assert aten.silu.default not in found and aten.sigmoid.default in found


@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_are_numbers_or_symbols(dynamic: bool) -> None:
    graph, _ = exported(
        lambda x: x.expand(2, x.shape[0]) * x.shape[0], torch.ones(3), dynamic_shapes=dynamic
    )
    assert (aten.sym_size.int in targets(graph)) is dynamic
    if dynamic:
        assert graph(torch.ones(4))[0].tolist() == [[4.0] * 4] * 2


def test_draws_of_the_trace_are_not_those_of_a_call() -> None:
    state = torch.random.get_rng_state()
    graph, _ = exported(lambda x: x * torch.rand(3), torch.ones(3))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert aten.rand.default in targets(graph)


def test_a_write_to_what_the_program_closes_over_is_refused() -> None:
    w = torch.ones(2)
    with pytest.raises(RuntimeError, match="writes to a tensor that it closes over"):
        exported(lambda x: w.add_(x), torch.ones(2))
    assert w.tolist() == [1.0, 1.0]


def test_what_the_program_closes_over_is_a_constant() -> None:
    w = torch.ones(2)
    graph, _ = exported(lambda x: w * x, torch.ones(2))
    assert graph(torch.full((2,), 3.0))[0].tolist() == [3.0, 3.0]


def test_values_of_a_trace_do_not_outlive_it() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(x)
        return x * 2

    exported(f, torch.ones(2))
    with pytest.raises(RuntimeError, match="after the transform has returned"):
        kept[0] + 1
