"""Which form a batch takes, what it is told of its calls, and which calls are in none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from runtime import aot
from runtime.aot.compilers.batching import batch, form, gather
from runtime.aot.compilers.peephole import rewritten

from .rewritten_graphs import names

aten: Any = torch.ops.aten
X, Y = torch.rand(4, 3), torch.rand(4, 3)
S, T = torch.tensor(0.5), torch.tensor(0.25)


def batches(f: Callable[..., Any], *args: Tensor) -> list[tuple[str, int]]:
    """The calls of ``_foreach`` ops in ``f``, each with the number of its calls."""
    graph = rewritten(aot.make_fx(f)(*args).graph)[0]
    return [(str(n.target), len(n.args[0])) for n in graph.nodes if n.op == "call_function" and "foreach" in str(n.target)]


FORMS: dict[str, tuple[Callable[..., Any], list[tuple[str, int]]]] = {
    "one tensor for each": (lambda x, y, s, t: (x * y, y * x), [("aten._foreach_mul.List", 2)]),
    "a number for all": (lambda x, y, s, t: (x + 5, y + 5), [("aten._foreach_add.Tensor", 2)]),
    "a tensor of one number for all": (lambda x, y, s, t: (x * s, y * s), [("aten._foreach_mul.Tensor", 2)]),
    "two tensors of one number": (lambda x, y, s, t: (x * s, y * t), []),
    "two tensors of one number for two each": (
        lambda x, y, s, t: (x * s, y * s, x[0] * t, y[0] * t),
        [("aten._foreach_mul.Tensor", 2), ("aten._foreach_mul.Tensor", 2)],
    ),
    "numbers themselves": (lambda x, y, s, t: (s * t, t * s), [("aten._foreach_mul.List", 2)]),
    "the factor of a sum": (lambda x, y, s, t: (torch.add(x, y, alpha=3), torch.add(y, x, alpha=3)), [("aten._foreach_add.List", 2)]),
    "other factors of a sum": (lambda x, y, s, t: (torch.add(x, y, alpha=3), torch.add(y, x, alpha=2)), []),
    "a factor of a sum with a number": (lambda x, y, s, t: (torch.add(x, 5, alpha=2), torch.add(y, 5, alpha=2)), []),
    "a weight": (lambda x, y, s, t: (x.lerp(y, 0.5), y.lerp(x, 0.5)), [("aten._foreach_lerp.Scalar", 2)]),
    "other weights": (lambda x, y, s, t: (x.lerp(y, 0.5), y.lerp(x, 0.25)), []),
    "an exponent": (lambda x, y, s, t: (x.pow(3), y.pow(3)), [("aten._foreach_pow.Scalar", 2)]),
    "a power of a number": (lambda x, y, s, t: (torch.pow(2, x), torch.pow(2, y)), []),
    "three": (lambda x, y, s, t: (x.sin(), y.sin(), s.sin()), [("aten._foreach_sin.default", 3)]),
    "one": (lambda x, y, s, t: (x.sin(), y.cos()), []),
    "an op without a form": (lambda x, y, s, t: (x.atan2(y), y.atan2(x)), []),
    "a clone": (lambda x, y, s, t: (x.clone(), y.clone()), [("aten._foreach_clone.default", 2)]),
    "another dtype": (lambda x, y, s, t: (x.half().sin(), y.half().sin()), []),
    "a sum over two dtypes": (lambda x, y, s, t: (x + y.half(), y + x.half()), []),
    "a number that torch promotes": (lambda x, y, s, t: (x * s.double(), y * s.double()), []),
}


@pytest.mark.parametrize("f, expected", FORMS.values(), ids=FORMS)
def test_a_batch_takes_the_form_of_its_arguments(f: Any, expected: list[tuple[str, int]]) -> None:
    assert batches(f, X, Y, S, T) == expected


def test_a_batch_tells_of_its_first_call_where_it_is_from_and_of_each_what_it_gives() -> None:
    graph = aot.make_fx(lambda x, y: [x.sin(), y.sin()])(X, Y[:2]).graph
    for n in graph.nodes:
        n.meta["note"] = n.name
    batch(graph, gather(graph))
    merged, *items = (n for n in graph.nodes if n.op == "call_function")
    items.sort(key=lambda n: int(n.args[1]))
    assert merged.meta["note"] == "sin" and [i.meta["note"] for i in items] == ["sin", "sin_1"]
    assert [v.shape for v in merged.meta["val"]] == [i.meta["val"].shape for i in items] == [(4, 3), (2, 3)]


def test_a_batch_stands_where_its_last_farthest_call_stood() -> None:
    graph = aot.make_fx(lambda x, y: [x.sin(), x.exp(), y.cos(), y.sin()])(X, Y).graph
    assert [len(b) for b in gather(graph)] == [2]
    assert names(graph) == ["exp", "cos", "sin", "sin"]


def _graph(*calls: tuple[Any, ...]) -> tuple[fx.Graph, list[list[fx.Node]]]:
    """A graph of the inputs ``a``, ``b``, ``c`` and ``d``, and of calls, whose strings name inputs and whose numbers name earlier calls.
    The last two are a batch."""
    graph = fx.Graph()
    values: dict[Any, fx.Node] = {name: graph.placeholder(name) for name in "abcd"}
    for i, (func, *args) in enumerate(calls):
        *given, out = args if func._schema.arguments[-1].name == "out" else [*args, None]
        kwargs: dict[str, Any] = {"out": values[out]} if out is not None else {}
        values[i] = graph.call_function(func, tuple(values[a] for a in given), kwargs)
    for n in values.values():
        n.meta["val"] = torch.empty(3, device="cpu")
    graph.output([values[len(calls) - 2], values[len(calls) - 1]])
    return graph, [[values[len(calls) - 2], values[len(calls) - 1]]]


ADD, MUL_OUT, VIEW = aten.add_.Tensor, aten.mul.out, aten.view_as.default


@pytest.mark.parametrize(
    "calls, together",
    [
        pytest.param([(ADD, "a", "b"), (ADD, "c", "d")], True, id="four arguments"),
        pytest.param([(ADD, "a", "b"), (ADD, "c", "b")], True, id="both read one"),
        pytest.param([(ADD, "a", "a"), (ADD, "c", "c")], True, id="each reads what it writes"),
        pytest.param([(ADD, "a", "b"), (ADD, "a", "c")], False, id="both write one"),
        pytest.param([(ADD, "a", "b"), (ADD, "c", "a")], False, id="the second reads what the first writes"),
        pytest.param([(ADD, "a", "c"), (ADD, "c", "b")], False, id="the first reads what the second writes"),
        pytest.param([(ADD, "a", "b"), (ADD, 0, "c"), (ADD, "d", "a")], False, id="through the result of a write"),
        pytest.param([(ADD, "a", "b"), (ADD, "c", "b"), (ADD, "d", 0)], True, id="reads the result of another write"),
        pytest.param([(MUL_OUT, "a", "b", "c"), (ADD, 0, "b"), (ADD, "d", "c")], False, id="through what a call has written to"),
        pytest.param([(MUL_OUT, "a", "b", "c"), (ADD, 0, "b"), (ADD, "d", "a")], True, id="what that call has read is free"),
        pytest.param([(aten.alias.default, "a"), (ADD, 0, "b"), (ADD, "c", "a")], False, id="through a view"),
        pytest.param([(aten.alias.default, "a"), (ADD, "a", "b"), (ADD, "c", 0)], False, id="a view is read"),
        pytest.param([(aten.alias.default, "a"), (aten.alias.default, 0), (ADD, 1, "b"), (ADD, "c", 0)], False, id="views of views"),
        pytest.param([(aten.neg.default, "a"), (ADD, 0, "b"), (ADD, "c", "a")], True, id="a new tensor"),
        pytest.param([(aten.neg.default, "a"), (aten.neg.default, "b")], True, id="nothing is written"),
    ],
)
def test_calls_are_together_where_none_writes_what_another_one_takes(calls: list[tuple[Any, ...]], together: bool) -> None:
    graph, groups = _graph(*calls)
    batch(graph, groups)
    assert any("foreach" in name for name in names(graph)) is together


def test_batches_are_made_from_the_last_one_to_the_first() -> None:
    """The second reads what the first writes, and not the other way."""
    graph, (second,) = _graph((ADD, "a", "b"), (ADD, "c", "d"), (aten.neg.default, 0), (aten.neg.default, 1))
    first = [n for n in graph.nodes if n.target is ADD]
    batch(graph, [first, second])
    assert names(graph) == ["_foreach_add_", "_foreach_neg", "getitem", "getitem"]


@pytest.mark.parametrize(
    "func, ways",
    [
        (aten.sin.default, ("List[{}]",)),
        (aten.mul.Tensor, ("List[{}]", "List[{}]")),
        (aten.mul.Tensor, ("List[{}]", "{}")),
        (aten.mul_.Tensor, ("List[{}]", "number")),
    ],
)
def test_a_form_begins_with_a_list(func: Any, ways: tuple[str, ...]) -> None:
    assert form(func, ways) is not None
    assert form(func, ("{}", *ways[1:])) is None
    assert form(abs, ways) is None and form("sin", ways) is None
    assert form(aten.copy.default, ("List[{}]", "List[{}]", "{}")) is None
