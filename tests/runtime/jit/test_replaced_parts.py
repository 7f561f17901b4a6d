"""Parts of objects that somebody replaces between two calls: dictionaries of attributes, defaults,
names of classes. Each is asked for after the first call, by the general way and by the guard."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from runtime import jit

pytestmark = pytest.mark.usefixtures("guards")

X = torch.arange(3.0)
States = list[Callable[[], object]]
TURNS = (0, 1, 0, 0, 1, 2, 1, 1, 2, 0, 2, 2)


class Rate:
    rate = 2.0


class Other:
    rate = 9.0


def of_dictionary() -> tuple[Callable[[Any], Any], States]:
    """One dictionary for another, with the same keys and with others."""
    t: Any = Rate()
    return lambda x: x * t.rate, [
        lambda: setattr(t, "__dict__", {}),
        lambda: setattr(t, "__dict__", {"rate": 3.0}),
        lambda: setattr(t, "__dict__", {"rate": 4.0}),
    ]


def of_dictionary_with_numbers() -> tuple[Callable[[Any], Any], States]:
    """A number becomes an argument of the program, and its dictionary is replaced afterwards."""
    t: Any = Rate()
    return lambda x: x * t.rate, [
        lambda: setattr(t, "__dict__", {"rate": 3.0}),
        lambda: setattr(t, "rate", 5.0),
        lambda: setattr(t, "rate", 6.0),
    ]


def of_function_attributes() -> tuple[Callable[[Any], Any], States]:
    def scaled(x: Any) -> Any:
        return x * scaled.rate  # type: ignore[attr-defined]

    return lambda x: scaled(x), [
        functools.partial(setattr, scaled, "__dict__", {"rate": rate}) for rate in (1.0, 2.0, 3.0)
    ]


def of_what_functions_say() -> tuple[Callable[[Any], Any], States]:
    """The names and the documentation of functions, of one and of many."""
    functions = list(map(_made, range(12)))

    def length(x: Any) -> Any:
        words = [(f.__name__, f.__qualname__, f.__doc__, f.__module__) for f in functions]
        return x * sum(len(word or "") for labels in words for word in labels)

    return length, [
        functools.partial(setattr, functions[7], "__name__", "longer"),
        functools.partial(setattr, functions[3], "__doc__", "Return nothing."),
        functools.partial(setattr, functions[9], "__qualname__", "another_name"),
    ]


def _made(number: int) -> Callable[[], None]:
    def made() -> None: ...

    made.__name__ = f"made_{number}"
    return made


def of_class_names() -> tuple[Callable[[Any], Any], States]:
    """A name comes and another one goes, so that there are as many names, and the last one is the
    same."""

    class Base:
        def scaled(self, x: Any) -> Any:
            return x * 2

    class Derived(Base):
        extra = 1
        last = 2

    del Derived.last
    Derived.last = 2  # so that it comes last

    def shadow(gone: str, name: str, value: Any) -> None:
        if gone in vars(Derived):
            delattr(Derived, gone)
            setattr(Derived, name, value)
            del Derived.last
            Derived.last = 2

    t = Derived()
    return lambda x: t.scaled(x), [
        lambda: shadow("scaled", "extra", 1),
        lambda: shadow("extra", "scaled", lambda self, x: x * 3),
    ]


def of_metaclass() -> tuple[Callable[[Any], Any], States]:
    class Two(type):
        rate = 2.0

    class Three(type):
        rate = 3.0

    class Scaled(metaclass=Two):
        pass

    return lambda x: x * Scaled.rate, [
        functools.partial(setattr, Scaled, "__class__", meta) for meta in (Two, Three)
    ]


def of_partial() -> tuple[Callable[[Any], Any], States]:
    f = functools.partial(torch.mul, other=2.0)
    return lambda x: f(x), [
        lambda: f.__setstate__((torch.mul, (), {"other": 2.0}, {})),  # type: ignore[attr-defined]
        lambda: f.__setstate__((torch.add, (), {"other": 2.0}, {})),  # type: ignore[attr-defined]
    ]


def _with_builtins(own: Any) -> tuple[Callable[[Any], Any], States]:
    """A function of a sandbox, whose names are looked up in other builtins than Python's own."""
    space: dict[str, Any] = {"__builtins__": own}
    exec("def f(x): return x * abs(-3.0)", space)
    names = vars(own) if isinstance(own, ModuleType) else own
    return space["f"], [
        functools.partial(names.__setitem__, "abs", lambda _, rate=rate: rate)
        for rate in (2.0, 3.0, 5.0)
    ]


