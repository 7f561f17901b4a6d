"""Which paths the code of a function reads, and where they begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from runtime.aot.python_state.paths import Path, Root, Step, paths_of

RATES: dict[str, Any] = {}


def text(path: Path) -> str:
    """``a.b["c"]!`` for a local variable; ``::`` before a global one, ``^`` before one of a
    function around, ``?`` for what has no name, ``~`` before an attribute that may be missing,
    ``!`` after what is used as a whole."""
    start = {Root.LOCAL: "", Root.GLOBAL: "::", Root.CELL: "^", Root.UNKNOWN: "?"}[
        path.root
    ] + path.name
    shown = {Step.ATTRIBUTE: ".{}", Step.NAMED: "~{}", Step.ITEM: "[{!r}]"}
    return start + "".join(shown[step].format(name) for step, name in path.steps) + "!" * path.ends


def item_of_a_tuple(a: Any) -> Any:
    return a[1, 2]


def counted(a: Any) -> None:
    a.calls += 1


def counted_item(a: Any) -> None:
    a["first"] += 1


def stands_for_a_path(a: Any) -> Any:
    b = a.b["x"]
    return b.c


def stands_for_another(a: Any) -> Any:
    b = a.b
    c = b.c
    return c.d


def assigned_twice(a: Any, x: Any) -> Any:
    b = a.b
    if x:
        b = a.c
    return b.d


def deleted(a: Any) -> Any:
    b = a.b
    del b
    return b.c  # type: ignore[misc]  # noqa: F821


def an_argument_that_is_assigned(x: Any, a: Any) -> Any:
    x = a.b
    return x.c


def a_named_argument_that_is_assigned(a: Any, *, x: Any) -> Any:
    x = a.b
    return x.c


def assigned_to_an_attribute(a: Any, x: Any) -> None:
    a.b.c = x


def unpacked(a: Any) -> Any:
    b, _ = a.p
    return b.d


def a_constant(a: Any) -> Any:
    a.b  # noqa: B018
    b = "text"
    return b.c  # type: ignore[attr-defined]


def looped_over(a: Any) -> None:
    for x in a.b:
        x.c  # noqa: B018


def spread(a: Any, f: Any) -> Any:
    return f(*a.b).c


def variables_around(a: Any, k: Any = None, *, w: Any) -> Any:
    b = a.p
    return lambda z: (a.c, b.d, w.e, k.f, z.g, RATES, z)


def of_two_around(a: Any) -> Any:
    return lambda: lambda: a.b


READ: dict[str, tuple[Callable[..., Any], str]] = {
    "attributes": (lambda a: a.b.c, "a a.b a.b.c a.b.c!"),
    "an item by a text": (lambda a: a["k"], "a a['k'] a['k']!"),
    "an item by a number": (lambda a: a[0].b, "a a[0] a[0].b a[0].b!"),
    "an item by a tuple": (item_of_a_tuple, "a a!"),
    "an item by a variable": (lambda a, i: a[i].b, "a a! i i! ?.b ?.b!"),
    "a method": (lambda a: a.run(1), "a a.run a.run!"),
    "getattr": (lambda a: getattr(a.b, "scale"), "::getattr ::getattr! a a.b a.b! a.b~scale"),  # noqa: B009
    "getattr with a default": (
        lambda a: getattr(a, "scale", None),
        "::getattr ::getattr! a a! a~scale",
    ),
    "hasattr": (lambda a: hasattr(a, "scale"), "::hasattr ::hasattr! a a! a~scale"),
    "another function of a name": (lambda a, f: f(a, "scale"), "f f! a a! a.scale"),
    "another function of a number": (lambda a, f: f(a, 1), "f f! a a!"),
    "a count": (counted, "a a.calls a.calls!"),
    "a count of an item": (counted_item, "a a['first'] a['first']!"),
    "a global item": (lambda: RATES["k"], "::RATES ::RATES['k'] ::RATES['k']!"),
    "two variables": (lambda a, b: a + b, "a a! b b!"),
    "a result": (lambda f: f().a.b, "f f! ?.a ?.a.b ?.a.b!"),
    "a sum": (lambda a, b: (a + b).c, "a a! b b!"),
    "an item of a loop": (looped_over, "a a.b a.b! ? ?.c ?.c!"),
    "a result of what is spread": (spread, "f f! a a.b a.b! ?.c ?.c!"),
    "what stands for a path": (stands_for_a_path, "a a.b a.b['x'] a.b['x'].c a.b['x'].c!"),
    "what stands for such a variable": (stands_for_another, "a a.b a.b.c a.b.c.d a.b.c.d!"),
    "a variable that is assigned twice": (assigned_twice, "a a.b a.b! x x! a.c a.c! b b.d b.d!"),
    "a variable that is deleted": (deleted, "a a.b a.b! b b.c b.c!"),
    "an argument that is assigned": (an_argument_that_is_assigned, "a a.b a.b! x x.c x.c!"),
    "a named argument that is assigned": (
        a_named_argument_that_is_assigned,
        "a a.b a.b! x x.c x.c!",
    ),
    "an attribute that is assigned": (assigned_to_an_attribute, "x x! a a.b a.b!"),
    "what is unpacked": (unpacked, "a a.p a.p! b b.d b.d!"),
    "a constant": (a_constant, "a a.b a.b! b b.c b.c!"),
    "a variable around": (lambda a: lambda: a.b, "a a.b a.b!"),
    "variables around and its own": (
        variables_around,
        "a a.p a.p! a.c a.c! w w.e w.e! k k.f k.f! ?.g ?.g! ::RATES ::RATES!",
    ),
    "a variable around two": (of_two_around, "a a.b a.b!"),
    "a variable around both": (of_two_around(1), "^a ^a.b ^a.b!"),
}


@pytest.mark.parametrize("name", READ)
def test_paths_that_a_function_reads(name: str) -> None:
    f, expected = READ[name]
    found = paths_of(f.__code__)
    assert sorted(map(text, found)) == sorted(expected.split())
    assert len(set(found)) == len(found)
