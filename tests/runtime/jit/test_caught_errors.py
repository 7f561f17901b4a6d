"""A program that catches an error goes on in another way. A graph would go that way for ever, so it
is captured only where shapes and types decide whether the error comes."""

from __future__ import annotations

import contextlib
import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from runtime import jit

X = torch.tensor([3.0, 4.0])
SINGULAR, PLAIN = torch.zeros(2, 2), torch.eye(2)
Case = tuple[Callable[[Any], Any], torch.Tensor]
"""What a program tries, and an argument for which it is an error under capture."""


def _with_suppress(x: Any) -> Any:
    limit = torch.zeros(())
    with contextlib.suppress(Exception):
        limit = limit + float(x.norm())
    return limit


def _in_a_finally(x: Any) -> Any:
    total = x
    for _ in range(1):
        try:
            total = x * float(x.norm())
        finally:
            break  # noqa: B012
    return total


def _assign_data(x: Any) -> Any:
    x.data = x + 1
    return x


CASES: dict[str, Case] = {
    "float()": (lambda x: x * float(x.norm()), X),
    "int()": (lambda x: x * int(x[0]), X),
    "tolist()": (lambda x: x * x.tolist()[0], X),
    "numpy()": (lambda x: x * float((x + 1).numpy()[0]), X),
    "a pointer": (lambda x: x * float((x + 1).data_ptr() > 0), X),
    "a storage": (lambda x: x * (x + 1).untyped_storage().size(), X),
    "a deep copy": (lambda x: copy.deepcopy(x + 1), X),
    "pickle": (lambda x: pickle.loads(pickle.dumps(x + 1)), X),
    "a mask": (lambda x: x[x > 3].sum(), X),
    "an assignment to .data": (_assign_data, X),
}
OF_KERNELS: dict[str, Case] = {
    "a matrix that is not positive": (lambda x: torch.linalg.cholesky(x), SINGULAR),
    "a matrix without an inverse": (lambda x: torch.linalg.solve(x, PLAIN), SINGULAR),
    "an index that is too large": (lambda x: x[x.long()], X),
    "a class that is too large": (lambda x: F.one_hot(x.long(), 2), X),
    "a probability that is negative": (lambda x: torch.bernoulli(-x), X),
}
OTHER_WAYS: dict[str, Callable[[Any], Any]] = {
    "suppress": _with_suppress,
    "a break in finally": _in_a_finally,
}


