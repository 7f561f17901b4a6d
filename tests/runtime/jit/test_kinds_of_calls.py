"""Calls that look alike, and are of different kinds."""

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import runtime
from runtime.aot import aot_function

FRONT_DOORS = [runtime.jit, lambda f: aot_function(f, lambda graph, _: graph)]


@pytest.fixture(params=FRONT_DOORS, ids=["jit", "aot_function"])
def compiled(request: pytest.FixtureRequest) -> Any:
    return request.param


def _by_identity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a * 3 if a is b else a - b


@pytest.mark.parametrize("first", ["apart", "one"])
def test_a_tensor_that_is_given_twice_is_one_object_for_the_program(
    compiled: Any, first: str
) -> None:
    x, y = torch.full((2,), 4.0), torch.full((2,), 1.0)
    pairs = [(x, y), (x, x), (y, x), (y, y)]
    positional, in_tree = compiled(_by_identity), compiled(lambda d: _by_identity(d["a"], d["b"]))
    for a, b in pairs if first == "apart" else reversed(pairs):
        assert torch.equal(positional(a, b), _by_identity(a, b))
        assert torch.equal(in_tree({"a": a, "b": b}), _by_identity(a, b))


def test_the_gradient_of_a_tensor_that_is_given_twice_is_that_of_both(compiled: Any) -> None:
    run = compiled(lambda a, b, c: (a * b * c).sum())
    x = torch.full((2,), 2.0, requires_grad=True)
    for _ in range(2):
        x.grad = None
        run(x, torch.ones(2), x).backward()
        assert torch.equal(x.grad, torch.full((2,), 4.0))  # type: ignore[arg-type]


def test_a_recorded_tensor_that_is_given_twice_without_grad_mode_is_one(compiled: Any) -> None:
    run = compiled(_by_identity)
    x, y = (torch.full((2,), 2.0, requires_grad=True) * 1 for _ in range(2))
    with torch.no_grad():
        for a, b in ((x, y), (x, x), (x, y), (x, x)):
            assert torch.equal(run(a, b), _by_identity(a, b))


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo])
def test_a_guard_tells_one_tensor_from_two(compiled: Any, layout: Any) -> None:
    run = compiled(lambda a, b, c: (a * 2 if a is c else a + c).to_dense() + b)
    x, y = (torch.full((2,), n).to_sparse().to_dense() for n in (1.0, 4.0))
    x, y = (t if layout is torch.strided else t.to_sparse() for t in (x, y))
    b = torch.zeros(2)
    for _ in range(3):
        assert torch.equal(run(x, b, y), torch.full((2,), 5.0))
        assert torch.equal(run(x, b, x), torch.full((2,), 2.0))


def test_a_write_to_a_tensor_that_is_given_twice_is_in_both(compiled: Any) -> None:
    run = compiled(lambda a, b: (a.add_(1), a * b)[1])
    x, y = torch.ones(2), torch.full((2,), 3.0)
    assert torch.equal(run(x, y), torch.full((2,), 6.0))
    for n in (3.0, 4.0):
        assert torch.equal(run(x, x), torch.full((2,), n * n))
        assert torch.equal(x, torch.full((2,), n))


def test_a_tensor_of_the_state_that_is_given_is_the_one_of_the_state() -> None:
    class Model:
        h = torch.zeros(2)

    model = Model()

    @runtime.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        result = x * 10 if x is model.h else x + model.h
        model.h = model.h + 1
        return result

    for n in range(4):
        assert torch.equal(step(torch.ones(2)), torch.full((2,), 1.0 + 2 * n))
        assert torch.equal(step(model.h), torch.full((2,), 10.0 * (2 * n + 1)))


@pytest.mark.parametrize(
    "keys", [(1, True), (True, 1.0), (0.0, -0.0), ((1,), (True,)), ("1", 1)], ids=repr
)
def test_equal_keys_of_different_classes_are_different(compiled: Any, keys: Any) -> None:
    def program(d: Any) -> Any:
        (key,) = d
        return d[key] * len(repr(key))

    run, x = compiled(program), torch.ones(2)
    for key in (*keys, *keys):
        expected: torch.Tensor = program({key: x})
        assert torch.equal(run({key: x}), expected)


def test_two_classes_of_one_name_are_two(compiled: Any) -> None:
    def make(factor: float) -> Any:
        class Pair:
            def __init__(self, x: torch.Tensor) -> None:
                self.x = x

            def scaled(self) -> torch.Tensor:
                return self.x * factor

        def flat(pair: Any) -> Any:
            return [pair.x], None

        def pair_of(leaves: Any, _: Any) -> Any:
            return Pair(*leaves)

        pytree.register_pytree_node(Pair, flat, pair_of)
        return Pair

    run, x = compiled(lambda pair: pair.scaled()), torch.ones(2)
    classes = [make(2.0), make(3.0)]
    assert [run(kind(x)).tolist() for kind in classes] == [[2.0] * 2, [3.0] * 2]


def test_objects_that_are_equal_contexts_of_a_tree_share_a_program() -> None:
    class Named:
        def __init__(self, x: Any, name: Any) -> None:
            self.x, self.name = x, name

    pytree.register_pytree_node(
        Named, lambda n: ([n.x], n.name), lambda leaves, name: Named(next(iter(leaves)), name)
    )
    run = runtime.jit(lambda n: n.x * 2)
    for _ in range(3):
        run(Named(torch.ones(2), frozenset({"a"})))
        run(Named(torch.ones(2), {"a": [1]}))
    assert len(run.captured) == 2


@pytest.mark.parametrize(
    "contexts", [([1, 2], (1, 2)), ({"a": 1}, {"a": True}), ([{"a": 0.0}], [{"a": -0.0}])], ids=repr
)
def test_contexts_of_a_tree_are_told_apart_as_keys_are(compiled: Any, contexts: Any) -> None:
    class Labelled:
        def __init__(self, x: Any, label: Any) -> None:
            self.x, self.label = x, label

    pytree.register_pytree_node(
        Labelled,
        lambda n: ([n.x], n.label),
        lambda leaves, label: Labelled(next(iter(leaves)), label),
    )

    def program(n: Any) -> Any:
        return n.x * len(repr(n.label)) if type(n.label) is list else n.x + len(repr(n.label))

    run, x = compiled(program), torch.full((2,), 3.0)
    for label in (*contexts, *contexts):
        assert torch.equal(run(Labelled(x, label)), program(Labelled(x, label)))


def test_a_size_is_a_size_as_argument_and_as_result(compiled: Any) -> None:
    run = compiled(lambda x, s: (x.reshape(s), {"of": s, "is": x.shape}, type(s)))
    for n in (4, 4, 6, 8):  # for these sizes, then for any
        x, s = torch.ones(n), torch.Size([n // 2, 2])
        shaped, sizes, kind = run(x, s)
        assert shaped.shape == s and kind is torch.Size
        assert sizes == {"of": s, "is": x.shape}
        assert all(type(size) is torch.Size for size in sizes.values())


def test_a_size_that_a_program_leaves_is_a_size() -> None:
    class Model:
        steps = 0
        size: object = None

    model = Model()

    @runtime.jit
    def step(x: torch.Tensor) -> object:
        before = model.size
        model.size, model.steps = x.shape, model.steps + 1
        return before, model.size

    for n in range(2, 7):
        before, now = step(torch.ones(n))
        assert type(now) is torch.Size and now == model.size == torch.Size([n])
        assert before == (None if n == 2 else torch.Size([n - 1]))
        assert n == 2 or type(before) is torch.Size
