"""Which numbers among the arguments become inputs of a program, and when.

Inside: ``runtime.aot.calls.numbers``. What is remembered of each kind of call decides how many
programs there are after many calls, and the limit of it is too far away to be reached by calls."""

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from runtime.aot import (
    aot_function,
    nop,
)
from runtime.aot.calls import numbers as known_numbers
from runtime.aot.calls.numbers import Numbers, in_range, pinned_numbers
from runtime.trace.symbols import Abstraction

Program = Callable[..., Any]


def counted(f: Program, **options: Any) -> tuple[Program, list[fx.GraphModule]]:
    graphs: list[fx.GraphModule] = []

    def compiler(module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        graphs.append(module)
        return nop(module, examples)

    return aot_function(f, compiler, nop, **options), graphs


def environments() -> weakref.WeakSet[object]:
    """The environments of symbols of all abstract traces that somebody holds."""
    gc.collect()
    return weakref.WeakSet([o.shape_env for o in gc.get_objects() if type(o) is Abstraction])


def test_programs_that_are_gone_leave_no_symbols_behind() -> None:
    before, mine = environments(), weakref.WeakSet[object]()
    for _ in range(15):
        compiled, _graphs = counted(
            lambda x, k: (x * k).sum() if x.shape[0] > 2 else x * 2, dynamic=True
        )
        for k in (0.5, 1.5):
            compiled(torch.ones(3, requires_grad=True), k)
        mine |= environments() - before
        del compiled, _graphs
    gc.collect()
    assert len(mine) < 20, "torch remembers some, of 30"


def test_integers_of_63_bits_are_inputs_and_nothing_else_is_one() -> None:
    inside, outside = (0, True, 2**62 - 1, -(2**62) + 1), (2**62, -(2**62), 0.5, "1", None)
    assert [in_range(n) for n in (*inside, *outside)] == [True] * 4 + [False] * 5


def of(*values: Any) -> list[Any]:
    return [(False, type(value), value if type(value) is int else repr(value)) for value in values]


def test_a_number_is_an_input_from_its_first_change_on_unless_it_is_fixed() -> None:
    known = Numbers()
    assert known.opened((), of(1, 1.5)) == (of(1, 1.5), frozenset())
    assert known.opened((), of(1, 2.5)) == ([*of(1), (False, float)], frozenset((1,)))
    assert known.opened((), of(1, 1.5)) == ([*of(1), (False, float)], frozenset((1,))), (
        "for the first value too"
    )
    assert known.opened((), of(2, 2.5)) == (
        [(False, int), (False, float)],
        frozenset(
            (
                0,
                1,
            )
        ),
    )
    known.fix((), of(7, 7.5), [1])
    assert known.opened((), of(3, 3.5)) == ([(False, int), *of(3.5)], frozenset((0,)))
    known.fix((), of(7, 7.5), [0])
    assert known.opened((), of(4, 4.5)) == (of(4, 4.5), frozenset())


def test_numbers_of_another_kind_of_call_are_others() -> None:
    known = Numbers()
    for value in (1, 2):
        known.opened((None, "a"), of(value))
    assert known.opened((None, "b"), of(3)) == (of(3), frozenset()) and known.opened(
        (None, "a"), of(3)
    ) == (
        [(False, int)],
        frozenset((0,)),
    )
    assert known.opened((None, "a"), of(3.5)) == (of(3.5), frozenset()), "a float is another kind"
    for constants in ([(False, bool, True)], [(False, bool, False)], of(2**62), of(-(2**62))):
        assert known.opened((None, "d"), constants) == (constants, frozenset())
    assert known.opened((None, "a"), [(False, str, "x")]) == ([(False, str, "x")], frozenset())
    for real in (math.inf, -math.inf, math.nan):
        assert known.opened((None, "c"), of(real)) == (of(real), frozenset()), "which are constants"


def test_numbers_of_a_call_of_another_structure_are_the_same() -> None:
    known = Numbers()
    known.opened(("one structure", "a"), of(1))
    assert known.opened(("another", "a"), of(2)) == ([(False, int)], frozenset((0,)))


def test_leading_numbers_are_inputs_at_once_and_shift_no_others() -> None:
    known = Numbers()
    assert known.opened((None,), of(7, 1), 1) == ([(False, int), *of(1)], frozenset((0,)))
    assert known.opened((None,), of(1)) == (of(1), frozenset())
    known.opened((None,), of(7, 8, 2), 2)
    assert known.opened((None,), of(3)) == ([(False, int)], frozenset((0,)))
    known.fix((None,), of(7, 3), [1], 1)
    assert known.opened((None,), of(4)) == (of(4), frozenset())


def test_the_kind_of_call_that_was_not_seen_for_longest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_numbers, "_LIMIT", 2)
    known = Numbers()
    for kind in ("a", "b", "a", "c"):
        known.opened((None, kind), of(1))
    assert known.opened((None, "a"), of(2)) == ([(False, int)], frozenset((0,)))
    assert known.opened((None, "b"), of(2)) == (of(2), frozenset())


def test_the_numbers_whose_values_a_program_asks_for_are_told_by_position() -> None:
    class Asked:
        """An abstraction of three numbers, of which the program asks for the first
        and the last one."""

        numbers = ("p", "q", "r")

        def pinned(self, n: str) -> bool:
            return n != "q"

    joint: Any = type("Joint", (), {"abstraction": Asked()})
    assert pinned_numbers(joint, frozenset((5, 2, 9))) == [2, 9]
    joint.abstraction.numbers = ("q", "q", "q")
    assert pinned_numbers(joint, frozenset((5, 2, 9))) == []
