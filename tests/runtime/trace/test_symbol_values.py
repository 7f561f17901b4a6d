"""Sizes of any value in a program that is traced behave as the numbers of eager mode."""

from __future__ import annotations

import copy
import enum
import functools
import json
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from numbers import Integral
from typing import Any

import numpy as np
import pytest
import torch

from runtime import jit
from runtime.aot import aot_function, make_fx, nop

TEXTS = {str(k): k * 1.5 for k in range(40)} | {str(k / 2): float(k) for k in range(40)}
SIZES = (8, 9, 10)


class Scales:
    scale_8, scale_9, scale_10 = 2.0, 3.0, 4.0


class Sizes(enum.IntEnum):
    SMALL = 8


class Whole(int):
    pass


class Real(float):
    pass


def matched(n: Any) -> float:
    match n:
        case 9:
            return 2.0
        case int():
            return 3.0
        case _:
            return 4.0


@functools.singledispatch
def kind(n: Any) -> float:
    return 2.0


@kind.register
def _(n: int) -> float:
    return 3.0


OF_A_SIZE: dict[str, Callable[[Any], Any]] = {
    "str": lambda n: TEXTS[str(n)],
    "f-string": lambda n: TEXTS[f"{n}"],
    "%s": lambda n: TEXTS["%s" % n],  # noqa: UP031 - it is what is tested
    "repr": lambda n: TEXTS[repr(n)],
    "format with a width": lambda n: len(f"{n:>7}") + len(f"{n:03d}"),
    "text of a quotient": lambda n: TEXTS[str(n / 2)] + len(f"{n / 3:.3f}"),
    "text of a condition": lambda n: {"True": 2.0, "False": 3.0}[str(n > 8)],
    "an attribute": lambda n: getattr(Scales, f"scale_{n}"),
    "a key": lambda n: {8: 2.0, 9: 3.0}.get(n, 4.0),
    "a key of a quotient": lambda n: {4.0: 2.0, 4.5: 3.0}.get(n / 2, 4.0),
    "a set": lambda n: 1 + (n in {8, 10}),
    "hash": lambda n: hash(n) % 7,
    "divmod": lambda n: sum(divmod(n, 3)) + sum(divmod(30, n)),
    "round to tens": lambda n: round(n, -1),
    "a real remainder": lambda n: n % 2.5 + 1,
    "isinstance": lambda n: 2.0 if isinstance(n, int) and isinstance(n / 2, float) else 3.0,
    "match": matched,
    "singledispatch": lambda n: kind(n),
    "a protocol of numbers": lambda n: 2.0 if isinstance(n, Integral) else 3.0,
    "an enumeration": lambda n: 2.0 if n == Sizes.SMALL else 3.0,
    "not an enumeration": lambda n: 2.0 if n != Sizes.SMALL else 3.0,
    "a key of an enumeration": lambda n: {Sizes.SMALL: 3.0}.get(n, 1.0),
    "an integer of another class": lambda n: 2.0 if n in (Whole(8), Whole(10)) else 3.0,
    "a real number of another class": lambda n: 2.0 if n / 2 == Real(4) else 3.0,
    "a complex number": lambda n: 2.0 if n == 9 + 0j else 3.0,
    "a number of NumPy": lambda n: (n == np.int64(9)) + n * np.int64(2) + np.int64(20) - n,
    "a condition and a number": lambda n: 2.0 if (n > 8) == Whole(1) else 3.0,
    "a shape of an enumeration": lambda n: 2.0 if (n,) == (Sizes.SMALL,) else 3.0,
    "an integer part below zero": lambda n: int(-n / 2) + int((3 - n) / 4),
    "a branch on it": lambda n: 2.0 if int(-n / 3) == -2 else 3.0,
    "a copy": copy.deepcopy,
    "pickle": lambda n: pickle.loads(pickle.dumps(n)),
    "numerator": lambda n: n.numerator + n.real + n.bit_count(),
    "pow of three": lambda n: pow(n, 3, 7) + 1,
    "bytes": lambda n: len(bytes(n)) + len("x" * n) + len([0] * n),
    "range": lambda n: sum(range(n)) + list(range(50))[n],
    "complex": lambda n: abs(n * 1j),
    "Fraction": lambda n: Fraction(n, 3),
    "math": lambda n: math.gcd(n, 4) + math.comb(n, 2) + math.isqrt(n),
}
FAILS_ON_SYMBOLS: dict[str, Callable[[Any], Any]] = {
    "json": lambda n: len(json.dumps({"n": n})),
    "Decimal": lambda n: Decimal(n) / 3,
    "numpy": lambda n: np.sqrt(n) + np.log2(n),
}


