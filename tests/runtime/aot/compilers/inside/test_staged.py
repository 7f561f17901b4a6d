"""How a program passes from its first calls to generated code.

Inside: ``runtime.aot.compilers.staged``. All stages give the same results; when code is
generated, who is told, and what a graph frees while it runs node by node is for time and memory."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from runtime import aot, jit
from runtime.aot.compilers import staged
from runtime.aot.compilers.replay import as_python
from runtime.aot.compilers.staged import Staged, run_graph
from runtime.trace.graph_module import complete


@pytest.fixture(autouse=True)
def generated_at_once() -> None:
    """Replaces the fixture of this name: here the calls are as users have them."""


def test_code_is_generated_without_autocast_and_without_collections_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[bool, bool]] = []
    told: list[Any] = []

    def noted(module: fx.GraphModule) -> Callable[..., Any]:
        seen.append((torch.is_autocast_enabled("cpu"), gc.isenabled()))
        return as_python(module)

    monkeypatch.setattr(staged, "as_python", noted)
    run: Any = Staged(aot.make_fx(lambda x: [x.sin()])(torch.ones(3)))
    run.settled = told.append
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            run([torch.ones(3)])
    assert seen == [(False, False)] and len(told) == 1 and run.settled is None
    assert torch.equal(told[0]([torch.ones(3)])[0], torch.ones(3).sin())


def test_what_was_generated_is_called_without_a_way_through_the_stages() -> None:
    f = jit(lambda x: x.sin())
    for _ in range(2):
        f(torch.ones(2))
    (captured,) = f.captured
    assert not isinstance(captured.program.forward, Staged)


def test_a_graph_run_node_by_node_frees_each_value_after_its_last_use() -> None:
    alive: list[bool] = []
    made: list[weakref.ref[Tensor]] = []

    def make(x: Tensor) -> Tensor:
        y = x + 1
        made.append(weakref.ref(y))
        return y

    def look(x: Tensor) -> Tensor:
        alive.append(any(y() is not None for y in made))
        return x + 1

    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(make, (x,))
    z = graph.call_function(look, (y,))
    graph.call_function(make, (z,))
    graph.output([graph.call_function(look, (z,))])
    given = [torch.zeros(2)]
    argument = weakref.ref(given[0])
    (result,) = run_graph(complete(fx.GraphModule(torch.nn.Module(), graph)), given)
    assert result.tolist() == [3.0, 3.0]
    assert alive == [True, False] and given == []
    assert argument() is None and made[1]() is None


def test_a_graph_run_node_by_node_takes_constants_and_keywords_and_records_nothing() -> None:
    root, graph = torch.nn.Module(), fx.Graph()
    root.inner = torch.nn.Module()
    root.inner.w = torch.nn.Parameter(torch.full((3,), 4.0))
    x, w = graph.placeholder("x"), graph.get_attr("inner.w")
    graph.call_function(torch.sin, (x,))
    total = graph.call_function(torch.add, (x,), {"other": w, "alpha": 2})
    graph.output([total, 3])
    given = [torch.ones(3)]
    found, three = run_graph(complete(fx.GraphModule(root, graph)), given)
    assert found.tolist() == [9.0] * 3 and not found.requires_grad and three == 3 and given == []
