"""Which op does the work of an op that writes, with which defaults, and what stores know of
writes.

Inside: ``runtime.rules.functional_forms`` and ``runtime.functionalize.stores``. A functionalized
program shows the sum of these: which form each op has is a table, and a count of writes of one
store cannot be told from that of another one of the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime.func import grad, jvp, vmap
from runtime.functionalize.functional_level import FunctionalLevel
from runtime.functionalize.stores import Memory, Replaced, Store, has_gradient, has_history
from runtime.functionalize.writes import WrittenBack
from runtime.rules.functional_forms import (
    defaults_of,
    drops_nothing,
    factory_options,
    functional_of,
)
from runtime.rules.ops import op_of

aten = torch.ops.aten
FORMS: dict[Any, Any] = {
    aten.add_.Tensor: aten.add.Tensor,
    aten.add.out: aten.add.Tensor,
    aten.__iand__.Tensor: aten.__and__.Tensor,
    aten.__ilshift__.Scalar: aten.__lshift__.Scalar,
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.bernoulli_.Tensor: aten.bernoulli.Tensor,
    aten.normal_.default: aten.normal_functional.default,
    aten.arange.out: aten.arange.default,
    aten.full.out: aten.full.default,
    aten.max.dim_max: aten.max.dim,
    aten._foreach_add_.Scalar: aten._foreach_add.Scalar,
    aten.zero_.default: aten.zero.default,
    aten.rrelu_with_noise.default: aten.rrelu_with_noise_functional.default,
    aten.rrelu_with_noise_.default: aten.rrelu_with_noise_functional.default,
    aten._native_batch_norm_legit.default: aten._native_batch_norm_legit_functional.default,
    aten.sort.values_stable: aten.sort.stable,
    aten.add.Tensor: aten.add.Tensor,
    aten.t_.default: None,
    aten.polygamma_.default: None,
    aten.squeeze_.dim: None,
}


@pytest.mark.parametrize("func", FORMS, ids=str)
def test_the_functional_form_takes_the_same_arguments_and_writes_nothing(func: Any) -> None:
    found = functional_of(func)
    assert found is FORMS[func] and functional_of(func) is found
    assert found is None or not found._schema.is_mutable


@pytest.mark.parametrize(
    ("func", "given", "defaults"),
    [
        (aten.bernoulli_.float, 1, {"p": 0.5}),
        (aten.bernoulli_.float, 2, {}),
        (aten.add_.Tensor, 2, {}),
        (aten.normal_.default, 1, {}),
    ],
    ids=str,
)
def test_defaults_that_the_functional_form_lacks_are_passed_on(
    func: Any, given: int, defaults: dict[str, Any]
) -> None:
    assert defaults_of(op_of(func), functional_of(func), [0] * given) == defaults


@pytest.mark.parametrize(
    ("func", "named"),
    [
        (aten.arange.out, ("dtype", "device")),
        (aten.full.out, ("dtype", "device")),
        (aten.add.out, ()),
    ],
)
def test_a_factory_makes_what_fits_what_is_written(func: Any, named: tuple[str, ...]) -> None:
    target = torch.zeros(2, dtype=torch.int16, device="meta")
    assert factory_options(func, functional_of(func), target) == {
        name: getattr(target, name) for name in named
    }


@pytest.mark.parametrize(
    ("shape", "p", "train", "nothing"),
    [
        ((2, 3), 0.5, True, False),
        ((2, 3), 0.5, False, True),
        ((2, 3), 0.0, True, True),
        ((2, 0), 0.5, True, True),
        ((1, 1), 1.0, True, False),
    ],
)
def test_dropout_returns_its_argument_where_it_drops_nothing(
    shape: Any, p: float, train: bool, nothing: bool
) -> None:
    assert drops_nothing(torch.ones(shape), p, train) is nothing


def test_a_detached_store_shares_memory_and_version_and_has_no_value_yet() -> None:
    store = Store(torch.ones(2))
    detached = Store(None, store)
    assert (store.seen, detached.seen, detached.value) == (0, -1, None)
    assert detached.memory is store.memory and (store.version, detached.version) == (0, 0)
    detached.count(True)
    store.count(False)
    assert (store.version, detached.version, Store(torch.ones(2)).version) == (1, 1, 0)
    assert not store.recorded and Store(torch.ones(1), store).seen == 0


def test_writes_to_any_of_several_arguments_of_one_memory_are_counted_together() -> None:
    first = Store(torch.ones(2))
    second = Store(None, first)
    second.counter = [4]
    assert second.version == 4
    first.memory.writes = 0
    for store, counted in ((first, True), (second, False), (second, True)):
        store.count(counted)
    assert (first.version, second.version, first.counter, second.counter) == (3, 3, [1], [5])


def test_a_value_that_was_given_other_memory_has_a_version_of_its_own() -> None:
    source, store = Store(torch.zeros(3)), Store(torch.ones(2))
    source.memory.generation = store.memory.generation = 2
    replaced = Replaced("the value", store, ())
    assert (replaced.generation, replaced.count, replaced.version) == (2, 0, 0)
    made = replaced.by(source, source.value, 7)
    assert made.memory is source.memory and (made.version, made.seen, made.value) == (
        7,
        2,
        source.value,
    )
    replaced.by(source, source.value, 9)
    assert (replaced.count, replaced.version, replaced.store) == (2, 9, store)


def test_memory_knows_the_whole_that_it_is_a_piece_of_a_piece_of() -> None:
    level = FunctionalLevel()
    try:
        whole: Any = level.wrap(torch.arange(8.0))
        half = whole.unsafe_split(4)[1]
        quarter = half.unsafe_split(2)[1]
        assert quarter._store.memory.whole is whole._store.memory is whole._store.memory.whole
        assert half._store.memory.whole is whole._store.memory
        assert Memory(torch.ones(1)).whole.part_of is None
        quarter.mul_(10)
        assert level.read(whole).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 60.0, 70.0]
        whole.add_(1)
        assert level.read(quarter).tolist() == [61.0, 71.0] and level.read(half).tolist() == [
            5.0,
            6.0,
            61.0,
            71.0,
        ]
    finally:
        level.close()


X = torch.ones(3)


def _asked(
    transform: Callable[[Callable[[Any], Any]], Any], of: Callable[[Any], Any] = lambda x: x
) -> tuple[bool, bool]:
    """Whether ``of(x)`` has a history, and whether it has a gradient, for the ``x`` that a
    transform gives to a function."""
    seen: list[tuple[bool, bool]] = []

    def f(x: Any) -> Any:
        y = of(x)
        seen.append((has_history(y), bool(has_gradient(y))))
        return (x * 1).sum()

    transform(f)
    return seen[0]


ASKED: dict[str, tuple[Callable[[], tuple[bool, bool]], tuple[bool, bool]]] = {
    "a plain tensor": (lambda: (has_history(X), bool(has_gradient(X))), (False, False)),
    "an input of grad": (lambda: _asked(lambda f: grad(f)(X)), (True, True)),
    "a result of grad": (lambda: _asked(lambda f: grad(f)(X), lambda x: x * 2), (True, True)),
    "a detached value": (lambda: _asked(lambda f: grad(f)(X), lambda x: x.detach()),
        (False, False)),
    "an input of jvp": (lambda: _asked(lambda f: jvp(f, (X,), (X,))), (True, False)),
    "a value without a tangent": (lambda: _asked(lambda f: jvp(f, (X,), (X,)),
        lambda x: x.detach()), (False, False)),
    "a batch": (lambda: _asked(lambda f: vmap(f)(X[None])), (False, False)),
    "a batch inside grad": (lambda: _asked(lambda f: grad(lambda x: vmap(f)(x).sum())(X[None])),
        (True, True)),
    "a batch of what is detached": (
        lambda: _asked(lambda f: grad(lambda x: (vmap(f)(x.detach()) + x.sum()).sum())(X[None])),
        (False, False),
    ),
    "grad of a batch": (lambda: _asked(lambda f: vmap(grad(f))(X[None])), (True, True)),
    "jvp inside grad, detached": (
        lambda: _asked(lambda f: grad(lambda x: jvp(f, (x,), (x,))[1].sum())(X),
            lambda x: x.detach()), (False, False),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_a_value_has_a_history_if_a_level_differentiates_it(name: str) -> None:
    ask, expected = ASKED[name]
    assert ask() == expected


@pytest.mark.parametrize(
    ("recorded", "enabled", "seen"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
@pytest.mark.parametrize("counted", [True, False])
def test_what_is_written_back_is_recorded_and_counted_as_the_writes_were(
    recorded: bool, enabled: bool, seen: bool, counted: bool
) -> None:
    t, new = torch.zeros(2, requires_grad=True) * 1, torch.ones(2, requires_grad=True)
    with torch.set_grad_enabled(enabled):
        WrittenBack(new, recorded, counted).into(t)
    assert t.tolist() == [1.0, 1.0] and t._version == counted
    if counted:
        (g,) = torch.autograd.grad(t.sum(), new, allow_unused=True)
        assert (g is not None) is seen