def _tried(body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        try:
            return body(x)
        except Exception:
            return x - 1000

    return program


@pytest.mark.parametrize("name", CASES)
def test_a_program_that_catches_what_depends_on_values_is_refused(name: str) -> None:
    body, x = CASES[name]
    with pytest.raises(RuntimeError, match=r"the program catches .*jit\.outside"):
        jit(_tried(body))(x.clone())


@pytest.mark.parametrize("name", OF_KERNELS)
def test_a_call_whose_program_catches_an_error_of_a_kernel_runs_eagerly(name: str) -> None:
    body, x = OF_KERNELS[name]
    program = _tried(body)
    calls: list[int] = []

    def step(x: Any) -> Any:
        calls.append(len(calls))
        return program(x)

    f = jit(step)
    with pytest.warns(UserWarning, match=r"the program catches .*in which this call ran"):
        assert torch.equal(f(x.clone()), program(x.clone()))
    assert torch.equal(f(x.clone()), program(x.clone()))
    assert calls == [0, 1]


@pytest.mark.parametrize("name", CASES)
def test_it_runs_eagerly_where_that_is_asked_for(name: str) -> None:
    body, x = CASES[name]
    program = _tried(body)
    f = jit(program, on_break="eager")
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # says why it cannot be captured
            torch.testing.assert_close(f(x.clone()), program(x.clone()))


@pytest.mark.parametrize("name", OTHER_WAYS)
def test_there_are_other_ways_to_catch(name: str) -> None:
    with pytest.raises(RuntimeError, match="the program catches"):
        jit(OTHER_WAYS[name])(X)


SETTLED: dict[str, Callable[[Any], Any]] = {
    "a shape": lambda x: x.view(3),
    "an index past the end": lambda x: x[5],
    "a product of other sizes": lambda x: x @ torch.ones(3),
    "an attribute": lambda x: x.missing,
    "the program's own": lambda x: [][0],
}


@pytest.mark.parametrize("name", SETTLED)
def test_an_error_of_shapes_and_of_the_programs_own_may_be_caught(name: str) -> None:
    program = _tried(SETTLED[name])
    f = jit(program)
    assert torch.equal(f(X), program(X)) and torch.equal(f(X + 1), program(X + 1))
    assert len(jit.explain(f).programs) == 1


def test_the_error_that_a_custom_function_raises_itself_may_be_caught() -> None:
    class Picky(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            raise ValueError("too picky")

    program = _tried(Picky.apply)
    assert torch.equal(jit(program)(X), program(X))


# ----------------------------------------------------------------- numbers of Python's state

NUMBERS: dict[str, Callable[[int], Any]] = {
    "a quotient": lambda n: 1 / (n - 3),
    "a quotient in whole numbers": lambda n: 10 // (n - 3),
    "a remainder": lambda n: 10 % (n - 3),
    "a negative power of 0": lambda n: (n - 3) ** -1,
    "a power that is no integer": lambda n: 2 ** (3 - n),
    "a shift": lambda n: 1 << (3 - n),
    "a quotient that nobody uses": lambda n: (1 / (n - 3), 7)[1],
    "a shift that nobody uses": lambda n: (1 << (3 - n), 7)[1],
    "the class of a power": lambda n: len(str(2 ** (3 - n))),
    "the sign of 0": lambda n: str((n - 3) * -0.0),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_arithmetic_of_the_state_raises_where_python_does(name: str) -> None:
    def run(wrap: Callable[[Any], Any]) -> list[object]:
        state: dict[str, Any] = {"n": 0, "caught": 0, "seen": []}

        def step(x: Any) -> Any:
            state["n"] += 1
            try:
                value = NUMBERS[name](state["n"])
            except (ZeroDivisionError, ValueError):
                state["caught"] += 1
                value = 1000
            state["seen"] = value
            return x * (1 if isinstance(value, str) else value)

        f = wrap(step)
        return [(f(X).tolist(), dict(state)) for _ in range(5)]

    assert repr(run(jit)) == repr(run(lambda f: f))


def test_a_power_of_a_number_of_the_state_that_is_complex_is_not_taken_for_a_real_one() -> None:
    state = {"t": 1.5}

    def step(x: Any) -> Any:
        state["t"] -= 1.0
        return x * (2 if isinstance(state["t"] ** 0.5, complex) else 3)

    f = jit(step)
    assert [int(f(X)[0] / X[0]) for _ in range(4)] == [3, 2, 2, 2]


# ----------------------------------------------------------------- what else a sixth attack found


def test_a_container_that_the_program_has_once_replaced_is_changed_in_place() -> None:
    def run(wrap: Callable[[Any], Any]) -> list[object]:
        state: dict[str, Any] = {"counts": {"k": 0}, "fresh": True}

        def step(x: Any) -> Any:
            if state["fresh"]:
                state["counts"] = dict(state["counts"])
                state["fresh"] = False
            state["counts"]["k"] += 1
            return x * state["counts"]["k"]

        f = wrap(step)
        seen: list[object] = []
        for _ in range(5):
            alias = state["counts"]
            f(X)
            seen.append((alias is state["counts"], alias["k"], state["counts"]["k"]))
        return seen

    assert run(jit) == run(lambda f: f)


def test_a_tensor_is_no_key_of_a_dictionary_that_stays() -> None:
    counts: dict[Any, int] = {}

    def count(x: Any) -> Any:
        counts[x] = counts.get(x, 0) + 1
        return x

    with pytest.raises(RuntimeError, match="a dict from outside"):
        jit(count)(X)
    with pytest.raises(RuntimeError, match="with a tensor as a key"):
        jit(lambda x: {x: x + 1})(X)
    assert not counts


def test_a_module_that_comes_into_sys_modules_is_state(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    f = jit(lambda x: x * (2 if "runtime_plug" in sys.modules else 1))
    assert torch.equal(f(X), X)
    monkeypatch.setitem(sys.modules, "runtime_plug", ModuleType("runtime_plug"))
    assert torch.equal(f(X), X * 2)


def test_attributes_of_a_jitted_module_are_those_of_the_module() -> None:
    class Scaled(torch.nn.Module):
        scale = 2.0

        def forward(self, x: Any) -> Any:
            return x * self.scale

    module = Scaled()
    f = jit(module)
    assert torch.equal(f(X), X * 2)
    f.scale = 5.0
    assert torch.equal(f(X), X * 5) and module.scale == f.scale == 5.0
    assert torch.equal(copy.deepcopy(f)(X), X * 5)
    del f.scale
    assert torch.equal(f(X), X * 2)
    with pytest.raises(AttributeError, match="'Scaled' object has no attribute 'missing'"):
        _ = f.missing


def test_a_checkpointed_function_changes_pythons_state_as_often_as_in_eager_mode() -> None:
    def run(wrap: Callable[[Any], Any]) -> list[int]:
        weight, state = torch.ones(2, requires_grad=True), {"calls": 0}

        def block(x: Any) -> Any:
            state["calls"] += 1
            return (x * weight).sin()

        def step(x: Any) -> Any:
            loss = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum()
            loss.backward()
            return loss.detach()

        f = wrap(step)
        seen = []
        for _ in range(3):
            f(X)
            seen.append(state["calls"])
        return seen

    assert run(jit) == run(lambda f: f) == [2, 4, 6]


def test_a_check_compares_weak_keys_by_what_they_refer_to() -> None:
    import weakref

    class Key:
        pass

    key = Key()
    table: weakref.WeakKeyDictionary[Key, float] = weakref.WeakKeyDictionary()

    def step(x: Any) -> Any:
        table[key] = 2.0
        return x * table[key]

    assert torch.equal(jit(step, check=1)(X), X * 2)


class _OfAnotherShape(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0][0]


def _differentiate_wrongly(x: torch.Tensor) -> torch.Tensor:
    apply: Any = _OfAnotherShape.apply
    (gradient,) = torch.autograd.grad(apply(x).sum(), x)
    return gradient


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.zeros(3).add_(x),
        lambda x: copy.deepcopy(x * 2),
        _differentiate_wrongly,
    ],
    ids=["a write", "a copy", "a gradient"],
)
def test_an_error_that_comes_in_each_call_may_be_caught(
    call: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        try:
            return call(x)
        except RuntimeError:
            return x.detach() * 3

    x = torch.ones(2, 3, requires_grad=True)
    assert torch.equal(jit(f)(x), f(x)) and torch.equal(f(x), torch.full((2, 3), 3.0))
