"""What compilers are given and give back.

Inside: ``runtime.aot.compilers.boxed``, ``inductor_graphs`` and ``staged``. Inductor takes minutes
to compile what shows the same, and a user has no name for a graph on its way to it."""

from __future__ import annotations

import math
import operator
import weakref
from typing import Any

import pytest
import torch
from torch import fx

from runtime.aot import make_boxed_func, make_fx, nop
from runtime.aot.compilers.boxed import as_boxed, examples
from runtime.aot.compilers.inductor_graphs import (
    _FUNCTIONS,
    _OF_TENSORS,
    _contiguous,
    _schema,
    for_inductor,
)
from runtime.aot.compilers.placing import DESTINATIONS, Destination
from runtime.aot.compilers.replay import replayable
from runtime.aot.compilers.staged import Staged, run_graph
from runtime.trace.number_reads import real_power

aten: Any = torch.ops.aten
X = torch.arange(6.0).view(2, 3)


@pytest.fixture(autouse=True)
def generated_at_once() -> None:
    """Replaces the fixture of this name: here a compiler answers as users see it."""


def test_what_is_boxed_stays_and_what_is_no_function_is_refused() -> None:
    boxed = make_boxed_func(max)
    assert as_boxed(boxed) is boxed
    assert as_boxed(max)([3, 5]) == 5
    with pytest.raises(
        TypeError,
        match=(
            r"^a compiler returned 3\. It takes a GraphModule and example inputs, "
            r"and returns a function"
        ),
    ):
        as_boxed(3)  # type: ignore[arg-type]


def test_a_graph_with_calls_of_modules_or_codegen_of_its_own_is_run_by_torch() -> None:
    module = make_fx(lambda x: x.sin())(X)
    assert replayable(module) and isinstance(nop(module, []), Staged)
    layer = fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
    method = fx.symbolic_trace(lambda x: x.sin())
    for other in (layer, method):
        assert not replayable(other)
        run = nop(other, [])
        assert not isinstance(run, Staged) and run._boxed_call  # type: ignore[attr-defined]
    assert torch.equal(nop(layer, [])([X - 3]), (X - 3).relu())
    module.graph.set_codegen(
        torch.fx.graph._PyTreeCodeGen(torch.fx.graph._PyTreeInfo(["x"], None, None))  # type: ignore[arg-type]
    )
    assert not replayable(module)


def test_a_graph_that_writes_to_arguments_is_generated_at_once() -> None:
    module = make_fx(lambda x: [x * 2])(X)
    module.meta[DESTINATIONS] = (Destination(0, 0, 1),)
    run: Any = nop(module, [])
    assert not isinstance(run, Staged) and run.placed == {0: 0}
    x = X.clone()
    (result,) = run([x])
    assert result is x and torch.equal(x, X * 2)
    module.meta[DESTINATIONS] = ()
    assert isinstance(nop(module, []), Staged)


def test_examples_are_the_values_of_the_inputs() -> None:
    module = make_fx(lambda x, y: x + y)(X, X[0])
    assert [e.shape for e in examples(module)] == [(2, 3), (3,)]


def test_a_graph_is_run_node_by_node_and_each_value_freed_after_its_last_use() -> None:
    alive: list[list[bool]] = []
    refs: list[Any] = []

    def note(x: Any) -> Any:
        alive.append([r() is not None for r in refs])
        y = x + 1
        refs.append(weakref.ref(y))
        return y

    graph = fx.Graph()
    x, idle = graph.placeholder("x"), graph.placeholder("idle")
    nodes = [x]
    for _ in range(4):
        nodes.append(graph.call_function(note, (nodes[-1],)))
    graph.call_function(note, (nodes[1],))  # its result is used by nobody
    end = graph.call_function(operator.add, (nodes[4], nodes[4]))
    graph.output([end, None, {"a": end}])
    args = [X.clone(), X.clone()]
    refs += [weakref.ref(a) for a in args]
    module = fx.GraphModule({}, graph)
    results = run_graph(module, args)
    assert args == [] and results[1] is None and results[2]["a"] is results[0]
    assert torch.equal(results[0], 2 * (X + 4))
    # the two arguments, then the results in order; the second argument goes first,
    # as nothing uses it
    assert [a[1] for a in alive] == [False] * 5, "an argument without a use is freed at once"
    assert [alive[1][0], alive[2][2], alive[3][3], alive[4][2]] == [False, True, False, True]
    assert [r() is not None for r in refs] == [False] * 7
    assert not idle.users


