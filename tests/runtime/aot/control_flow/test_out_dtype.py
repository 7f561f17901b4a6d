"""``out_dtype`` in graphs and under transforms is the op in the dtype of its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import (
    aot_export_module,
    aot_function,
    default_partition,
    export,
    make_fx,
    min_cut_rematerialization_partition,
    nop,
)
from runtime.func import grad, jvp, vmap
from tests.runtime.trace.graphs import CallsSeen

aten = torch.ops.aten
OUT_DTYPE = torch.ops.higher_order.out_dtype
X = torch.tensor([[100, 27], [-128, 3]], dtype=torch.int8)
W = torch.tensor([[100, -1], [127, 2]], dtype=torch.int8)


def product(x: Any, w: Any) -> Any:
    return OUT_DTYPE(aten.mm.default, torch.int32, x, w)


def widened(x: Any, w: Any) -> Any:
    return OUT_DTYPE(aten.mm.default, torch.float64, x.sin(), w)


def widened_by_hand(x: Any, w: Any) -> Any:
    return x.sin().double() @ w.double()


def operators(module: torch.fx.GraphModule) -> list[Any]:
    return [
        n.target for n in module.graph.nodes if isinstance(n.target, torch._ops.HigherOrderOperator)
    ]


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_a_graph_has_one_call(mode: str, pre_dispatch: bool) -> None:
    module = make_fx(product, tracing_mode=mode, pre_dispatch=pre_dispatch)(X, W)
    assert operators(module) == [OUT_DTYPE]
    assert module(W, X).equal(W.int() @ X.int())


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_function_does_not_overflow(dynamic: bool) -> None:
    compiled = aot_function(product, nop, dynamic=dynamic)
    for x, w in ((X, W), (X.repeat(2, 1), W)):
        assert compiled(x, w).equal(x.int() @ w.int())


def test_torch_runs_an_exported_program_with_it(tmp_path: Path) -> None:
    program = export(product, (X, W))
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2")
    assert operators(loaded.graph_module) == [OUT_DTYPE]
    assert loaded.module()(W, X).equal(W.int() @ X.int())


def test_it_stands_in_the_graph_of_a_module() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return (product(x, W) * 2,)

    graph, _ = aot_export_module(Scaled(), (X,), trace_joint=False)
    assert operators(graph) == [OUT_DTYPE]
    assert graph(W)[0].equal(W.int() @ W.int() * 2)


@pytest.mark.parametrize("cut", [default_partition, min_cut_rematerialization_partition])
def test_its_gradients_are_those_of_the_op_in_the_wide_dtype(cut: Any) -> None:
    x, w = torch.randn(3, 4), torch.randn(4, 2)
    theirs = [t.clone().requires_grad_() for t in (x, w)]
    expected = widened_by_hand(*theirs)
    ours = [runtime.wrap(t.clone(), requires_grad=True) for t in (x, w)]
    found = aot_function(widened, nop, partition_fn=cut)(*ours)
    g = torch.randn(3, 2, dtype=torch.float64)
    expected.backward(g)
    found.backward(g)
    assert runtime.unwrap(found).equal(expected.detach())
    for o, t in zip(ours, theirs, strict=True):
        torch.testing.assert_close(runtime.unwrap(o.grad), t.grad)


def test_transforms_see_the_op() -> None:
    x, w = torch.randn(3, 4), torch.randn(4, 2)
    xs = torch.stack([x, x + 1])
    torch.testing.assert_close(
        grad(lambda x: widened(x, w).sum())(x), grad(lambda x: widened_by_hand(x, w).sum())(x)
    )
    torch.testing.assert_close(
        jvp(lambda x: widened(x, w), (x,), (x,)), jvp(lambda x: widened_by_hand(x, w), (x,), (x,))
    )
    torch.testing.assert_close(vmap(widened, (0, None))(xs, w), widened_by_hand(xs, w))
    assert vmap(product, (None, 0))(X, torch.stack([W, X])).equal(
        torch.stack([X.int() @ W.int(), X.int() @ X.int()])
    )


def test_other_arguments_than_tensors_stay_as_they_are() -> None:
    x, w = (
        torch.randint(-9, 9, (1, 2, 5, 5), dtype=torch.int8),
        torch.randint(-9, 9, (3, 2, 3, 3), dtype=torch.int8),
    )

    def convolved(x: Any, w: Any) -> Any:
        return OUT_DTYPE(
            aten.convolution.default,
            torch.float32,
            x,
            w,
            None,
            [1, 1],
            [1, 1],
            [1, 1],
            False,
            [0, 0],
            1,
        )

    expected = torch.nn.functional.conv2d(x.float(), w.float(), padding=1)
    assert make_fx(convolved)(x, w)(x, w).equal(expected)
    assert aot_function(convolved, nop)(x, w).equal(expected)


@pytest.mark.parametrize("recording", [False, True])
def test_tensors_of_the_session_take_it(recording: bool) -> None:
    assert runtime.unwrap(product(runtime.wrap(X), W)).equal(X.int() @ W.int())
    x, w = torch.randn(3, 4), torch.randn(4, 2)
    leaf = runtime.wrap(x.clone(), requires_grad=True)
    with torch.set_grad_enabled(recording):
        found = widened(leaf, w)
    assert found.requires_grad is recording and runtime.unwrap(found).equal(widened_by_hand(x, w))
    if recording:
        found.sum().backward()
        torch.testing.assert_close(
            runtime.unwrap(leaf.grad), grad(lambda x: widened_by_hand(x, w).sum())(x)
        )


def test_modes_of_the_caller_see_the_op_in_the_wide_dtype() -> None:
    with CallsSeen() as seen:
        found = product(runtime.wrap(X), W)
    assert runtime.unwrap(found).equal(X.int() @ W.int()) and "aten::mm" in seen.names
