"""What a trace knows of an op beforehand: each fact holds of these ops among the sample,
and of no other.

Inside: ``runtime.trace.call_facts``, ``is_pure`` and ``has_effect``. A graph shows what a trace
does with a call, which several of these facts decide together."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runtime.functionalize.pure_calls import is_pure
from runtime.trace.call_facts import facts_of
from runtime.trace.graph_edits import has_effect

aten = torch.ops.aten
SAMPLE: dict[str, Any] = {
    "add": aten.add.Tensor, "add_": aten.add_.Tensor, "add out": aten.add.out, "max": aten.max.dim,
    "max out": aten.max.dim_max, "view": aten.view.default, "split": aten.split.Tensor,
    "unsafe_split": aten.unsafe_split.Tensor, "unsqueeze_": aten.unsqueeze_.default,
    "size": aten.sym_size.int, "numel": aten.sym_numel.default, "stride": aten.sym_stride.int,
    "dim": torch.ops.prim.layout.default, "is_contiguous": aten.is_contiguous.default,
    "item": aten._local_scalar_dense.default, "equal": aten.equal.default,
    "nonzero": aten.nonzero.default, "values": aten._values.default, "nnz": aten._nnz.default,
    "lift": aten.lift_fresh.default, "rand": aten.rand.default, "rand_like": aten.rand_like.default,
    "dropout": aten.dropout.default, "linear": aten.linear.default,
    "native_dropout": aten.native_dropout.default, "batch_norm": aten.native_batch_norm.default,
    "from": getattr(aten.random, "from"), "zerotensor": aten._efficientzerotensor.default,
    "foreach": aten._foreach_add_.Scalar, "rrelu": aten.rrelu_with_noise.default,
    "assert": aten._assert_async.msg, "full": aten.full.default,
}  # fmt: skip
WRITING = {"add_", "add out", "max out", "foreach", "rrelu", "unsqueeze_"}
DRAWING = {"rand", "rand_like", "native_dropout", "from", "rrelu", "dropout"}
SIZES = {"size", "numel", "stride"}
FACTS: dict[str, set[str]] = {
    "question": {"dim"},
    "literal": {"lift"},
    "asks_size": SIZES,
    "tells_stored": {"values", "nnz"},
    "sized_by_values": {"nonzero"},
    "composite": {"dropout", "linear", "is_contiguous"} | SIZES,
    "may_draw": DRAWING,
    "reads": {"item", "equal"},
    "reshapes": {"unsqueeze_"},
    "may_write": WRITING | {"batch_norm"},
    "written": WRITING,
    "special": {
        "dim",
        "values",
        "nnz",
        "lift",
        "nonzero",
        "dropout",
        "linear",
        "is_contiguous",
        "item",
        "equal",
        "from",
        "zerotensor",
    }
    | SIZES,
    "follows": set(SAMPLE) - WRITING - DRAWING - {"view", "split", "values", "lift"} | {"foreach"},
}


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_holds_of_these_ops_alone(fact: str) -> None:
    assert {name for name, func in SAMPLE.items() if getattr(facts_of(func), fact)} == FACTS[fact]


def test_arguments_that_are_written_and_returned_are_known_by_their_places() -> None:
    written = {name: facts_of(func).written for name, func in SAMPLE.items() if name in WRITING}
    assert written == {
        "add_": (0,),
        "add out": (3,),
        "max out": (3, 4),
        "unsqueeze_": (0,),
        "foreach": (0,),
        "rrelu": (1,),
    }
    assert {n: facts_of(func).returned for n,
        func in SAMPLE.items() if n in WRITING} == dict.fromkeys(WRITING) | {
        "add_": 0, "add out": 3, "unsqueeze_": 0
    }  # fmt: skip
    assert all(
        facts_of(func).returned is None for name, func in SAMPLE.items() if name not in WRITING
    )


def test_nodes_are_named_as_torch_names_them() -> None:
    named = {
        name: facts_of(SAMPLE[name]).node_name
        for name in ("add", "add_", "max out", "size", "item", "from")
    }
    assert named == {
        "add": "add",
        "add_": "add_",
        "max out": "max",
        "size": "sym_size",
        "item": "_local_scalar_dense",
        "from": "random",
    }


def test_a_call_is_pure_if_it_makes_one_new_tensor_and_does_nothing_else() -> None:
    assert {name for name, func in SAMPLE.items() if is_pure(func)} == {
        "add",
        "from",
        "full",
        "nonzero",
        "rand",
        "rand_like",
        "zerotensor",
    }


def test_an_unused_call_stays_in_a_graph_if_it_writes_or_draws_or_returns_nothing() -> None:
    graph = torch.fx.Graph()
    staying = {name for name, func in SAMPLE.items() if has_effect(graph.call_function(func))}
    assert staying == WRITING | DRAWING | {"assert"}
    # what is remembered says the same
    assert staying == {
        name for name, func in SAMPLE.items() if has_effect(graph.call_function(func))
    }