def times(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: x * float(of(x.shape[0]))


COMPILED: dict[str, Callable[[Any], Any]] = {
    "jit": jit,
    "jit of any sizes": lambda f: jit(f, dynamic=True),
    "aot": lambda f: aot_function(f, nop, dynamic=True),
}


@pytest.mark.parametrize("how", COMPILED)
@pytest.mark.parametrize("name", [*OF_A_SIZE, *FAILS_ON_SYMBOLS])
def test_a_number_of_a_size_is_that_of_eager_mode(name: str, how: str) -> None:
    f = times((OF_A_SIZE | FAILS_ON_SYMBOLS)[name])
    compiled = COMPILED[how](f)
    for n in (*SIZES, *SIZES):
        assert torch.equal(compiled(torch.ones(n)), f(torch.ones(n)))


@pytest.mark.parametrize("name", OF_A_SIZE)
def test_make_fx_has_the_number_of_the_size_that_it_traces(name: str) -> None:
    f = times(OF_A_SIZE[name])
    for n in SIZES:
        graph = make_fx(f, tracing_mode="symbolic")(torch.ones(n))
        assert torch.equal(graph(torch.ones(n)), f(torch.ones(n)))


@pytest.mark.parametrize("name", ["json", "Decimal"])
def test_make_fx_says_on_which_line_a_program_fails_on_a_symbol(name: str) -> None:
    with pytest.raises(TypeError) as error:
        make_fx(times(FAILS_ON_SYMBOLS[name]), tracing_mode="symbolic")(torch.ones(8))
    told = "".join((str(error.value), *getattr(error.value, "__notes__", ())))
    assert "int(size) makes one a constant" in told and f"{__file__}:" in told


def test_shapes_are_keys_and_texts() -> None:
    def f(x: Any) -> Any:
        by_shape = {(8, 2): 2.0, (9, 2): 3.0}.get(tuple(x.shape), 4.0)
        return x * (by_shape + len(str(x.shape)) + hash(x.shape) % 7)

    compiled = jit(f, dynamic=True)
    for n in SIZES:
        assert torch.equal(compiled(torch.ones(n, 2)), f(torch.ones(n, 2)))


def test_what_asks_for_no_value_stays_for_all_sizes() -> None:
    runs: list[int] = []

    def f(x: Any) -> Any:
        runs.append(1)
        return x.reshape(x.shape[0] * x.shape[1]) / (x.shape[0] + 1)

    compiled = jit(f, dynamic=True, ignore=[runs])
    for n in SIZES:
        x = torch.arange(2.0 * n).reshape(n, 2)
        assert torch.equal(compiled(x), x.reshape(-1) / (n + 1))
    assert len(runs) == 1


def test_a_symbol_of_a_graph_is_shown_by_its_name() -> None:
    graph = make_fx(lambda x: x.view(x.shape[0] * 2), tracing_mode="symbolic")(torch.ones(8, 2))
    size = next(n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder").shape[0]
    assert str(size).startswith("s") and not isinstance(size, int)
    with pytest.raises(TypeError):
        divmod(size, 3)
    with pytest.raises(AttributeError):
        size.numerator  # noqa: B018


def test_an_error_of_the_program_is_its_own() -> None:
    def f(x: Any) -> Any:
        if x.shape[0] > 3:
            raise KeyError("too many")
        return x

    with pytest.raises(KeyError, match="too many"):
        jit(f, dynamic=True)(torch.ones(4))
