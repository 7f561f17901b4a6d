"""What is found in the objects that a program has at hand, and which programs are asked first.

Inside: ``runtime.aot.python_state.closed_over`` and ``Programs.recent``. How many steps deep
something is found, and in which order guards run, shows in few programs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import runtime
from runtime.aot import aot_function, make_fx, nop
from runtime.aot.calls.compiled_function import function_of
from runtime.aot.calls.known_programs import Programs
from runtime.aot.python_state import closed_over
from runtime.aot.python_state.closed_over import at_hand, generators_of, holds_values, modules_of

LAYER = nn.Linear(1, 1)


GENERATOR = torch.Generator()


def boxes(depth: int) -> Any:
    """``depth`` lists in one another around a text."""
    return [boxes(depth - 1)] if depth else "inside"


@pytest.mark.parametrize("depth, found", [(0, False), (1, False), (2, False), (3, True), (4, True)])
def test_what_is_at_hand_in_some_steps(depth: int, found: bool) -> None:
    assert ("inside" in list(at_hand(boxes(3), depth))) is found


def test_what_holds_itself_is_looked_through_in_some_steps() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert len(list(at_hand(ring, 3))) == 4


class Owner:
    def method(self, x: Any) -> Any:
        return x


OWNER = Owner()


def uses_layer(x: Any) -> Any:
    return LAYER(x)


def wrapper(x: Any) -> Any:
    return x


wrapper.__wrapped__ = uses_layer  # type: ignore[attr-defined]


def closure_of(value: Any) -> Callable[[], Any]:
    return lambda: value


HAND: dict[str, tuple[Any, list[Any]]] = {
    "partial": (functools.partial(max, 1, key=2), [max, 1, 2]),
    "method": (OWNER.method, [OWNER, Owner.method]),
    "closure": (closure_of(7), [7, None]),
    "function that uses a module": (uses_layer, [None, LAYER]),
    "list": ([1, 2], [1, 2]),
    "tuple": ((1, 2), [1, 2]),
    "dictionary": ({"a": 1}, [1]),
    "wrapper": (wrapper, [uses_layer]),
    "number": (1, []),
}


@pytest.mark.parametrize("name", HAND)
def test_what_is_at_hand_in_one_step(name: str) -> None:
    f, expected = HAND[name]
    assert list(at_hand(f, 1)) == [f, *expected]


@pytest.mark.parametrize("depth, found", [(3, True), (4, False)])
def test_modules_and_generators_are_found_in_three_steps(depth: int, found: bool) -> None:
    def around(x: Any) -> Any:
        for _ in range(depth):
            x = [x]
        return x

    assert (
        modules_of(around(LAYER)) == (LAYER,) * found
        and generators_of(around(GENERATOR)) == [GENERATOR] * found
    )


def test_a_variable_that_is_not_set_yet_is_passed_over() -> None:
    def f() -> Any:
        return later, LAYER

    assert list(at_hand(f, 1)) == [f, None, LAYER] and modules_of(f) == (LAYER,)
    later = 1
    assert list(at_hand(f, 1)) == [f, 1, None, LAYER]


@pytest.mark.parametrize("depth, found", [(5, True), (6, False)])
def test_values_are_found_in_five_steps(depth: int, found: bool) -> None:
    def around(x: Any) -> Any:
        for _ in range(depth):
            x = [x]
        return x

    kept: list[bool] = []

    def f(x: Any) -> Any:
        kept.extend((holds_values(around(x)), holds_values(SimpleNamespace(a=around(x)))))
        return x.sum()

    runtime.func.grad(f)(torch.ones(2))
    assert kept == [found, found]


def test_tensors_outside_of_a_trace_are_no_values_and_symbols_are() -> None:
    assert not holds_values([torch.ones(1), runtime.wrap(torch.ones(1)), 1])
    kept: list[bool] = []

    def f(x: Any) -> Any:
        kept.extend((holds_values([x.shape[0]]), holds_values([2])))
        return x * 1

    make_fx(f, tracing_mode="symbolic")(torch.ones(3))
    assert kept == [True, False]


def test_what_a_module_and_a_class_hold_is_not_looked_at() -> None:
    kept: list[bool] = []

    def f(x: Any) -> Any:
        module, kind = nn.Identity(), type("Kind", (), {"held": x})
        module.held = x
        kept.extend((holds_values(module), holds_values(kind), holds_values(kind())))
        return x.sum()

    runtime.func.grad(f)(torch.ones(2))
    assert kept == [False, False, False]


def test_modules_and_generators_at_hand() -> None:
    net = nn.Sequential(LAYER, nn.Identity())
    assert (
        modules_of(net) == (net, net[0], net[1])
        and modules_of(uses_layer) == (LAYER,)
        and modules_of(1) == ()
    )
    assert modules_of(functools.partial(lambda m, x: m(x), net)) == (net, net[0], net[1])
    own = torch.Generator()
    assert generators_of(lambda x: torch.rand(2, generator=GENERATOR)) == [GENERATOR]
    assert (
        generators_of(closure_of(own)) == [own]
        and generators_of(closure_of(torch.default_generator)) == []
    )


def test_values_are_found_in_objects_and_in_lists_of_them() -> None:
    found: list[bool] = []

    def f(x: Any) -> Any:
        things = (
            SimpleNamespace(a=x),
            SimpleNamespace(a=[{"b": (x,)}]),
            closure_of(x),
            [x],
            SimpleNamespace(a=1),
            LAYER,
            Owner,
            x,
        )
        found.extend(closed_over.holds_values(thing) for thing in things)
        return x.sum()

    runtime.func.grad(f)(torch.ones(2))
    assert found == [True, True, True, True, False, False, False, False]


def test_a_few_of_the_last_programs_are_asked_first_by_their_guards() -> None:
    recipe = aot_function(lambda x: x * 2, nop).recipe  # type: ignore[attr-defined]
    programs = Programs(recipe)
    f = function_of(recipe, programs)
    for n in range(1, 7):
        f(torch.ones(n))
        f(torch.ones(n))  # found again, and only now a guard pays
        (recent,) = programs.recent.values()
        assert len(recent) == min(n, 4)
        assert [take([torch.ones(n)]) is not None for take, _ in recent] == [True] + [False] * (
            len(recent) - 1
        )
    f(torch.ones(6))
    f(torch.ones(1))
    (recent,) = programs.recent.values()
    assert [
        [n for n in range(1, 7) if take([torch.ones(n)]) is not None] for take, _ in recent
    ] == [[1], [6], [5], [4]]
