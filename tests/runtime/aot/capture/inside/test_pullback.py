"""What a second derivative of a program is made of.

Inside: ``runtime.aot.capture.pullback``. A derivative with a needless call or primal has the same
values, so no result shows which of them it takes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import runtime
from runtime.aot.capture.joint import Joint, joint_graph
from runtime.aot.capture.origins import ORIGIN
from runtime.aot.capture.pullback import DERIVATIVE, UNSEEN, WRITTEN, Pullback, pullback_of

LIBRARY = torch.library.Library("tests_of_pullbacks", "DEF")
for name, tags in (("drawn", [torch.Tag.nondeterministic_seeded]), ("made", [])):
    LIBRARY.define(f"{name}(Tensor x) -> Tensor", tags=tags)


class Exp(runtime.autograd.Function):
    """Its derivative reads its result, and so has no history that the graph shows."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0]


def without_grad(x: Any) -> Any:
    with torch.no_grad():
        y = x.exp()
    return x * y


def written_without_grad(x: Any) -> Any:
    y = x * 1
    with torch.no_grad():
        y.mul_(2)
    return y.sin()


def hidden_write_that_nothing_reads(x: Any) -> Any:
    y = x * 1
    z = y.exp()
    with torch.no_grad():
        y.mul_(2)
    return z


