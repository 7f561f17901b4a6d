"""New values of arguments are computed in the caller's memory, where nothing can tell; and copied
there otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import runtime
from runtime import aot
from runtime.aot import nop
from runtime.aot.compilers.placing import DESTINATIONS, Destination, destinations, place
from runtime.trace.number_reads import on_side

from . import random_graphs

aten = torch.ops.aten


def _placed(f: Callable[..., Any], *args: Any) -> dict[int, int]:
    """The arguments that a program writes to while it runs; it must do to them what ``f`` does."""
    found: list[dict[int, int]] = []

    def keep(module: Any, inputs: list[Any]) -> Any:
        run: Any = nop(module, inputs)
        found.append(dict(run.placed))
        return run

    mine, theirs = ([a.clone() if isinstance(a, Tensor) else a for a in args] for _ in range(2))
    compiled = aot.aot_function(f, keep)
    for _ in range(2):
        before = [(t._version, t.data_ptr()) for t in mine if isinstance(t, Tensor)]
        ours, expected = compiled(*mine), f(*theirs)
        for a, b in zip(
            [*_tensors(ours), *_tensors(mine)],
            [*_tensors(expected), *_tensors(theirs)],
            strict=True,
        ):
            assert torch.equal(a, b) and a.stride() == b.stride()
        assert [a._version for a in _tensors(mine)] == [b._version for b in _tensors(theirs)]
        assert [p for _, p in before] == [t.data_ptr() for t in _tensors(mine)]
    assert len(found) == 1
    return found[0]


def _tensors(tree: Any) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, Tensor)]


X, Y = torch.randn(4, 3), torch.randn(4, 3)


def test_a_new_value_is_computed_in_the_argument() -> None:
    assert _placed(lambda x, y: (x.mul_(y), None)[1], X, Y) == {0: 0}
    assert _placed(lambda x, y: (x.copy_(y * 2), None)[1], X, Y) == {0: 0}
    assert _placed(lambda x: (x.mul_(2), None)[1], X) == {0: 0}


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: x.copy_(y),
        lambda x, y: x.fill_(2),
        lambda x, y: x.fill_(y[0, 0]),
        lambda x, y: x.zero_(),
    ],
)
def test_a_tensor_that_is_set_is_set_in_place(f: Any) -> None:
    assert _placed(lambda x, y: (f(x, y), None)[1], X, Y) == {0: 0}


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


def test_several_writes_to_an_argument_need_no_buffer() -> None:
    def f(x: Tensor, y: Tensor) -> None:
        x.mul_(0.9).addcmul_(y, y, value=0.1)

    assert _placed(f, X, Y) == {0: 0}
    compiled = aot.aot_function(f, aot.nop)
    x, y = torch.randn(1000, 1000), torch.randn(1000, 1000)
    compiled(x, y)
    # torch 2.12 warns once that a second cycle would clear the events, unless they are kept
    with torch.profiler.profile(
        profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
    ) as seen:
        compiled(x, y)
    assert (
        sum(e.self_cpu_memory_usage for e in seen.key_averages() if e.self_cpu_memory_usage > 0)
        < x.nbytes
    )


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
    assert _placed(lambda x, y: (x.mul_(y).copy_(y).copy_(y * 2), None)[1], X, Y)[0] >= 0
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


def test_arguments_take_the_values_of_one_another() -> None:
    def swap(x: Tensor, y: Tensor) -> None:
        z = x.clone()
        x.copy_(y)
        y.copy_(z)

    def exchange(x: Tensor, y: Tensor) -> None:
        u = x * 1.5
        x.mul_(y)
        y.copy_(u)

    assert _placed(swap, X, Y) == {1: 0}  # `y` takes `x` itself, which so is written last
    assert _placed(exchange, X, Y) == {0: 0}  # `u` is read from `x` before, and `y` is read after


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


def test_a_written_argument_with_gaps_is_copied() -> None:
    base = torch.randn(8, 3)
    rows, before = base[::2], base.clone()
    expected = rows * 2
    aot.aot_function(lambda x: (x.mul_(2), None)[1], aot.nop)(rows)
    assert torch.equal(rows, expected) and torch.equal(base[1::2], before[1::2])


def test_arguments_that_share_memory_are_written_after_the_graph() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y

    base, expected = torch.arange(6.0), torch.arange(6.0)
    compiled = aot.aot_function(f, aot.nop)
    for mine, theirs in ((base[:4], expected[:4]), (base[2:], expected[2:])):
        assert torch.equal(compiled(mine, mine), f(theirs, theirs)) and torch.equal(base, expected)
    assert torch.equal(compiled(base[:4], base[2:]), f(expected[:4], expected[2:])) and torch.equal(
        base, expected
    )
    assert torch.equal(
        compiled(base[:4], torch.ones(4)), f(expected[:4], torch.ones(4))
    ) and torch.equal(base, expected)


def test_a_write_that_autograd_sees_is_not_carried_out_by_the_graph() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(w)
        return x.sum()

    w = runtime.wrap(torch.full((3,), 2.0), requires_grad=True)
    x = runtime.wrap(torch.ones(3))
    aot.aot_function(f, aot.nop)(x, w).backward()
    assert (
        x._version == 1
        and torch.equal(runtime.unwrap(w.grad), torch.ones(3))
        and torch.equal(runtime.unwrap(x), torch.full((3,), 2.0))
    )


def test_a_write_under_no_grad_to_a_leaf_is_in_place_and_counted() -> None:
    @torch.no_grad()
    def f(w: Tensor) -> None:
        w.sub_(0.1 * w)

    for make in (torch.nn.Parameter, lambda t: runtime.wrap(t, requires_grad=True), lambda t: t):
        w = make(torch.ones(3))
        before, version = w.data_ptr(), w._version
        aot.aot_function(f, aot.nop)(w)
        assert (
            w.data_ptr() == before
            and w._version == version + 1
            and torch.equal(runtime.unwrap(w).detach(), torch.full((3,), 0.9))
        )


def test_a_view_of_what_a_program_writes_takes_its_history_again() -> None:
    """A write under no_grad to a base is one for its views, whose history the
    session asks for again."""
    base = runtime.wrap(torch.ones(3))
    view = base[:2]
    generation = base._generation
    aot.aot_function(lambda x: (x.mul_(2), None)[1], aot.nop)(base)
    assert base._generation == generation + 1 and torch.equal(
        runtime.unwrap(view), torch.full((2,), 2.0)
    )


def test_what_a_backward_has_saved_knows_that_it_was_overwritten() -> None:
    w = runtime.wrap(torch.ones(3), requires_grad=True)
    loss = (w * w).sum()
    aot.aot_function(torch.no_grad()(lambda w: (w.mul_(2), None)[1]), aot.nop)(w)
    with pytest.raises(RuntimeError, match="version"):
        loss.backward()


def test_hidden_writes_are_not_counted() -> None:
    def f(x: Tensor) -> None:
        x.data.mul_(2)

    assert _placed(f, X) == {}


def test_an_inference_tensor_is_written_in_inference_mode_alone() -> None:
    def f(x: Tensor) -> None:
        x.mul_(2).add_(1)

    compiled = aot.aot_function(f, aot.nop)
    with torch.inference_mode():
        x = torch.ones(3)
        compiled(x)
        compiled(x)
        assert torch.equal(x, torch.full((3,), 7.0))
    with pytest.raises(RuntimeError, match="nference"):
        compiled(x)


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


def test_random_programs_do_what_this_test_is_about() -> None:
    def placed(seed: int) -> bool:
        found: list[Any] = []

        def keep(module: Any, inputs: list[Any]) -> Any:
            run: Any = nop(module, inputs)
            found.append(run.placed)
            return run

        aot.aot_function(random_graphs.compiled(random_graphs.program(seed)), keep)(
            *random_graphs.inputs(seed)
        )
        return any(found)

    assert sum(map(placed, range(30))) > 8


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
