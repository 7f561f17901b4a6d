"""Graphs of a program before dispatch: what they give, what stays whole, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runtime.export.flat_export import traced_before_dispatch
from tests.runtime.aot.capture.boundary_text import text

aten: Any = torch.ops.aten


def targets(module: Any) -> list[Any]:
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def test_it_gives_new_values_of_arguments_and_then_all_results() -> None:
    def f(x: Any, k: Any, y: Any, z: Any) -> Any:
        x.add_(1)
        x.mul_(2)
        y.t_()
        return {"a": x * k, "b": (z, x[0], 4)}

    x, y, z = torch.ones(2, 3), torch.ones(2, 3), torch.ones(1)
    joint = traced_before_dispatch(f, [x, 3, y, z], None, False)
    assert text(joint.boundary) == "_w*2 _ _*1[t] _ -> r0 r1 r2 r3 | - - - -" and (
        joint.n_forward,
        joint.n_primals,
    ) == (5, 4)
    assert type(joint.module.graph.output_node().args[0]) is tuple
    results = joint.module(torch.zeros(2, 3), 3, y, z)
    assert type(results) is tuple and [
        r.tolist() if isinstance(r, torch.Tensor) else r for r in results
    ] == [
        [[2.0] * 3] * 2,
        [[6.0] * 3] * 2,
        [1.0],
        [2.0] * 3,
        4,
    ]
    made = torch.utils._pytree.tree_unflatten(list(results[1:]), joint.out_spec)
    assert made["b"][2] == 4 and made["a"] is results[1]
    assert x.sum() == 6 and y.shape == (2, 3), "the trace writes to nothing"


def test_modes_and_some_composite_ops_stay() -> None:
    def f(x: Any, w: Any) -> Any:
        with torch.no_grad():
            y = torch.nn.functional.linear(x, w)
        return torch.nn.functional.silu(y).matmul(w)

    x = torch.ones(2, 2)
    found = targets(traced_before_dispatch(f, [x, x], None, False).module)
    assert found.count(torch._C._set_grad_enabled) == 2
    assert (
        aten.linear.default in found and aten.matmul.default in found and aten.silu.default in found
    )
    table = {aten.silu.default: lambda x: x * x.sigmoid()}
    found = targets(traced_before_dispatch(f, [x, x], table, False).module)
    assert aten.silu.default not in found and aten.sigmoid.default in found


@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_are_numbers_or_symbols(dynamic: bool) -> None:
    joint = traced_before_dispatch(
        lambda x: x.expand(2, x.shape[0]) * x.shape[0], [torch.ones(3)], None, dynamic
    )
    assert (aten.sym_size.int in targets(joint.module)) is dynamic
    if dynamic:
        assert joint.module(torch.ones(4))[0].tolist() == [[4.0] * 4] * 2


def test_draws_of_the_trace_are_not_those_of_a_call() -> None:
    state = torch.random.get_rng_state()
    joint = traced_before_dispatch(lambda x: x * torch.rand(3), [torch.ones(3)], None, False)
    assert torch.equal(torch.random.get_rng_state(), state) and aten.rand.default in targets(
        joint.module
    )


def test_a_write_to_what_the_program_closes_over_is_refused() -> None:
    w = torch.ones(2)
    with pytest.raises(RuntimeError, match="writes to a tensor that it closes over"):
        traced_before_dispatch(lambda x: w.add_(x), [torch.ones(2)], None, False)
    joint = traced_before_dispatch(lambda x: w * x, [torch.ones(2)], None, False)
    assert joint.module(torch.full((2,), 3.0))[0].tolist() == [3.0, 3.0] and w.tolist() == [
        1.0,
        1.0,
    ]


def test_values_of_a_trace_do_not_outlive_it() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(x)
        return x * 2

    traced_before_dispatch(f, [torch.ones(2)], None, False)
    with pytest.raises(RuntimeError, match="after the transform has returned"):
        kept[0] + 1
