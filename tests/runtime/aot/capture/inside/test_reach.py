"""From which results of a program a cotangent comes to a node, and which nodes ask
for some of theirs.

Inside: ``runtime.aot.capture.program.Reach``. Which graph a backward gets for some cotangents
shows this too, for tapes that a program can record, and not for each order of nodes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch

import runtime
from runtime.aot.capture.program import Reach
from runtime.aot.control_flow.branches import ControlFlow
from runtime.session.tensor import SESSION
from runtime.tape.nodes import Node


class Named(Node):
    pass


def node(*edges: Any, kind: type[Node] = Node) -> Node:
    """A node with edges to the first outputs of nodes, or to outputs by number."""
    return kind(SESSION, tuple((e, 0) if isinstance(e, Node) else e for e in edges), None)


def test_a_root_reaches_itself_and_what_is_behind_it() -> None:
    leaf, other = node(), node()
    middle = node((leaf, 2), None)
    first, second = node(middle), node(other, middle)
    reach = Reach.of([(first, 0), (second, 1)])
    assert reach.nodes == {first: 0b01, second: 0b10, middle: 0b11, leaf: 0b11, other: 0b10}
    assert reach.outputs == {
        (first, 0): 0b01,
        (second, 1): 0b10,
        (middle, 0): 0b11,
        (leaf, 2): 0b11,
        (other, 0): 0b10,
    }


def test_several_outputs_of_one_node_are_roots_of_their_own() -> None:
    leaf = node()
    root = node(leaf)
    reach = Reach.of([(root, 0), (root, 1), (root, 0)])
    assert reach.nodes == {root: 0b111, leaf: 0b111} and reach.outputs == {
        (root, 0): 0b101,
        (root, 1): 0b010,
        (leaf, 0): 0b111,
    }


def test_a_root_that_another_one_leads_to_is_reached_by_both() -> None:
    leaf = node()
    inner = node(leaf)
    outer = node(inner)
    for i, roots in enumerate(([(inner, 0), (outer, 0)], [(outer, 0), (inner, 0)])):
        reach = Reach.of(roots)
        assert reach.nodes == {inner: 0b11, outer: 0b10 >> i, leaf: 0b11}
        assert reach.outputs[inner, 0] == reach.outputs[leaf, 0] == 0b11


@pytest.mark.parametrize("far_first", [True, False])
def test_a_node_is_passed_after_all_that_lead_to_it(far_first: bool) -> None:
    leaf = node()
    shared = node(leaf)
    far = node(node(node(shared)))
    root = node(far, shared) if far_first else node(shared, far)
    near = node(shared)
    for roots in ([root, near], [near, root]):
        reach = Reach.of([(r, 0) for r in roots])
        assert reach.nodes[shared] == reach.nodes[leaf] == 0b11


def test_a_chain_may_have_any_length() -> None:
    leaf = last = node()
    for _ in range(5000):
        last = node(last)
    assert Reach.of([(last, 0)]).nodes[leaf] == 1


@pytest.mark.parametrize("hook", ["pre_hooks", "tensor_hooks", "post_hooks"])
def test_a_node_with_hooks_asks_for_its_cotangents_if_not_all_come_from_the_same_roots(
    hook: str,
) -> None:
    several, one, alike, plain = (node(kind=Named) for _ in range(4))
    for n in (several, one, alike):
        setattr(n, hook, OrderedDict({0: lambda g: g}))
    first = node((several, 0), (one, 0), (alike, 0), (plain, 0), (alike, 1))
    second = node((several, 1), (plain, 1))
    assert Reach.of([(first, 0), (second, 0)]).asking() == {"Named": {frozenset([0b01, 0b10])}}


def test_nodes_of_one_name_are_told_together() -> None:
    nodes = [node(kind=Named) for _ in range(2)]
    for n in nodes:
        n.pre_hooks = OrderedDict({0: lambda g: g})
    first, second = node((nodes[0], 0), (nodes[1], 0)), node((nodes[0], 1), (nodes[1], 0))
    assert Reach.of([(first, 0), (second, 0), (nodes[1], 1)]).asking() == {
        "Named": {frozenset([0b01, 0b10]), frozenset([0b011, 0b100])}
    }


class Two(runtime.autograd.Function):
    materializes = False

    @classmethod
    def forward(cls, ctx: Any, x: Any) -> Any:
        ctx.set_materialize_grads(cls.materializes)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, *gs: Any) -> Any:
        raise NotImplementedError


class Materializing(Two):
    materializes = True


class OfControlFlow(Two, ControlFlow):
    pass


@pytest.mark.parametrize(
    "kind, asks", [(Two, True), (Materializing, False), (OfControlFlow, False)]
)
def test_a_custom_function_that_takes_none_asks_for_its_cotangents(kind: Any, asks: bool) -> None:
    outs = kind.apply(runtime.wrap(torch.ones(2), requires_grad=True))
    reach = Reach.of([o._edge for o in outs])
    assert reach.asking() == (
        {f"{kind.__name__}Backward": {frozenset([0b01, 0b10])}} if asks else {}
    )
