"""Containers and objects that a call is given, and that the program also finds by a way that no
attribute shows: a weak reference, a proxy, the dictionary of an object."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit

X = torch.arange(3.0)


@dataclass(eq=False)
class State:
    h: Tensor


class Sampler:
    def rate(self) -> int:
        return 2


def _as_it_is(f: Callable[..., Any]) -> Callable[..., Any]:
    return f


def _weak(hold: Callable[[State], Any], find: Callable[[Any], Any]) -> Callable[..., Any]:
    def calls(wrap: Callable[..., Any]) -> Iterator[object]:
        given = State(X * 0)
        held = hold(given)

        def step(state: State, x: Tensor) -> Any:
            state.h = state.h + x
            return find(held).h * 1, find(held) is state

        f = wrap(step)
        for i in range(4):
            yield f(given, X + i), given.h

    return calls


def _behind_a_proxy(wrap: Callable[..., Any]) -> Iterator[object]:
    given = {"h": X * 0}
    proxy = MappingProxyType(given)

    def step(memory: Any, x: Tensor) -> Tensor:
        memory["h"] = proxy["h"] + x
        return proxy["h"] * 1

    f = wrap(step)
    for i in range(4):
        yield f(given, X + i), given


def _written_and_read_by_a_proxy(wrap: Callable[..., Any]) -> Iterator[object]:
    memory: dict[str, Any] = {"h": X * 0, "n": 0}
    proxy = MappingProxyType(memory)

    def step(x: Tensor) -> Any:
        memory["h"] = proxy["h"] + x * proxy["n"]
        return proxy["h"] * 1

    f = wrap(step)
    for i in range(4):
        memory["n"] = i
        yield f(X), memory


def _names_of_a_class(wrap: Callable[..., Any]) -> Iterator[object]:
    class Settings:
        rate = 2.0

    names = vars(Settings)
    f = wrap(lambda x: x * names["rate"])
    for i in range(4):
        Settings.rate = i + 0.5
        yield f(X)


def _returned_dictionary(wrap: Callable[..., Any]) -> Iterator[object]:
    t = SimpleNamespace(h=X * 0)

    def step(x: Tensor) -> Any:
        t.h = t.h + x
        return vars(t)

    f = wrap(step)
    for i in range(4):
        result = f(X + i)
        yield result is vars(t), result["h"]


def _assigned_dictionary(wrap: Callable[..., Any]) -> Iterator[object]:
    t, other = SimpleNamespace(h=X * 0), SimpleNamespace(own=None)

    def step(x: Tensor) -> Tensor:
        t.h = t.h + x
        other.own = vars(t)
        return x * 1

    f = wrap(step)
    for i in range(4):
        yield f(X + i), other.own is vars(t), other.own["h"]


def _reference_to_the_state(wrap: Callable[..., Any]) -> Iterator[object]:
    t = SimpleNamespace(state=State(X * 0), found=None)

    def step(x: Tensor) -> Tensor:
        t.found = weakref.ref(t.state)
        t.state.h = t.state.h + x
        result: Tensor = t.found().h * 1
        return result

    f = wrap(step)
    for i in range(4):
        yield f(X + i), t.found() is t.state


WAYS: dict[str, Callable[[Callable[..., Any]], Iterator[object]]] = {
    "a weak reference": _weak(weakref.ref, lambda held: held()),
    "a weak set": _weak(lambda x: weakref.WeakSet([x]), lambda held: next(iter(held))),
    "a weak dictionary": _weak(
        lambda x: weakref.WeakValueDictionary(it=x), lambda held: held["it"]
    ),
    "a proxy": _behind_a_proxy,
    "a proxy of the state": _written_and_read_by_a_proxy,
    "the names of a class": _names_of_a_class,
    "a returned dictionary": _returned_dictionary,
    "an assigned dictionary": _assigned_dictionary,
    "an assigned reference": _reference_to_the_state,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_call_gives_and_leaves_what_eager_mode_does(way: str) -> None:
    assert repr(list(WAYS[way](jit))) == repr(list(WAYS[way](_as_it_is)))


def _writes_the_dictionary(t: Any, own: Any, x: Tensor) -> Tensor:
    own["h"] = own["h"] + x
    result: Tensor = t.h * 1
    return result


def _writes_the_object(t: Any, own: Any, x: Tensor) -> Tensor:
    t.h = t.h + x
    result: Tensor = own["h"] * 1
    return result


@pytest.mark.parametrize("program", [_writes_the_dictionary, _writes_the_object])
def test_the_dictionary_of_an_object_of_the_program_is_no_argument(
    program: Callable[..., Tensor],
) -> None:
    t = SimpleNamespace(h=X * 0)
    with pytest.raises(RuntimeError, match=r"the dictionary in which 't' .*test_hidden_holders"):
        jit(lambda own, x: program(t, own, x))(vars(t), X)
    assert t.h.tolist() == [0, 0, 0]


def test_the_defaults_of_a_function_of_the_program_are_no_argument() -> None:
    def helper(x: Tensor, *, scale: Tensor = X) -> Tensor:
        return x * scale

    def step(defaults: Any, x: Tensor) -> Tensor:
        defaults["scale"] = x
        return helper(x)

    with pytest.raises(RuntimeError, match=r"the dictionary in which .*helper keeps its values"):
        jit(step)(helper.__kwdefaults__, X)


def test_an_object_and_its_dictionary_are_no_two_arguments() -> None:
    def step(state: State, own: Any, x: Tensor) -> Tensor:
        own["h"] = state.h + x
        return state.h * 1

    given = State(X * 0)
    with pytest.raises(RuntimeError, match="the dictionary in which a State keeps its values"):
        jit(step)(given, vars(given), X)


def test_the_dictionary_of_an_object_that_the_program_does_not_find_is_one() -> None:
    t = SimpleNamespace(h=X * 0)

    def step(own: Any, x: Tensor) -> Tensor:
        own["h"] = own["h"] + x
        result: Tensor = own["h"] * 2
        return result

    f = jit(step)
    for i in range(3):
        f(vars(t), X)
        assert t.h.tolist() == [0, i + 1, 2 * (i + 1)]


def test_a_reference_to_what_the_program_makes_is_refused() -> None:
    t = SimpleNamespace(state=State(X * 0), found=None)

    def step(x: Tensor) -> Tensor:
        t.state = State(t.state.h + x)
        t.found = weakref.ref(t.state)
        return x * 1

    with pytest.raises(RuntimeError, match=r"assigns a ReferenceType.* to 'found' of"):
        jit(step)(X)


def test_a_weak_method_is_the_same_in_each_call() -> None:
    sampler = Sampler()
    method = weakref.WeakMethod(sampler.rate)

    def step(x: Tensor) -> Tensor:
        rate: Any = method()
        result: Tensor = x * rate()
        return result

    f = jit(step)
    for _ in range(4):
        assert f(X).tolist() == [0, 2, 4]
    assert len(f.captured) == 1


def test_a_weak_reference_keeps_nothing_alive() -> None:
    given = State(X * 0)
    found = weakref.ref(given)

    def step(state: State, x: Tensor) -> Any:
        state.h = state.h + x
        return found() is state

    f = jit(step)
    assert f(given, X) is True
    del given
    assert found() is None