def test_a_graph_is_run_below_autograd_with_keywords_and_attributes() -> None:
    graph = fx.Graph()
    held = graph.create_node("get_attr", "inner.held")
    x = graph.placeholder("x")
    added = graph.call_function(aten.add.Tensor, (x, held), {"alpha": 3})
    summed = graph.call_function(aten.sum.dim_IntList, (added, [0]), {"keepdim": True})
    graph.output([summed])
    root: Any = torch.nn.Module()
    root.inner = torch.nn.Module()
    root.inner.held = torch.nn.Parameter(torch.ones(3))
    (found,) = run_graph(fx.GraphModule(root, graph), [X])
    assert torch.equal(found, (X + 3).sum(0, keepdim=True)) and not found.requires_grad


@pytest.mark.parametrize("func", _OF_TENSORS, ids=str)
def test_an_op_computes_the_same_with_a_tensor_in_place_of_a_number(func: Any) -> None:
    kinds = [str(a.type) for a in func._schema.arguments if not a.kwarg_only]
    args: list[Any] = [torch.rand(3) + 1 for _ in kinds]
    number = torch.tensor(0.75, dtype=torch.float64)
    named = [
        a.name for a in func._schema.arguments if a.kwarg_only and a.name in ("value", "alpha")
    ]
    if named != ["value"]:
        given = [*args[: len(kinds) - 1], number]
        found, expected = _OF_TENSORS[func](*given), func(*given[:-1], 0.75)
    else:
        found, expected = _OF_TENSORS[func](*args, value=number), func(*args, value=0.75)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, expected)
    if "alpha" in named:
        torch.testing.assert_close(
            _OF_TENSORS[func](args[0], args[1], alpha=number), func(args[0], args[1], alpha=0.75)
        )


@pytest.mark.parametrize("func", _FUNCTIONS, ids=lambda f: f.__name__)
def test_functions_of_numbers_are_functions_of_tensors(func: Any) -> None:
    numbers = [2.25, 0.5] if func in (min, max, real_power) else [2.25]
    tensors = [torch.tensor(n, dtype=torch.float64) for n in numbers]
    assert math.isclose(_FUNCTIONS[func](*tensors).item(), func(*numbers))


def test_the_parameters_of_a_layer_are_those_of_its_kernel() -> None:
    assert _schema(aten.permute.default) == "(Tensor self, int[] dims) -> (Tensor)"
    assert _schema(aten.lstm_cell.default).endswith("-> (Tensor, Tensor)")
    assert _schema(aten.sin.default, "int more") == "(Tensor self, int more) -> (Tensor)"
    layer = torch.ops.torch_transform_matrix.lstm_layer.default._schema
    kernel = aten.mkldnn_rnn_layer.default._schema
    assert [a.name for a in layer.arguments] == [*(a.name for a in kernel.arguments), "workspace"]
    assert len(layer.returns) == len(kernel.returns) == 4


def test_a_layer_takes_contiguous_tensors_and_other_arguments_as_they_are() -> None:
    turned = X.t()
    a, b, c = _contiguous((turned, 3, X))
    assert a.is_contiguous() and torch.equal(a, turned) and b == 3 and c is X


def test_calls_that_are_no_layer_stay() -> None:
    n = fx.Graph().call_function(aten.sin.default, ())
    assert for_inductor(n, aten.sin.default, (1, 2)) == (aten.sin.default, (1, 2))
    backward = aten.mkldnn_rnn_layer_backward.default
    assert for_inductor(n, backward, (1, 2)) == (
        torch.ops.torch_transform_matrix.lstm_layer_backward.default,
        (1, 2),
    )


@pytest.mark.parametrize("workspace, size", [(torch.ones(7), 7), (None, 0)])
def test_a_layer_is_told_the_size_of_its_workspace(workspace: Any, size: int) -> None:
    layer = aten.mkldnn_rnn_layer.default
    n = fx.Graph().call_function(layer, ())
    n.meta["val"] = (X, X, X, workspace)
    assert for_inductor(n, layer, (1, 2)) == (
        torch.ops.torch_transform_matrix.lstm_layer.default,
        (1, 2, size),
    )