def of_builtins() -> tuple[Callable[[Any], Any], States]:
    return _with_builtins(dict(vars(builtins)))


def of_few_builtins() -> tuple[Callable[[Any], Any], States]:
    return _with_builtins({"abs": abs})


def of_a_module_of_builtins() -> tuple[Callable[[Any], Any], States]:
    module = ModuleType("own")
    module.__dict__.update(vars(builtins))
    return _with_builtins(module)


@pytest.mark.parametrize("others", [0, 12])
@pytest.mark.parametrize(
    "made",
    [
        of_dictionary,
        of_dictionary_with_numbers,
        of_function_attributes,
        of_what_functions_say,
        of_class_names,
        of_metaclass,
        of_partial,
        of_builtins,
        of_few_builtins,
        of_a_module_of_builtins,
    ],
    ids=lambda made: made.__name__,
)
def test_what_is_replaced_between_calls_is_seen(
    made: Callable[[], tuple[Callable[[Any], Any], States]], others: int
) -> None:
    f, states = made()
    # of few objects each is asked by itself, and of many all at once
    more = [type(f"Other{i}", (Other,), {})() for i in range(others)]

    def program(x: Any) -> Any:
        return f(x) + sum(t.rate for t in more)

    jitted = jit(program, limit=20)
    for i, turn in enumerate(TURNS):
        states[turn % len(states)]()
        assert torch.equal(jitted(X + i), program(X + i))


@pytest.mark.parametrize("gone", [None, {}])
def test_a_default_that_is_gone_at_the_second_call_is_missing(gone: Any) -> None:
    def scaled(x: Any, *, rate: float = 2.0) -> Any:
        return x * rate

    f = jit(lambda x: scaled(x))
    for _ in range(2):
        scaled.__kwdefaults__ = {"rate": 2.0}
        assert torch.equal(f(X), X * 2)
        scaled.__kwdefaults__ = gone
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument"):
            f(X)


@pytest.mark.parametrize("computed", [False, True])
def test_a_program_that_replaces_a_dictionary_of_attributes_is_refused(computed: bool) -> None:
    t: Any = Rate()
    t.rate = 2.0
    own = vars(t)

    @jit
    def f(x: Any) -> Any:
        t.__dict__ = {"rate": x * 2 if computed else 3.0}
        t.more = 1
        return x

    with pytest.raises(RuntimeError, match=r"the __dict__ of 't'(.|\n)*test_replaced_parts.py:\d+"):
        f(X)
    assert vars(t) is own and own == {"rate": 2.0}


def _turn(x: Any) -> None:
    x.shape = (3, 1) if x.ndim == 1 else (3,)


def _resize(x: Any) -> None:
    x.resize((4,) if x.size == 3 else (3,), refcheck=False)


def _retype(x: Any) -> None:
    x.dtype = np.int64 if x.dtype == np.float64 else np.float64


@pytest.mark.parametrize("change", [_turn, _resize, _retype])
def test_an_array_that_a_program_lays_out_anew_is_laid_out_by_each_call(change: Any) -> None:
    states = [SimpleNamespace(array=np.array([1.0, 3.0, 2.0])) for _ in range(2)]

    def program(state: Any, x: Any) -> Any:
        change(state.array)
        return x * float(state.array.reshape(-1)[0]) * state.array.ndim

    eager, own = states
    jitted = jit(lambda x: program(own, x))
    for _ in range(4):
        assert torch.equal(jitted(X), program(eager, X))
        assert own.array.shape == eager.array.shape and own.array.dtype == eager.array.dtype
        assert own.array.tolist() == eager.array.tolist()
