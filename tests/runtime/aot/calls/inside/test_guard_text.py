"""The text of a guard, what it asks and what it gives.

Inside: ``runtime.aot.calls.guards``. A guard that asks too much or in another order gives the same
results, only slower, and one that gives something else gives it to the code behind it alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import runtime
from runtime.aot.calls.arguments import enter
from runtime.aot.calls.guards import Sizes, Take, guard
from runtime.aot.capture.aliasing import sharing
from runtime.aot.python_state.reads import FACTS, Read, facts


def taking(
    given: Sequence[Any],
    closed: Sequence[Any] = (),
    reads: Sequence[Read] = (),
    groups: Any = None,
    sizes: Sizes | None = None,
    tracked: bool = True,
    unknown: Sequence[int] = (),
) -> Take | None:
    dynamic = sizes is not None and sizes.dynamic
    call, outside = enter(given, tracked, dynamic), enter(closed, tracked, False)
    assert call is not None and outside is not None
    kinds = [kind[:2] if i in unknown else kind for i, kind in enumerate(call.kinds)]
    return guard(given, kinds, closed, outside.kinds, reads, groups, sizes, tracked)


def text(take: Any) -> str:
    """The lines of the guard after the number of arguments, without the numbers of its
    constants."""
    if take is None:
        return "none"
    lines = [
        line.strip() for line in take.__globals__["__loader__"].get_source("").splitlines()[1:]
    ]
    assert lines.pop(0).startswith("if len(given) != ")
    found = "; ".join(line.replace(": return None", "") for line in lines)
    return re.sub(
        r"\b([kTtp]|tensors)\d+\b", lambda m: m[0] if m[1] in "tp" else m[1], found
    ).replace("if not ", "? ")


def plain() -> Any:
    return torch.ones(2, 3)


def of_torch() -> Any:
    return torch.ones(2, 3, requires_grad=True)


def leaf() -> Any:
    return runtime.wrap(torch.ones(2, 3), True)


def sparse() -> Any:
    return torch.eye(2).to_sparse()


SIZES = Sizes(lambda *args: True, [0], True)
NUMBERS = Sizes(lambda *args: True, [1], False)
OTHER = torch.ones(1)
OWNER = {"a": 1.0}
CASES: dict[str, tuple[Callable[[], Take | None], str]] = {
    "plain": (
        lambda: taking([plain()]),
        (
            "[x0] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? (tensors.check(x0)); "
            "return Call([x0], [x0], [], k)"
        ),
    ),
    "without grad": (
        lambda: taking([plain()], tracked=False),
        "[x0] = given; ? (type(x0) is T); ? (tensors.check(x0)); return Call([x0], [x0], [], k)",
    ),
    "of torch": (
        lambda: taking([of_torch()]),
        (
            "[x0] = given; ? (type(x0) is T); ? (x0.requires_grad); t0 = x0 = k(x0); ? "
            "(tensors.check(t0._inner)); return Call([x0], [t0._inner], [t0], k)"
        ),
    ),
    "leaf": (
        lambda: taking([leaf()]),
        (
            "[x0] = given; ? (type(x0) is T); p0 = x0._inner; t0 = edge_of(x0) if x0._edge "
            "is not None or x0._view is not None else x0; ? (t0 is not None and (t0 is not x0 "
            "or x0._req)); ? (tensors.check(p0)); return Call([x0], [p0], [t0], k)"
        ),
    ),
    "leaf without grad": (
        lambda: taking([leaf()], tracked=False),
        (
            "[x0] = given; ? (type(x0) is T); p0 = x0._inner; ? (tensors.check(p0)); "
            "return Call([x0], [p0], [], k)"
        ),
    ),
    "of the session": (
        lambda: taking([runtime.wrap(torch.ones(2))]),
        (
            "[x0] = given; ? (type(x0) is T); p0 = x0._inner; ? "
            "(not x0._req and x0._edge is None and (x0._view is None or edge_of(x0) is None)); ? "
            "(tensors.check(p0)); return Call([x0], [p0], [], k)"
        ),
    ),
    "sparse": (
        lambda: taking([sparse()]),
        (
            "[x0] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? "
            "(kind_of(x0, False, False) == k); return Call([x0], [x0], [], k)"
        ),
    ),
    "two": (
        lambda: taking([plain(), leaf()]),
        (
            "[x0, x1] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? (type(x1) is T); "
            "p1 = x1._inner; t1 = edge_of(x1) if x1._edge is not None or x1._view "
            "is not None else x1; ? (t1 is not None and (t1 is not x1 or x1._req)); ? "
            "(tensors.check(x0, p1)); return Call([x0, x1], [x0, p1], [t1], k)"
        ),
    ),
    "numbers": (
        lambda: taking([plain(), 1, 1.5, "a", None, True, (1,)]),
        (
            "[x0, x1, x2, x3, x4, x5, x6] = given; ? (type(x0) is T); ? "
            "(not x0.requires_grad); ? (type(x1) is T); ? (x1 == k); ? (type(x2) is T); "
            "? ((x2 is k or same(x2, k))); ? (type(x3) is T); ? (x3 == k); "
            "? (type(x4) is T); ? (x4 == k); ? (type(x5) is T); ? (x5 == k); ? "
            "(type(x6) is T); ? ((x6 is k or same(x6, k))); ? (tensors.check(x0)); "
            "return Call([x0, x1, x2, x3, x4, x5, x6], [x0, x1, x2, x3, x4, x5, x6], [], k)"
        ),
    ),
    "a float of any value": (
        lambda: taking([plain(), 1.5], sizes=NUMBERS, unknown=[1]),
        (
            "[x0, x1] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? "
            "(type(x1) is T); ? (x1 - x1 == 0.0); ? (tensors.check(x0)); ? (k(x1)); "
            "return Call([x0, x1], [x0, x1], [], k)"
        ),
    ),
    "an integer of any value": (
        lambda: taking([plain(), 2], sizes=NUMBERS, unknown=[1]),
        (
            "[x0, x1] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? (type(x1) is T); ? "
            "(k(x1)); ? (tensors.check(x0)); ? (k(x1)); return Call([x0, x1], [x0, x1], [], k)"
        ),
    ),
    "any sizes": (
        lambda: taking([plain(), 2], sizes=SIZES),
        (
            "[x0, x1] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? "
            "(kind_of(x0, False, True) == k); ? (type(x1) is T); ? (x1 == k); ? (k(x0)); "
            "return Call([x0, x1], [x0, x1], [], k)"
        ),
    ),
    "closed over": (
        lambda: taking([plain()], [plain()]),
        (
            "[x0] = given; ? (type(x0) is T); ? (not x0.requires_grad); "
            "? (tensors.check(x0, *k)); return Call([x0, *k], [x0, *k], [], k)"
        ),
    ),
    "closed over without grad": (
        lambda: taking([plain()], [plain()], tracked=False),
        (
            "[x0] = given; ? (type(x0) is T); ? (tensors.check(x0, *k)); "
            "return Call([x0, *k], [x0, *k], [], k)"
        ),
    ),
    "closed over of torch": (
        lambda: taking([plain()], [of_torch()]),
        (
            "[x0] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? "
            "(tensors.check(x0, *k)); ? (list(map(k, k)) == k); "
            "return Call([x0, *k], [x0, *k], [*k], k)"
        ),
    ),
    "closed-over leaf": (
        lambda: taking([plain()], [leaf()]),
        (
            "[x0] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? "
            "(tensors.check(x0, *k)); ? (all(map(k, map(k, k), k)) and all(map(k, map(k, k), k)) "
            "and all(map(k, map(k, k), k(None))) and all(map(k, map(k, k), k(None)))); "
            "return Call([x0, *k], [x0, *k], [*k], k)"
        ),
    ),
    "closed over of the session": (
        lambda: taking([plain()], [runtime.wrap(torch.ones(2))]),
        (
            "[x0] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? "
            "(tensors.check(x0, *k)); ? (all(map(k, map(k, k), k)) and all(map(k, map(k, k), k)) "
            "and all(map(k, map(k, k), k(None))) and all(map(k, map(k, k), k(None)))); "
            "return Call([x0, *k], [x0, *k], [], k)"
        ),
    ),
    "closed-over result": (
        lambda: taking([plain()], [leaf() * 1]),
        "none",
    ),
    "closed-over view": (
        lambda: taking([plain()], [leaf()[0]]),
        "none",
    ),
    "closed-over sparse": (
        lambda: taking([plain()], [sparse()]),
        (
            "[x0] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? "
            "(tensors.check(x0)); ? (k(k, False, False) == k and k.requires_grad is False); "
            "return Call([x0, *k], [x0, *k], [], k)"
        ),
    ),
    "closed-over sparse of torch": (
        lambda: taking([plain()], [sparse().requires_grad_()]),
        "none",
    ),
    "a read": (
        lambda: taking([plain()], reads=[Read(OWNER, "a", 1.0)]),
        "[x0] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? (tensors.check(x0)); "
        "? ((k.get('a', k) is k or k(k.get('a', k), k))); return Call([x0], [x0], [], k)",
    ),
    "what a tensor says": (
        lambda: taking([plain()], reads=[Read(OTHER, FACTS, facts(OTHER))]),
        (
            "[x0] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? (tensors.check(x0, *k)); "
            "return Call([x0], [x0], [], k)"
        ),
    ),
    "what a sparse tensor says": (
        lambda: (lambda t: taking([plain()], reads=[Read(t, FACTS, facts(t))]))(sparse()),
        (
            "[x0] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? (tensors.check(x0)); ? "
            "(k(k) == k); return Call([x0], [x0], [], k)"
        ),
    ),
    "what a leaf says": (
        lambda: (lambda t: taking([plain()], reads=[Read(t, FACTS, facts(t))]))(of_torch()),
        (
            "[x0] = given; ? (type(x0) is T); ? (not x0.requires_grad); "
            "? (tensors.check(x0, *k)); ? (all(map(k, k))); return Call([x0], [x0], [], k)"
        ),
    ),
    "what a closed-over tensor says": (
        lambda: (lambda t: taking([plain()], [t], reads=[Read(t, FACTS, facts(t))]))(plain()),
        (
            "[x0] = given; ? (type(x0) is T); ? (not x0.requires_grad); "
            "? (tensors.check(x0, *k)); return Call([x0, *k], [x0, *k], [], k)"
        ),
    ),
    "no shared memory of one": (
        lambda: taking([plain()], groups=()),
        "[x0] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? (tensors.check(x0)); "
        "return Call([x0], [x0], [], k)",
    ),
    "no shared memory of two": (
        lambda: taking([plain(), 1, plain()], groups=()),
        (
            "[x0, x1, x2] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? "
            "(type(x1) is T); ? (x1 == k); ? (type(x2) is T); ? (not x2.requires_grad); "
            "? (tensors.check(x0, x2)); storage0 = x0.untyped_storage(); "
            "storage1 = x2.untyped_storage(); ? (storage0.resizable() and storage1.resizable()); "
            "found = {storage0._cdata, storage1._cdata}; ? (len(found) == 2); "
            "return Call([x0, x1, x2], [x0, x1, x2], [], k)"
        ),
    ),
    "no shared memory with what is closed over": (
        lambda: taking([plain(), plain()], [plain()], groups=()),
        (
            "[x0, x1] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? (type(x1) is T); "
            "? (not x1.requires_grad); ? (tensors.check(x0, x1, *k)); "
            "? (list(map(k, k)) == k); storage0 = x0.untyped_storage(); "
            "storage1 = x1.untyped_storage(); ? (storage0.resizable() and storage1.resizable()); "
            "found = {storage0._cdata, storage1._cdata}; ? (len(found) == 2); "
            "? (found.isdisjoint(k)); "
            "return Call([x0, x1, *k], [x0, x1, *k], [], k)"
        ),
    ),
    "no shared memory of a sparse one": (
        lambda: taking([sparse()], groups=()),
        (
            "[x0] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? (kind_of(x0, False, "
            "False) == k); ? (sharing([x0]) == k); return Call([x0], [x0], [], k)"
        ),
    ),
    "shared memory": (
        lambda: (lambda t: taking([t, t], groups=sharing([t, t])))(plain()),
        (
            "[x0, x1] = given; ? (type(x0) is T); ? (not x0.requires_grad); ? (type(x1) is T); "
            "? (not x1.requires_grad); ? (tensors.check(x0, x1)); ? (sharing([x0, x1]) == k); "
            "return Call([x0, x1], [x0, x1], [], k)"
        ),
    ),
    "nothing": (
        lambda: taking([]),
        "return Call([], [], [], k)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_guard_asks_what_the_kind_of_its_arguments_needs(name: str) -> None:
    make, expected = CASES[name]
    assert text(make()) == expected


def test_a_guard_gives_the_call_that_the_general_way_gives() -> None:
    w, x, y = leaf(), plain(), of_torch()
    given = [x, y, 2.5, leaf()]
    take = taking(given, [w])
    general = enter([*given, w], True, False)
    assert take is not None and general is not None
    call = take(given)
    assert call is not None and call.kinds == general.kinds
    for mine, other in (
        (call.leaves, general.leaves),
        (call.plain, general.plain),
        (call.targets, general.targets),
    ):
        assert len(mine) == len(other) and all(a is b for a, b in zip(mine, other, strict=True))
    assert (
        take(given[:-1]) is None and take([*given, 1]) is None and take([y, x, *given[2:]]) is None
    )


def test_an_integer_out_of_range_is_not_taken_for_one_of_any_value() -> None:
    take = taking([plain(), 2], sizes=NUMBERS, unknown=[1])
    assert take is not None
    assert [take([plain(), n]) is not None for n in (3, -(2**62), 2**62, 2**62 - 1, True, 2.0)] == [
        True,
        False,
        False,
        True,
        False,
        False,
    ]
    take = taking([plain(), 2.0], sizes=NUMBERS, unknown=[1])
    assert take is not None
    assert [take([plain(), n]) is not None for n in (3.0, float("inf"), float("nan"), 2)] == [
        True,
        False,
        False,
        False,
    ]


def test_what_must_hold_of_sizes_is_asked_of_the_arguments_that_have_some() -> None:
    asked: list[Any] = []

    def holds(*args: Any) -> bool:
        asked.append(args)
        return len(asked) < 2

    x, y = plain(), plain()
    take = taking([x, 1, y], sizes=Sizes(holds, [0, 2], True))
    assert take is not None and take([x, 1, y]) is not None and take([x, 1, y]) is None
    assert [[id(t) for t in args] for args in asked] == [[id(x), id(y)]] * 2