class Sign(Exp):
    """Its result has no derivative."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return (x > 0).long()


class Noisy(Exp):
    """Its derivative draws random numbers."""

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * torch.rand_like(g)


def with_variance(x: Any) -> Any:
    mean, variance = torch.zeros(3), torch.ones(3)
    y = F.batch_norm(x, mean, variance, training=True)
    return y * x * variance.detach()


def in_batches(x: Any) -> Any:
    mean, variance = torch.zeros(3), torch.ones(3)
    return F.batch_norm(x, mean, variance, training=True) * x


def with_statistics(x: Any) -> Any:
    mean, variance = torch.zeros(3), torch.ones(3)
    y = F.batch_norm(x, mean, variance, training=True)
    return y * x * mean.detach()


class Case(NamedTuple):
    """``labels``: of the calls of the forward pass, how each is differentiated. ``calls``: what the
    pullback computes of them. ``drawn``: what it has saved for it. ``refused``: a part of why there
    is none. ``without_draws``: the same if no random numbers may be saved."""

    f: Callable[[Any], Any]
    labels: str
    calls: str = ""
    drawn: str = ""
    refused: str = ""
    without_draws: str = ""


NORM = "_native_batch_norm_legit_functional"
OP, OWN = "of the op", "a custom Function's"
DRAWS = "draws random numbers"
CASES = {
    "ops": Case(lambda x: x * x.sin(), "sin=of the op, mul=of the op", "sin"),
    "Function": Case(
        lambda x: Exp.apply(x) * x,
        f"exp={OWN}, mul={OP}",
        "exp",
    ),
    "no_grad": Case(without_grad, f"exp=none, mul={OP}", "exp"),
    "detach": Case(
        lambda x: (x.detach() * 2).sin() * x,
        f"detach=none, mul=none, sin=none, mul_1={OP}",
        "detach, mul, sin",
    ),
    "comparison": Case(
        lambda x: torch.where(x > 0, x.exp(), x), f"gt=None, exp={OP}, where={OP}", "gt, exp"
    ),
    "hidden write": Case(written_without_grad, f"mul={OP}, mul_1=none, sin={OP}", refused=WRITTEN),
    "hidden write, not read": Case(
        hidden_write_that_nothing_reads, f"mul={OP}, exp={OP}", "mul, exp"
    ),
    "dropout": Case(
        lambda x: F.dropout(x.sin(), 0.5),
        f"sin={OP}, empty_like=none, bernoulli=None, div=None, mul={OP}",
        "bernoulli, div",
        "bernoulli",
        without_draws=DRAWS,
    ),
    "noise": Case(
        lambda x: torch.rand_like(x) * x.sin(),
        f"rand_like=none, sin={OP}, mul={OP}",
        "rand_like",
        "rand_like",
        without_draws=DRAWS,
    ),
    "draw by values": Case(
        lambda x: torch.bernoulli(x.sigmoid()) * x,
        f"sigmoid={OP}, bernoulli={OP}, mul={OP}",
        refused=DRAWS,
        without_draws=DRAWS,
    ),
    "Function without derivative": Case(
        lambda x: Sign.apply(x) * x, f"gt=none, _to_copy=none, mul={OP}", "gt, _to_copy"
    ),
    "derivative that draws": Case(
        lambda x: Noisy.apply(x),
        f"exp={OWN}",
        refused="its derivative draws random numbers (aten.rand_like.default)",
    ),
    "batch norm, whose new variance is read": Case(
        with_variance,
        (
            f"zeros=none, ones=none, {NORM}=None, getitem={OP}, getitem_1=none, getitem_2=none, "
            f"getitem_4=None, mul={OP}, detach=none, mul_1={OP}"
        ),
        f"zeros, ones, {NORM}, getitem, getitem_1, getitem_2, getitem_4, detach",
    ),
    "several draws of one call": Case(
        lambda x: F.rrelu(x, training=True),
        f"empty_like=none, rrelu_with_noise_functional=None, getitem={OP}, getitem_1=None",
        refused=DRAWS,
        without_draws=DRAWS,
    ),
    "attention, which has a tag of a draw and draws nothing": Case(
        lambda x: F.scaled_dot_product_attention(
            x.view(1, 1, 2, 3), x.view(1, 1, 2, 3), x.view(1, 1, 2, 3)
        ),
        (
            f"view={OP}, view_1={OP}, view_2={OP}, "
            f"_scaled_dot_product_flash_attention_for_cpu=None, getitem={OP}, getitem_1=none"
        ),
        "view, view_1, view_2, _scaled_dot_product_flash_attention_for_cpu, getitem, getitem_1",
    ),
    "batch norm, without its old statistics": Case(
        in_batches,
        (
            f"zeros=none, ones=none, _native_batch_norm_legit_functional=None, getitem={OP}, "
            f"getitem_1=none, getitem_2=none, mul={OP}"
        ),
        "_native_batch_norm_legit_functional, getitem, getitem_1, getitem_2",
    ),
    "batch norm, whose new mean is read": Case(
        with_statistics,
        (
            f"zeros=none, ones=none, _native_batch_norm_legit_functional=None, getitem={OP}, "
            f"getitem_1=none, getitem_2=none, getitem_3=None, mul={OP}, detach=none, mul_1={OP}"
        ),
        (
            "zeros, ones, _native_batch_norm_legit_functional, getitem, getitem_1, "
            "getitem_2, getitem_3, detach"
        ),
    ),
}


def joint_of(f: Callable[[Any], Any]) -> Joint:
    return joint_graph(f, [torch.rand(2, 3)], [True])


def forward_calls(joint: Joint) -> list[fx.Node]:
    return [n for n in joint.module.graph.nodes if n.op == "call_function" and ORIGIN not in n.meta]


@pytest.mark.parametrize("name", CASES)
def test_each_call_says_how_it_is_differentiated(name: str) -> None:
    found = forward_calls(joint_of(CASES[name].f))
    assert ", ".join(f"{n.name}={n.meta.get(DERIVATIVE)}" for n in found) == CASES[name].labels


@pytest.mark.parametrize("saves_draws", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_second_derivative_computes_again_what_it_needs_and_no_more(
    name: str, saves_draws: bool
) -> None:
    case = CASES[name]
    joint = joint_of(case.f)
    found = pullback_of(joint.module, joint.boundary, [], saves_draws, joint.applications)
    refused = case.refused or ("" if saves_draws else case.without_draws)
    assert refused in found.refused and bool(refused) == bool(found.refused)
    if refused:
        assert found == Pullback(refused=found.refused)
        return
    assert ", ".join(n.name for n in forward_calls(joint) if n in found.nodes) == case.calls
    assert ", ".join(n.name for n in found.drawn) == case.drawn
    assert found.primals == (0,) and found.saved == tuple(range(len(found.drawn)))


def test_only_what_is_read_after_a_hidden_write_says_so() -> None:
    marked = {n.name: n.meta.get(UNSEEN) for n in forward_calls(joint_of(written_without_grad))}
    assert marked == {"mul": None, "mul_1": WRITTEN, "sin": None}


@pytest.mark.parametrize("name, saved, primals", [("exp", (0,), ()), (None, (), (0,))])
def test_a_saved_value_without_a_derivative_is_not_computed_again(
    name: Any, saved: Any, primals: Any
) -> None:
    joint = joint_of(without_grad)
    kept = [next((n for n in forward_calls(joint) if n.name == name), None)]
    found = pullback_of(joint.module, joint.boundary, kept)
    assert (found.saved, found.primals) == (saved, primals)
    # which is given, in the first case
    assert [n.name for n in forward_calls(joint) if n in found.nodes] == ["exp"]


def test_a_saved_value_that_varies_is_computed_again() -> None:
    joint = joint_of(lambda x: x.sin().exp())
    sin = next(n for n in forward_calls(joint) if n.name == "sin")
    found = pullback_of(joint.module, joint.boundary, [sin])
    assert found.saved == () and found.primals == (0,) and sin in found.nodes


def test_the_graph_of_a_pullback_detaches_what_was_made_without_grad() -> None:
    joint = joint_of(without_grad)
    found = pullback_of(joint.module, joint.boundary, [])
    placeholders = [n for n in joint.module.graph.nodes if n.op == "placeholder"]
    results: Any = joint.module.graph.output_node().args[0]
    module = found.module(joint.module, placeholders, results[joint.n_forward :])
    assert [str(n.target) for n in module.graph.nodes if n.op == "call_function"] == [
        "aten.exp.default",
        "aten.detach.default",
        "aten.mul.Tensor",
    ]
    x, g = torch.rand(2, 3), torch.rand(2, 3)
    torch.testing.assert_close(module(x, g)[0], x.exp() * g)


def test_the_pullback_of_a_batch_norm_takes_the_op_that_gives_no_statistics() -> None:
    joint = joint_of(in_batches)
    found = pullback_of(joint.module, joint.boundary, [])
    placeholders = [n for n in joint.module.graph.nodes if n.op == "placeholder"]
    results: Any = joint.module.graph.output_node().args[0]
    module = found.module(joint.module, placeholders, results[joint.n_forward :])
    norm = next(n for n in module.graph.nodes if "batch_norm" in n.name)
    assert norm.target is torch.ops.aten.native_batch_norm.default and len(norm.meta["val"]) == 3
    assert all(a is None for a in norm.args[3:5])


def test_what_a_boundary_refuses_has_no_second_derivative() -> None:
    joint = joint_of(torch.sin)
    assert pullback_of(joint.module, replace(joint.boundary, once="why"), []) == Pullback(
        refused="why"
    )


def test_draws_are_numbered_after_what_is_saved_anyway() -> None:
    joint = joint_of(
        lambda x: torch.rand_like(x) * x + (x > 0).exp() * torch.rand_like(x) * x.sin()
    )
    calls = {n.name: n for n in forward_calls(joint)}
    found = pullback_of(
        joint.module, joint.boundary, [None, calls["exp"], calls["sin"], calls["mul"]]
    )
    assert {n.name for n in found.drawn} == {"rand_like", "rand_like_1"}
    assert found.saved == (1, 4, 5) and found.primals == (0,)


def by_hand(build: Callable[[fx.Graph, fx.Node, fx.Node], fx.Node]) -> tuple[fx.GraphModule, Any]:
    """A joint graph of one primal and one cotangent: ``x, t -> x, build(x, t)``. All
    calls have a tensor."""
    graph = fx.Graph()
    x, t = graph.placeholder("x"), graph.placeholder("t")
    graph.output([x, build(graph, x, t)])
    for n in graph.nodes:
        n.meta["val"] = torch.ones(2)
    return fx.GraphModule(torch.nn.Module(), graph), SimpleNamespace(
        once="", inputs=[None], n_forward=1, differentiated=[0]
    )


@pytest.mark.parametrize("of_primal", [True, False])
@pytest.mark.parametrize("draws", [True, False])
def test_an_op_of_the_users_draws_if_its_tags_say_so(draws: bool, of_primal: bool) -> None:
    op: Any = (
        torch.ops.tests_of_pullbacks.drawn.default
        if draws
        else torch.ops.tests_of_pullbacks.made.default
    )

    def build(graph: fx.Graph, x: fx.Node, t: fx.Node) -> fx.Node:
        constant = graph.call_function(torch.ops.aten.zeros.default, ([2],))
        made = graph.call_function(op, (x if of_primal else constant,))
        return graph.call_function(torch.ops.aten.mul.Tensor, (t, made))

    module, boundary = by_hand(build)
    found = pullback_of(module, boundary, [])
    if draws and of_primal:
        assert found == Pullback(
            refused=(
                "it draws random numbers (tests_of_pullbacks.drawn.default), "
                "and what was saved does not tell them"
            )
        )
        return
    assert [n.target for n in found.drawn] == ([op] if draws else [])
    assert found.primals == ((0,) if of_primal else ())
    assert op in {n.target for n in found.nodes}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("item", range(5))
def test_a_batch_norm_reads_its_statistics_unless_it_trains(training: bool, item: int) -> None:
    def build(graph: fx.Graph, x: fx.Node, t: fx.Node) -> fx.Node:
        mean, variance = (
            graph.call_function(f, ([2],))
            for f in (torch.ops.aten.zeros.default, torch.ops.aten.ones.default)
        )
        op = torch.ops.aten._native_batch_norm_legit_functional.default
        norm = graph.call_function(op, (x, None, None, mean, variance, training, 0.1, 1e-5))
        return graph.call_function(
            torch.ops.aten.mul.Tensor, (t, graph.call_function(operator.getitem, (norm, item)))
        )

    module, boundary = by_hand(build)
    read = {getattr(n.target, "__name__", "") for n in pullback_of(module, boundary, []).nodes}
    assert {"zeros.default", "ones.default"} & read == (
        {"zeros.default", "ones.default"} if not training or item > 2 else set()
    )
    assert {f"{NORM}.default", "getitem"} <= read
