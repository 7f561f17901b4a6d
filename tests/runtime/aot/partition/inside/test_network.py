"""Networks of graphs by hand.

Inside: ``runtime.aot.partition.network.Network``. Capacities that are infinite, and prices of
single calls, decide together what a cut saves."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from runtime.aot.partition.network import INFINITE, Network
from runtime.aot.partition.recompute import recomputable
from tests.runtime.aot.partition.by_hand import Joint, X, region
from tests.runtime.aot.partition.inside.parts_by_hand import parts_of

aten: Any = torch.ops.aten


def test_what_it_costs_to_save_a_value(joint: Joint) -> None:
    x, y, t = joint.inputs
    view = joint.call(aten.t.default, x)
    sin = joint.call(aten.sin.default, x)
    inner_view = joint.call(aten.t.default, sin)
    behind = joint.call(aten.cos.default, y)
    several = joint.call(aten.sort.default, x, val=(X, X.long()))
    item = joint.call(operator.getitem, several, 1, val=X.long())
    size = joint.call(operator.add, 1, 2, val=3)
    empty = joint.call(aten.clone.default, x, val=X[:0])
    inner = region(joint.call(aten.exp.default, x), 1)
    forward = joint.call(aten.cat.default, [view, sin, inner_view, item, empty, inner], size)
    region(forward, 1)
    grad = joint.call(aten.addcmul.default, t, behind, sin)
    parts = parts_of(joint, [forward], [grad])
    network = Network(parts, {y}, recomputable)
    bytes_of = {n.name: network._price_of_saving(n) for n in parts.candidates}
    assert bytes_of == {
        "primals_1": 48,
        "primals_2": 0,
        "t": 48 + 1,
        "sin": 48,
        "t_1": 48,
        "cos": 48 + 1,
        "sort": INFINITE,
        "getitem": 96,
        "add": 8,
        "clone": 1,
        "exp": INFINITE,
        "cat": 48,
    }
    assert network.inside(inner) and not network.inside(sin)


def test_a_price_is_that_of_the_call_and_at_least_one(joint: Joint) -> None:
    x, _, t = joint.inputs
    several = joint.call(aten.sort.default, x, val=(X, X.long()))
    item = joint.call(operator.getitem, several, 1, val=X.long())
    grad = joint.call(aten.gather.default, t, 0, item)
    network = Network(parts_of(joint, [item], [grad]), (), recomputable)
    assert network.work(item) == network.work(several) == network.price_of(item) > 48 + 48 + 96
    assert (network.work(x), network.price_of(x)) == (0, 1)


def test_sizes_of_any_program_are_weighed_as_they_were() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    joint = Joint()
    x, _, t = joint.inputs
    x.meta["val"] = mode.from_tensor(torch.ones(5, 7))
    parts = parts_of(
        joint,
        [joint.call(aten.sin.default, x, val=x.meta["val"])],
        [joint.call(aten.mul.Tensor, t, x)],
    )
    assert Network(parts, (), recomputable)._price_of_saving(x) == 5 * 7 * 4
