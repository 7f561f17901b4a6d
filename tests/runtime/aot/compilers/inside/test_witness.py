"""Which calls a function makes, seen without making them; and for which arguments a
binding is sought anew.

Inside: ``runtime.aot.compilers.witness`` and ``shortest``. A binding makes the same call as the
overload, so that a program does not show which one runs."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from runtime.aot.compilers import replay
from runtime.aot.compilers.replay import _pattern, shortest
from runtime.aot.compilers.witness import Witness, _same, example

aten: Any = torch.ops.aten
X = torch.ones(2, 3)


def call(func: Any, *args: Any, val: Any = X, **kwargs: Any) -> fx.Node:
    graph = fx.Graph()

    def put(a: Any) -> Any:
        if not isinstance(a, torch.Tensor):
            return a
        n = graph.placeholder("x")
        n.meta["val"] = a
        return n

    n = graph.call_function(
        func, torch.utils._pytree.tree_map(put, args), torch.utils._pytree.tree_map(put, kwargs)
    )
    n.meta["val"] = val
    return n


def test_an_example_has_the_values_of_the_trace_and_leaves_sizes_as_nodes() -> None:
    n = call(aten.cat.default, [X, X], 1)
    size = n.graph.placeholder("n")
    size.meta["val"] = 3
    unknown = n.graph.placeholder("y")
    assert example(n.args) == [[X, X], 1] and example(n.args)[0][0] is X
    assert example(size) is size and example(unknown) is unknown
    assert example({"a": [size, 2.0]}) == {"a": [size, 2.0]}
    assert example(fx.immutable_collections.immutable_dict({"a": n.args[0]})) == {"a": [X, X]}
    assert example((1, (None,))) == [1, [None]] and type(example(torch.Size([2]))) is torch.Size


def test_a_witness_notes_calls_and_answers_with_new_tensors() -> None:
    seen, several = Witness(X), Witness((X, X))
    with seen:
        found, again = X.sin(), torch.add(X, 1, alpha=2)
    with several:
        values, places = X.sort()
    assert [(func, kwargs) for func, _, kwargs in seen.calls] == [
        (aten.sin.default, {}),
        (aten.add.Tensor, {"alpha": 2}),
    ]
    assert len(seen.calls[0][1]) == 1 and seen.calls[0][1][0] is X
    assert len(set(map(id, (X, found, again, values, places)))) == 5
    assert {t.data_ptr() for t in (found, again, values, places)} == {X.data_ptr()}


def test_where_an_abstract_tensor_lies_is_no_call() -> None:
    fake: Any = FakeTensorMode().from_tensor(X)
    seen = Witness(X)
    with seen:
        assert torch.ops.prim.device.default(fake) == torch.device("cpu")
    assert seen.calls == []


def test_a_call_that_takes_no_such_arguments_makes_no_calls() -> None:
    def failing(error: BaseException) -> Any:
        def run(x: Any) -> Any:
            x.sin()
            raise error

        return run

    assert Witness(X).watch(torch.sin, ["no tensor"], {}) == []
    for error in (TypeError(), RuntimeError()):
        assert Witness(X).watch(failing(error), [X], {}) == []
    with pytest.raises(KeyError):
        Witness(X).watch(failing(KeyError()), [X], {})
    assert [f for f, *_ in Witness(X).watch(torch.sin, [X.clone().requires_grad_()], {})] == [
        aten.sin.default
    ]


def test_a_function_stands_for_an_op_if_it_makes_this_call_alone() -> None:
    def sees(f: Any, func: Any, *args: Any, **kwargs: Any) -> bool:
        return Witness(X).sees_only(f, func, args, kwargs)

    assert sees(torch.add, aten.add.Tensor, X, X) and sees(
        torch.add, aten.add.Tensor, X, X, alpha=2
    )
    assert not sees(torch.add, aten.sub.Tensor, X, X) and not sees(
        lambda a, b: a.add(b).sin(), aten.add.Tensor, X, X
    )
    assert not sees(lambda a, b: torch.add(b, a), aten.add.Tensor, X, X.clone()), (
        "it takes them the other way round"
    )
    assert not sees(lambda a, b: torch.add(a, b, alpha=3), aten.add.Tensor, X, X)
    assert sees(torch.sum, aten.sum.dim_IntList, X, [0]) and sees(
        lambda a, b: a.sum(b), aten.sum.dim_IntList, X, [0, 1]
    )


SAME = [
    (3, 3),
    ([3], 3),
    ((3,), 3),
    ([1, [2]], (1, [2])),
    ({"a": [1]}, {"a": (1,)}),
    (X, X),
    (None, None),
    (2.0, 2.0),
    ("a", "a"),
]
OTHER = [
    (3, 4),
    (3, 3.0),
    (True, 1),
    ([3, 3], 3),
    ([4], 3),
    (3, [3]),
    ([1, 2], [1]),
    ([1, 2], [1, 3]),
    ([3.0], 3),
    ((1,), [2]),
]
OTHER += [
    ({"a": 1}, {"a": 2}),
    ({"a": 1}, {"b": 1}),
    ({"a": 1}, {}),
    (X, X.clone()),
    (X, None),
    (None, X),
    (0, None),
    ({}, []),
]


@pytest.mark.parametrize("a, b", SAME)
def test_the_same_arguments(a: Any, b: Any) -> None:
    assert _same(a, b)


@pytest.mark.parametrize("a, b", OTHER)
def test_other_arguments(a: Any, b: Any) -> None:
    assert not _same(a, b)


PATTERNS = [
    X,
    X[0, 0],
    X[0, 0].double(),
    X[0, 0].clone().requires_grad_(),
    1,
    1.0,
    True,
    None,
    "a",
    [X],
    [X, X],
    [1],
    [1, 1],
    [1.0],
    {"a": 1},
]
PATTERNS += [{"b": 1}, {"a": X}, {}, [], torch.float32, [[X]], [None, X]]


def test_a_binding_is_sought_anew_for_arguments_of_other_kinds() -> None:
    assert len({_pattern(a) for a in PATTERNS}) == len(PATTERNS)
    assert _pattern(X) == _pattern(X[0]) == _pattern(X.double()) and _pattern([1, 2]) == _pattern(
        [3, 4]
    )


def test_bindings_of_two_kinds_of_arguments_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_SHORTEST", {})
    for _ in range(2):
        assert shortest(call(aten.mul.Tensor, X, X))[0] is torch.mul
        assert shortest(call(aten.mul.Tensor, X, 2.0))[0] is torch.mul
        func, (_, dim) = shortest(call(aten.sum.dim_IntList, X, [0], val=X[0]))
        assert func is torch.sum and dim == 0
    assert len(replay._SHORTEST) == 3


def test_what_runs_a_call_is_a_binding_a_kernel_or_the_target_itself() -> None:
    assert shortest(call(operator.add, 1, 2, val=3)) == (operator.add, (1, 2))
    item = call(aten._local_scalar_dense.default, X[0, 0], val=1.0)
    assert shortest(item) == (torch._C.TensorBase.item, item.args)
    number = call(aten.sin.default, X, val=None)
    assert shortest(number) == (aten.sin.default._op, number.args)
