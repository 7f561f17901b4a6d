"""Static arguments are constants of a program, however they are given; and what else a call of a
jitted function says of itself."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import PureWindowsPath
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import runtime
from runtime import jit
from runtime.jit import explain


def several(x: Any, k: int = 2, y: Any = 1.0, *more: Any, n: int = 3, **named: Any) -> Any:
    """All arguments, in a sum that tells them apart. ``k`` and ``n`` say how often something is
    done, which no tensor says."""
    total = x
    for _ in range(k):
        total = total + 10
    for _ in range(n):
        total = total + 100
    return (
        total
        + 1000 * y
        + sum(10000 * (i + 1) * m for i, m in enumerate(more))
        + 0.5 * sum(named.values())
    )


T = torch.tensor
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((T(1.0),), {}),
    ((T(1.0), 1), {}),
    ((T(1.0),), {"k": 4}),
    ((T(1.0), 1, T(2.0)), {}),
    ((T(1.0),), {"y": T(2.0), "k": 0}),
    ((T(1.0), 1, T(2.0), T(3.0), T(4.0)), {}),
    ((T(1.0), 2, T(2.0), T(3.0)), {"n": 1, "z": T(5.0)}),
    ((), {"x": T(1.0), "n": 5, "z": T(5.0)}),
]


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 1, "static_argnames": "n"},
        {"static_argnums": (-2,)},
        {"static_argnames": ["k", "n"]},
    ],
)
@pytest.mark.parametrize("args, kwargs", CALLS)
def test_static_arguments_may_be_given_by_position_or_by_name(
    options: Any, args: Any, kwargs: Any
) -> None:
    run = jit(several, **options)
    for _ in range(2):
        assert run(*args, **kwargs).item() == several(*args, **kwargs).item()
    assert len(explain(run).programs) == 1


def test_static_arguments_that_are_equal_and_of_other_types_are_others() -> None:
    kinds: list[Any] = []

    @functools.partial(jit, static_argnames=("k", "j"), ignore=[kinds])
    def f(x: Any, k: Any = 0, j: Any = 0) -> Any:
        kinds.append((k, j))
        return x * 2

    for k in (1, True, 1.0, 1, True, 1.0):
        f(torch.ones(1), k)
    assert [k for k, _ in kinds] == [1, True, 1.0] and [type(k) for k, _ in kinds] == [
        int,
        bool,
        float,
    ]
    f(torch.ones(1), j=2, k=1)
    f(torch.ones(1), k=1, j=2)
    assert kinds[3:] == [(1, 2)]


def test_a_static_argument_that_is_first_leaves_the_others_at_their_places() -> None:
    def f(how: str, x: Any, /, y: Any, *, z: Any) -> Any:
        return (x - y if how == "sub" else x * y) + z

    run = jit(f, static_argnums=0)
    for how in ("sub", "mul"):
        assert run(how, T(5.0), T(3.0), z=T(0.5)).item() == f(how, T(5.0), T(3.0), z=T(0.5)).item()
        assert (
            run(how, T(5.0), y=T(3.0), z=T(0.5)).item() == f(how, T(5.0), T(3.0), z=T(0.5)).item()
        )


@pytest.mark.parametrize("number, known", [(-2, True), (1, True), (-3, False), (2, False)])
@pytest.mark.parametrize("option", ["static_argnums", "donate"])
def test_positions_count_from_both_ends_and_no_further(
    option: str, number: int, known: bool
) -> None:
    def f(x: Any, y: Any) -> Any:
        return x

    if known:
        jit(f, **{option: number})  # type: ignore[call-overload]
        return
    with pytest.raises(ValueError, match=f"{option}={number}, but f takes 2 positional arguments"):
        jit(f, **{option: number})  # type: ignore[call-overload]


class Unsigned:
    """Python cannot tell its parameters."""

    __signature__ = 3

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] * kwargs["k"]


def test_a_function_that_does_not_tell_its_parameters_takes_any() -> None:
    f = Unsigned()
    with pytest.raises(TypeError):
        inspect.signature(f)
    run: Any = jit(f, static_argnames="k", static_argnums=1)
    assert [run(torch.ones(1), k=k).item() for k in (2, 3)] == [2.0, 3.0] and len(run.captured) == 2


def test_a_jitted_method_is_found_in_its_class_too() -> None:
    class Owner:
        @jit
        def call(self, x: Any) -> Any:
            return x * 2

    method: Any = Owner.call
    assert (
        repr(method) == "<jitted call, 0 programs>" and method(Owner(), torch.ones(1)).item() == 2.0
    )
    assert len(explain(Owner().call).programs) == 1


def test_a_call_that_runs_eagerly_is_told_once_with_its_line() -> None:
    run = jit(lambda x: x * 2 if x.tolist()[0] > 0 else x, on_break="eager")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n in (1, 2, 3):
            run(torch.ones(n))
    ((message, name),) = [(str(w.message), w.filename) for w in told]
    assert (
        message.startswith("a call cannot be captured, so that it runs eagerly: ")
        and name == __file__
    )


DERIVATIVES: dict[str, Callable[[Any], Any]] = {
    "exp": lambda x: x.exp(),
    "dropout": lambda x: F.dropout(x.sin(), 0.5),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_a_jitted_function_keeps_what_a_second_derivative_needs(name: str) -> None:
    def second(f: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        x = runtime.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
        (g,) = runtime.autograd.grad(f(x).sum(), x, create_graph=True)
        return runtime.unwrap(runtime.autograd.grad(g.sum(), x)[0])

    torch.testing.assert_close(second(jit(DERIVATIVES[name])), second(DERIVATIVES[name]))


def test_jit_is_told_by_its_name() -> None:
    assert repr(jit) == "<function jit>"
    assert (
        jit.explain is explain
        and repr(jit(dynamic=False)(several)) == "<jitted several, 0 programs>"
    )


class Setting(tuple[Any, ...]):
    """A tuple that equals no other one."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return 1


class Size(NamedTuple):
    """A tuple with names, which equals another one with True in the place of 1."""

    n: object


UNLIKE: dict[str, list[Any]] = {
    "zeros": [0.0, -0.0],
    "tuples": [(1,), (True,), (1.0,)],
    "named tuples": [Size(1), Size(True), Size(1.0)],
    "named tuples in a tuple": [(Size(0.0),), (Size(-0.0),)],
    "time zones": [timezone(timedelta(0)), timezone(timedelta(0), "a name of one's own")],
    "paths of Windows": [PureWindowsPath("A"), PureWindowsPath("a")],
    "sets": [frozenset([1]), frozenset([True])],
    "ranges": [range(0, 3, 2), range(0, 4, 2)],
    "decimals": [Decimal("1.0"), Decimal("1.00")],
    "folds of a clock": [datetime(2020, 1, 1), datetime(2020, 1, 1, fold=1)],
    "zeros of NumPy": [np.float64(0.0), np.float64(-0.0)],
    "a class whose objects are equal to none": [Setting([1]), Setting([1])],
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_static_arguments_that_are_equal_and_differ_have_programs_of_their_own(kind: str) -> None:
    def number(setting: object) -> int:
        return sum(map(ord, repr(setting)))

    f = jit(lambda x, setting: x * number(setting), static_argnums=1)
    for setting in UNLIKE[kind]:
        assert f(T(1.0), setting).item() == number(setting)
    assert len(f.captured) == len(UNLIKE[kind])
