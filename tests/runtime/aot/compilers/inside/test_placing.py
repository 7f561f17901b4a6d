"""Which memory a value of a graph can be written to.

Inside: ``runtime.aot.compilers.placing``. Graphs by hand have each circumstance in which a write
is not possible; in a program the value is computed elsewhere and copied, with the same result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from runtime import aot
from runtime.aot.compilers.placing import DESTINATIONS, Destination, destinations, place
from runtime.trace.number_reads import on_side
from tests.runtime.aot.compilers import random_graphs
from tests.runtime.aot.compilers.placed_arguments import placed

X, Y = torch.randn(4, 3), torch.randn(4, 3)

aten = torch.ops.aten


def test_an_op_that_can_write_nowhere_gives_a_tensor_of_its_own() -> None:
    with torch.library._scoped_library("placing_tests", "DEF") as library:
        library.define("own(Tensor x) -> Tensor", tags=(torch.Tag.pointwise,))
        library.impl("own", lambda x: x + 1, "CompositeExplicitAutograd")
        graph = fx.Graph()
        x = graph.placeholder("x")
        new = graph.call_function(torch.ops.placing_tests.own.default, (x,))
        graph.output([new])
        for n in (x, new):
            n.meta["val"] = X.to("meta")
        assert place(graph, [Destination(0, 0, 1)]) == {}


def _calls(f: Callable[..., Any], *args: Tensor, counted: int = 1) -> list[str]:
    """The calls that write, where result 0 of ``f`` is the new value of argument 0."""
    graphs: list[fx.Graph] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(module.graph)
        return aot.nop(module, inputs)

    aot.aot_function(f, keep)(*args)
    place(graphs[0], [Destination(0, 0, counted)])
    return [
        str(n.target)
        for n in graphs[0].nodes
        if n.op == "call_function" and n.target._schema.is_mutable
    ]


def test_a_version_counts_the_writes_of_the_program_and_not_its_calls() -> None:
    assert placed(lambda x, y: (x.mul_(y).copy_(y).copy_(y * 2), None)[1], X, Y)[0] >= 0
    assert _calls(lambda x, y: x.mul(y).sin().add(y), X, Y, counted=2) == [
        "aten.sin.out",
        "aten.add_.Tensor",
    ]
    assert _calls(lambda x, y: x.mul(y).sin().add(y), X, Y, counted=4) == [
        "aten.mul_.Tensor",
        "aten.sin_.default",
        "aten.add_.Tensor",
    ]


def test_a_result_is_written_where_no_argument_of_the_call_lies() -> None:
    assert _calls(lambda x, y: y * 2, X, Y) == ["aten.mul.out"]


def test_the_operand_that_may_lie_in_the_argument_is_sought_among_all() -> None:
    assert _calls(lambda x, y: y * x.sin(), X, Y, counted=9) == [
        "aten.sin_.default",
        "aten.mul.out",
    ]
    assert _calls(lambda x, y: x * (y * 2).sin(), X, Y, counted=9) == ["aten.mul_.Tensor"]


@pytest.mark.parametrize(
    "f",
    [
        pytest.param(lambda x, y: ((u := x + y), x * u), id="the former value is read later"),
        pytest.param(
            lambda x, y: ((u := x + y), x.t() * u.t()),
            id="a view of the former value is read later",
        ),
        pytest.param(
            lambda x, y: ((v := x.t()), (u := x + y), v * u.t())[1:],
            id="a view from before is read later",
        ),
        pytest.param(
            lambda x, y: x + x.t() if x.shape[0] == x.shape[1] else x[:1] + x,
            id="the call reads a view of it",
        ),
        pytest.param(
            lambda x, y: (y * 2).t().contiguous().t() + 1, id="the new value has other strides"
        ),
        pytest.param(lambda x, y: (y * 2).double(), id="the new value has another dtype"),
        pytest.param(lambda x, y: (y * 2)[0], id="the new value has another size"),
        pytest.param(lambda x, y: (y * 2).view(4, 3), id="the new value is a view"),
        pytest.param(lambda x, y: y @ y.t() @ x, id="the new value is no pointwise one"),
        pytest.param(lambda x, y: torch.bernoulli(x.sigmoid()), id="the new value is drawn"),
    ],
)
def test_what_somebody_may_still_read_and_what_does_not_fit_is_not_written(f: Any) -> None:
    assert _calls(f, X, Y, counted=9) == []


@pytest.mark.parametrize("shown", [False, True])
def test_a_new_value_that_is_another_result_too_is_copied(shown: bool) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    new = graph.call_function(aten.mul.Tensor, (x, 2.0))
    other = graph.call_function(aten.view.default, (new, [12])) if shown else new
    for n in (x, new, other):
        n.meta["val"] = (X.view(12) if n is other and shown else X).to("meta")
    graph.output([new, other])
    assert place(graph, [Destination(0, 0, 1)]) == {} and new.target is aten.mul.Tensor


@pytest.mark.parametrize(
    "f, calls",
    [
        pytest.param(
            lambda x, y: ((u := x + y).sin(), u * 2),
            ["aten.sin.out"],
            id="another call reads it later",
        ),
        pytest.param(lambda x, y: ((u := x + y).sin(), u), ["aten.sin.out"], id="it is a result"),
        pytest.param(
            lambda x, y: ((u := x + y).sin(), u.view(-1)), ["aten.sin.out"], id="a result shows it"
        ),
        pytest.param(
            lambda x, y: (x + y).mul(x), ["aten.mul.out"], id="the last call reads the former value"
        ),
        pytest.param(
            lambda x, y: (u := x[:, :1] + y) * u[:1],
            ["aten.mul.out"],
            id="the last call reads a view of it",
        ),
        pytest.param(lambda x, y: (x * y)[:1] * y, ["aten.mul.out"], id="it is of another size"),
        pytest.param(
            lambda x, y: ((v := x.view(-1)), (u := x * y), (u.t() * 2).t() + v.view(4, 3))[2:],
            [],
            id="views of both",
        ),
    ],
)
def test_what_a_new_value_is_computed_from_has_a_buffer_where(f: Any, calls: list[str]) -> None:
    assert _calls(f, X, Y, counted=9) == calls


@pytest.mark.parametrize("shown", [False, True])
def test_an_argument_whose_former_value_is_a_result_is_not_written(shown: bool) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    former = graph.call_function(aten.view.default, (x, [4, 3])) if shown else x
    new = graph.call_function(aten.mul.Tensor, (x, 2.0))
    for n in (x, former, new):
        n.meta["val"] = X.to("meta")
    graph.output([new, former])
    assert place(graph, [Destination(0, 0, 1)]) == {} and new.target is aten.mul.Tensor


def test_nothing_is_written_before_a_call_that_may_refuse_the_program() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    new = [graph.call_function(aten.mul.Tensor, (x, 2.0))]
    graph.call_function(on_side, (True, True))
    new.append(graph.call_function(aten.mul.Tensor, (y, 2.0)))
    for n in (x, y, *new):
        n.meta["val"] = X.to("meta")
    graph.output(new)
    assert place(graph, [Destination(0, 0, 1), Destination(1, 1, 1)]) == {1: 0}


def test_other_compilers_are_told_and_see_a_graph_without_writes() -> None:
    seen: list[Any] = []

    def keep(module: Any, inputs: list[Any]) -> Any:
        seen.append(module)
        return random_graphs.unoptimized(module, inputs)

    x = torch.ones(3)
    aot.aot_function(lambda x: (x.mul_(2).add_(1), None)[1], keep)(x)
    assert [(d.result, d.argument, d.counted) for d in seen[0].meta[DESTINATIONS]] == [
        (0, 0, 2)
    ] and x._version == 2
    assert not any(
        n.target._schema.is_mutable for n in seen[0].graph.nodes if n.op == "call_function"
    )


def test_a_destination_which_the_programs_of_a_graph_share_cannot_be_changed() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = X.to("meta")
    graph.output([x])
    wanted: Any = Destination(0, 0, 1)
    assert place(graph, [wanted]) == {} and place(graph, []) == {}
    with pytest.raises(dataclasses.FrozenInstanceError):
        wanted.counted = 2


@pytest.mark.parametrize(
    "fact",
    [
        {},
        {"tangent": 0},
        {"reshaped": True},
        {"replaced": 1},
        {"begins": True},
        {"overwritten": True},
        {"counted": 0},
        {"shared": True},
    ],
    ids=str,
)
def test_an_argument_takes_its_new_value_early_if_it_is_plain_alone_and_counts_the_write(
    fact: dict[str, Any],
) -> None:
    ordinary = {
        "tangent": None,
        "reshaped": False,
        "replaced": None,
        "begins": False,
        "overwritten": False,
        "counted": 2,
    }
    inputs = [SimpleNamespace(**ordinary), SimpleNamespace(**ordinary | fact)]
    joint: Any = SimpleNamespace(
        layouts=None,
        groups=[SimpleNamespace(members=[1, 2])] if "shared" in fact else [],
        boundary=SimpleNamespace(written=[1, 0], inputs=inputs),
    )
    early = Destination(0, 1, 2)
    assert destinations(joint) == (*([] if fact else [early]), Destination(1, 0, 2))
    joint.layouts = {}
    assert destinations(joint) == ()


def test_a_copy_over_a_new_value_is_one_into_the_argument() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    like = graph.call_function(aten.sin.default, (y,))
    new = graph.call_function(aten.copy.default, (like, y))
    for n in (x, y, like, new):
        n.meta["val"] = X.to("meta")
    graph.output([new])
    assert place(graph, [Destination(0, 0, 1)]) == {0: 0}
    assert new.target is aten.copy_.default and new.args == (x, y)
