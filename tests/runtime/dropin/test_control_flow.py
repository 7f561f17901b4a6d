"""Torch's ``map`` and ``scan`` under the drop-in are one call of a graph, and loops where
nothing is traced."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from functorch.experimental import control_flow
from torch.fx.experimental import proxy_tensor

from runtime import dropin

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
HIGHER = torch.ops.higher_order


def mapped(xs: Any, w: Any) -> Any:
    return control_flow.map(lambda x, w: x.sin() * w, xs, w)


def scanned(xs: Any, w: Any) -> Any:
    scan = importlib.import_module("torch._higher_order_ops.scan").scan
    return scan(lambda c, x: (c * x, c + x), w, xs, reverse=True)[1]


@pytest.mark.parametrize(("f", "operator"), [(mapped, HIGHER.map_impl), (scanned, HIGHER.scan)])
def test_a_graph_has_one_call_with_the_gradient_of_the_loop(f: Any, operator: Any) -> None:
    with dropin.installed():
        xs, w = torch.rand(4, 3), torch.rand(3)
        module = proxy_tensor.make_fx(f)(xs, w)
        assert [
            n.target
            for n in module.graph.nodes
            if isinstance(n.target, torch._ops.HigherOrderOperator)
        ] == [operator]
        found = []
        for program in (module, f):
            leaves = [t.clone().requires_grad_() for t in (xs, w)]
            program(*leaves).square().sum().backward()
            found.append([leaf.grad for leaf in leaves])
        torch.testing.assert_close(*found)


def test_outside_of_a_trace_the_function_runs_once_for_each_element() -> None:
    seen: list[int] = []

    def f(x: Any) -> Any:
        seen.append(int(x))
        return x * 2

    with dropin.installed():
        ys = control_flow.map(f, torch.tensor([3, 5, 7]))
    assert seen == [3, 5, 7] and ys.tolist() == [6, 10, 14]
