"""Which programs a sequence of calls leaves: for fixed sizes or for any, how many, and how often
the function itself runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from runtime import jit
from runtime.jit import explain

LIMIT = 64  # programs of one function; the oldest is dropped then


class Case(NamedTuple):
    """A program with its calls. ``kinds``: of the programs that are captured, and ``after``: after
    how many calls each is."""

    f: Callable[..., Any]
    calls: Sequence[tuple[Any, ...]]
    kinds: list[str]
    after: list[int]
    options: dict[str, Any] = {}  # noqa: RUF012  # a NamedTuple has no mutable state


def ones(*sizes: int) -> list[tuple[Tensor]]:
    return [(torch.ones(n),) for n in sizes]


def double(x: Any, *more: Any) -> Any:
    return x * 2


PAIRS = [
    (torch.ones(2), torch.ones(3)),
    (torch.ones(2), torch.ones(4)),
    (torch.ones(5), torch.ones(4)),
    (torch.ones(7), torch.ones(8)),
]
DTYPES = [
    (torch.ones(n, dtype=dtype),) for n in (2, 3, 4) for dtype in (torch.float32, torch.int32)
]

CASES: dict[str, Case] = {
    "one size": Case(double, ones(2, 2, 2), ["fixed"], [1]),
    "a second size": Case(double, ones(2, 3, 4, 2, 5), ["fixed", "any"], [1, 2]),
    "any sizes from the start": Case(double, ones(2, 3, 4), ["any"], [1], {"dynamic": True}),
    "no program for any sizes": Case(
        double, ones(2, 3, 2, 4), ["fixed"] * 3, [1, 2, 4], {"dynamic": False}
    ),
    "another dtype": Case(double, DTYPES, ["fixed", "fixed", "any", "any"], [1, 2, 3, 4]),
    "a second argument": Case(double, PAIRS, ["fixed", "any"], [1, 2]),
    "another number of arguments": Case(
        double, [*ones(2), PAIRS[0], *ones(2), PAIRS[0]], ["fixed"] * 2, [1, 2]
    ),
    "a constant": Case(
        double, [(torch.ones(2), n) for n in ("a", "b", "a")], ["fixed"] * 2, [1, 2]
    ),
    "a number": Case(
        double, [(torch.ones(2), n) for n in (1.5, 2.5, 3.5)], ["fixed", "fixed"], [1, 2]
    ),
    "another number of dimensions": Case(
        double, [*ones(2), (torch.ones(2, 2),), *ones(2)], ["fixed"] * 2, [1, 2]
    ),
    "a branch on the size": Case(
        lambda x: x * 2 if x.shape[0] > 3 else x * 3,
        ones(2, 3, 4, 5, 2),
        ["fixed", "any", "any"],
        [1, 2, 3],
    ),
    "a loop over the size": Case(
        lambda x: sum(x.unbind()), ones(2, 3, 4, 3, 4), ["fixed", "any", "any"], [1, 2, 3]
    ),
    "what fixes the size": Case(
        lambda x: x * {2: 1, 3: 5, 4: 7}[x.shape[0]],
        ones(2, 3, 4, 3, 2),
        ["fixed", "any", "any"],
        [1, 2, 3],
    ),
    "a size of one": Case(double, ones(1, 2, 3), ["fixed", "any"], [1, 2]),
}


def _captured(case: Case) -> tuple[list[str], list[int], Any]:
    run = jit(case.f, **case.options)
    after: list[int] = []
    for i, args in enumerate(case.calls, 1):
        torch.testing.assert_close(run(*args), case.f(*args))
        after += [i] * (len(explain(run).programs) - len(after))
    return ["any" if c.dynamic else "fixed" for c in explain(run).programs], after, run


@pytest.mark.parametrize("name", CASES)
def test_a_sequence_of_calls_leaves_these_programs(name: str) -> None:
    kinds, after, run = _captured(CASES[name])
    assert (kinds, after) == (CASES[name].kinds, CASES[name].after)
    assert explain(run).refused == ()


@pytest.mark.parametrize("name", CASES)
def test_the_same_calls_again_capture_nothing(name: str) -> None:
    _, _, run = _captured(CASES[name])
    before = explain(run).programs
    for args in (*CASES[name].calls, *reversed(CASES[name].calls)):
        torch.testing.assert_close(run(*args), CASES[name].f(*args))
    assert explain(run).programs == before


def test_more_programs_for_any_sizes_than_are_kept_at_hand_are_found_again() -> None:
    """A program that is not among the last ones used is looked up by the kinds of the arguments."""
    seen = itertools.count()

    def f(x: Any) -> Any:
        next(seen)
        return x.sum() * x.dim()

    run = jit(f, ignore=[seen])
    shapes = [(2,) * n for n in range(1, 9)]
    for shape in (*shapes, *((3,) * len(s) for s in shapes)):
        run(torch.ones(shape))
    assert [c.dynamic for c in explain(run).programs] == [False] * 8 + [True] * 8
    captured = next(seen)
    for size in (4, 5, 2, 3):
        for n in range(1, 9):
            assert run(torch.ones((size,) * n)) == size**n * n
    assert next(seen) == captured + 1


@pytest.mark.filterwarnings("ignore:double has been compiled for more than 64 kinds")
def test_as_many_programs_are_told_of_as_are_kept() -> None:
    run = jit(double, dynamic=False)
    for n in range(1, LIMIT + 4):
        run(torch.ones(n))
    assert [c.arguments for c in explain(run).programs] == [
        (f"float32[{n}]",) for n in range(4, LIMIT + 4)
    ]
    assert run(torch.ones(2)).tolist() == [2.0, 2.0]  # is captured again
    assert (
        explain(run).programs[-1].arguments == ("float32[2]",)
        and len(explain(run).programs) == LIMIT
    )


def test_as_many_refusals_are_told_of_as_programs() -> None:
    def f(x: Any, n: str) -> Any:
        raise ValueError(n)

    run = jit(f, dynamic=False)
    for n in range(LIMIT + 2):
        with pytest.raises(ValueError, match=str(n)):
            run(torch.ones(1), str(n))
    assert [text[:19] for text in explain(run).refused[::63]] == [
        "(float32[1], '2'): ",
        "(float32[1], '65'):",
    ]
    assert len(explain(run).refused) == LIMIT


def _by_elements(x: Any) -> Any:
    return x * 2 if x.tolist()[0] > 0 else x


@pytest.mark.filterwarnings("ignore:a call cannot be captured")
def test_what_cannot_be_captured_is_tried_once_for_each_kind_of_call() -> None:
    runs = itertools.count()

    def f(x: Any) -> Any:
        next(runs)
        return _by_elements(x)

    run = jit(f, on_break="eager", ignore=[runs])
    for args in ones(2, 2, 3, 3, 2):
        assert run(*args).tolist() == [2.0] * len(args[0])
    assert next(runs) == 7  # twice for the first call of each size
    assert [text.partition(":")[0] for text in explain(run).refused] == [
        "(float32[2])",
        "(float32[3])",
    ]


def test_what_cannot_be_captured_is_an_error_at_each_call() -> None:
    run = jit(_by_elements)
    for n in (1, 2):
        with pytest.raises(RuntimeError, match="asks for the elements"):
            run(torch.ones(2))
        assert len(explain(run).refused) == n and explain(run).programs == ()


def test_a_program_that_fixes_the_size_is_captured_once_for_each() -> None:
    case = CASES["what fixes the size"]
    runs = itertools.count()

    def f(x: Any) -> Any:
        next(runs)
        return case.f(x)

    run = jit(f, ignore=[runs])
    run(torch.ones(2))
    run(torch.ones(3))
    assert explain(run).refused == () and next(runs) == 2
    run(torch.ones(4))
    assert next(runs) == 4


def test_other_modes_are_a_reason() -> None:
    run = jit(double)
    for args in ones(2, 2):
        with torch.set_grad_enabled(len(explain(run).programs) == 0):
            run(*args)
    assert explain(run).programs[1].why.startswith("other modes: of grad, ")


WHY: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "argument 0 is float32[3], was float32[2]": (double, ones(2, 3)),
    "argument 0 is int64[2], was float32[2]": (
        double,
        [*ones(2), (torch.ones(2, dtype=torch.int64),)],
    ),
    "argument 1 is 'b', was 'a'": (double, [(torch.ones(2), "a"), (torch.ones(2), "b")]),
    "argument 1 is None, was True": (double, [(torch.ones(2), True), (torch.ones(2), None)]),
    "2 arguments, were 1": (double, [*ones(2), (torch.ones(2), 1)]),
    # of other strides
    "none of the programs before takes the call": (
        double,
        [(torch.ones(2, 2),), (torch.ones(2, 2).t(),)],
    ),
    "argument 1 is ellipsis, was dtype": (
        double,
        [(torch.ones(2), torch.float32), (torch.ones(2), ...)],
    ),
    "argument 1 is 2j, was 1.5": (double, [(torch.ones(2), 1.5), (torch.ones(2), 2j)]),
}


@pytest.mark.parametrize("why", WHY)
def test_why_the_second_program_was_captured(why: str) -> None:
    f, calls = WHY[why]
    run = jit(f)
    for args in calls:
        run(*args)
    first, second = explain(run).programs
    assert first.why == "the first call"
    assert second.why.partition(";")[0] == why


ABSENT = object()
TOLD: dict[str, Any] = {
    "not there": ABSENT,
    "int64[2, 3]": torch.ones(2, 3, dtype=torch.int64),
    "True": True,
    "2": 2,
    "0.5": 0.5,
    "None": None,
    "'text'": "text",
    "list": [1, 2],
    "function": double,
}


@pytest.mark.parametrize("text", TOLD)
def test_what_the_state_has_instead_is_told_in_a_few_words(text: str) -> None:
    holder = SimpleNamespace(value="first")

    def f(x: Tensor) -> Tensor:
        return x * 2 if isinstance(getattr(holder, "value", None), str) else x * 3

    run = jit(f)
    run(torch.ones(2))
    if TOLD[text] is ABSENT:
        del holder.value
    else:
        holder.value = TOLD[text]
    run(torch.ones(2))
    why = explain(run).programs[1].why
    assert why == f"'value' of 'holder' around {f.__qualname__} is {text}, was 'first'"


@pytest.mark.parametrize("changed", [1, 4, 5, 7])
def test_a_few_changes_of_pythons_state_are_told_and_the_others_are_counted(changed: int) -> None:
    state = SimpleNamespace(**{f"n{i}": 1 for i in range(7)})

    def f(x: Any) -> Any:
        s = state
        return x * (s.n0 + s.n1 + s.n2 + s.n3 + s.n4 + s.n5 + s.n6)

    run = jit(f)
    run(torch.ones(2))
    for i in range(changed):
        setattr(state, f"n{i}", 2)
    run(torch.ones(2))
    told = explain(run).programs[1].why.split("; ")
    assert told[: min(changed, 4)] == [
        f"'n{i}' of 'state' around {f.__qualname__} is 2, was 1" for i in range(min(changed, 4))
    ]
    assert told[4:] == ([f"{changed - 4} more"] if changed > 4 else [])


def test_a_comparison_with_one_number_costs_one_program() -> None:
    t = SimpleNamespace(step=0, is_warm=False)

    @jit
    def f(x: torch.Tensor) -> torch.Tensor:
        t.step += 1
        if t.step == 5:
            t.is_warm = True
        return x * (0.5 if t.is_warm else 1)

    results = [f(torch.ones(())).item() for _ in range(20)]
    assert results == [1.0] * 4 + [0.5] * 16 and t.step == 20
    assert len(jit.explain(f).programs) == 4


def test_a_number_that_comes_round_is_met_by_the_same_program() -> None:
    t = SimpleNamespace(step=0)

    @jit
    def f(x: torch.Tensor) -> torch.Tensor:
        t.step += 1
        if t.step == 4:
            t.step = 0
            return x * 0
        return x * 2

    assert [f(torch.ones(())).item() for _ in range(20)] == [2.0, 2.0, 2.0, 0.0] * 5
    assert len(jit.explain(f).programs) == 3


def test_a_program_for_zero_is_none_for_negative_zero() -> None:
    f = jit(lambda x, k: x * (1.0 if math.copysign(1.0, k) > 0 else -1.0) if k == 0 else x * k)
    for k in (1.5, 2.5, 0.0, -0.0, 0.0, -0.0):
        assert f(torch.ones(()), k).item() == (math.copysign(1.0, k) if k == 0 else k)
