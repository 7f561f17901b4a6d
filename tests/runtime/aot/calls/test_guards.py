"""The generated guard of a program takes exactly the arguments of its kind, and says the same of
them as the general way."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import runtime
from runtime import dropin
from runtime.aot import aot_function, nop
from runtime.aot.calls.arguments import enter
from runtime.aot.calls.guards import Sizes, guard

PLAIN: dict[str, Callable[[], Any]] = {
    "plain": lambda: torch.ones(2, 3),
    "other values": lambda: torch.zeros(2, 3),
    "other shape": lambda: torch.ones(3, 2),
    "transposed": lambda: torch.ones(3, 2).t(),
    "offset": lambda: torch.ones(3, 3)[1:],
    "double": lambda: torch.ones(2, 3, dtype=torch.float64),
    "integer": lambda: torch.ones(2, 3, dtype=torch.int64),
    "complex": lambda: torch.ones(2, 3, dtype=torch.complex64),
    "conjugate": lambda: torch.ones(2, 3, dtype=torch.complex64).conj(),
    "negative": lambda: torch.ones(2, 3, dtype=torch.complex64).conj().imag,
    "sparse": lambda: torch.eye(2).to_sparse(),
    "plain that requires grad": lambda: torch.ones(2, 3, requires_grad=True),
    "parameter": lambda: nn.Parameter(torch.ones(2, 3)),
    "frozen parameter": lambda: nn.Parameter(torch.ones(2, 3), False),
    "of the session": lambda: runtime.wrap(torch.ones(2, 3)),
    "leaf": lambda: runtime.wrap(torch.ones(2, 3), True),
    "result": lambda: runtime.wrap(torch.ones(2, 3), True) * 1,
    "view": lambda: (runtime.wrap(torch.ones(4, 3), True) * 1)[:2],
    "view of a leaf": lambda: runtime.wrap(torch.ones(4, 3), True)[:2],
    "detached view": lambda: runtime.wrap(torch.ones(4, 3), True).detach()[:2],
    "one": lambda: 1,
    "true": lambda: True,
    "one as float": lambda: 1.0,
    "two": lambda: 2,
    "zero": lambda: 0.0,
    "negative zero": lambda: -0.0,
    "nan": lambda: math.nan,
    "text": lambda: "mean",
    "none": lambda: None,
    "list of a float": lambda: slice(0, 1),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("recording", [False, True])
def test_a_guard_takes_what_has_the_same_kind(recording: bool, dynamic: bool) -> None:
    with torch.set_grad_enabled(recording):
        for first, second in itertools.product(PLAIN, PLAIN):
            a, b = PLAIN[first](), PLAIN[second]()
            made, entered = enter([a], recording, dynamic), enter([b], recording, dynamic)
            assert made is not None and entered is not None
            take = guard(
                [a],
                made.kinds,
                (),
                (),
                (),
                None,
                Sizes(lambda *tensors: True, [0], True) if dynamic else None,
                recording,
            )
            assert take is not None
            taken = take([b])
            if taken is None:
                # of which a guard always asks
                flags = [isinstance(x, torch.Tensor) and x.requires_grad for x in (a, b)]
                assert first != second and (
                    made.kinds != entered.kinds or type(a) is not type(b) or flags[0] != flags[1]
                ), (first, second)
                continue
            assert made.kinds == entered.kinds, (first, second)
            for mine, theirs in (
                (taken.leaves, entered.leaves),
                (taken.plain, entered.plain),
                (taken.targets, entered.targets),
            ):
                assert all(x is y or x == y for x, y in zip(mine, theirs, strict=True)), (
                    first,
                    second,
                )
            assert len(taken.targets) == len(entered.targets)


def test_another_number_of_arguments_is_not_taken() -> None:
    made = enter([1, 2], True, False)
    assert made is not None
    take = guard([1, 2], made.kinds, (), (), (), None, None, True)
    assert (
        take is not None
        and take([1, 2]) is not None
        and take([1]) is None
        and take([1, 2, 3]) is None
    )


CHANGES: dict[str, Callable[[nn.Linear], object]] = {
    "frozen": lambda m: m.weight.requires_grad_(False),
    "other data": lambda m: setattr(m.weight, "data", torch.full((2, 3), 2.0)),
    "other strides": lambda m: setattr(m.weight, "data", torch.arange(6.0).reshape(3, 2).t()),
    "another parameter": lambda m: setattr(m, "weight", nn.Parameter(torch.full((2, 3), 3.0))),
    "other precision": lambda m: m.double(),
    "a hook": lambda m: m.weight.register_hook(lambda g: g * 2),
    "an update": lambda m: m.weight.data.mul_(2),
}


@pytest.mark.parametrize("of_the_session", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_what_the_program_closes_over_is_noticed(
    change: str, of_the_session: bool
) -> None:
    def gradients(compile: Callable[[Any], Any]) -> list[Any]:
        module = nn.Linear(3, 2)
        with torch.no_grad():
            module.weight.fill_(0.5)
            module.bias.fill_(0.25)
        f = compile(module)
        found = []
        for step in range(3):
            if step == 1:
                CHANGES[change](module)
            x = torch.ones(4, 3, dtype=module.weight.dtype)
            loss = f(x).square().sum()
            loss.backward()
            found += [
                loss.detach(),
                *(None if p.grad is None else p.grad.clone() for p in module.parameters()),
            ]
            module.zero_grad()
        return found

    expected = gradients(lambda m: m)
    with dropin.installed() if of_the_session else nullcontext():
        found = gradients(lambda m: aot_function(m, nop))
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(runtime.unwrap(a), b)


def test_a_function_holds_a_bounded_number_of_programs() -> None:
    graphs = 0

    def compiler(module: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return nop(module, inputs)

    f = aot_function(lambda x, n: x * int(n), compiler)  # which asks for the value of n
    x = torch.ones(2)
    with pytest.warns(UserWarning, match="compiled for more than 64 kinds of arguments"):
        for n in range(80):
            assert f(x, float(n)).tolist() == [n, n]
    assert graphs == 80
    for n in (79, 78, 16):
        f(x, float(n))
    assert graphs == 80, "the last 64 programs are there"
    assert f(x, 15.0).tolist() == [15.0, 15.0] and graphs == 81


def test_threads_wait_for_one_capture() -> None:
    graphs: list[int] = []

    def compiler(module: Any, inputs: Any) -> Any:
        graphs.append(threading.get_ident())
        return nop(module, inputs)

    f = aot_function(lambda x: x.sin().exp(), compiler)
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(f(torch.ones(3)))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(graphs) == 1 and len(results) == 8


def test_what_a_compiler_asks_about_sizes_while_it_compiles_the_backward_is_a_guard() -> None:
    sizes: list[int] = []

    def for_one_size(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        sizes.append(int(inputs[0].shape[0]))
        return nop(module, inputs)

    f = aot_function(lambda x: x.sin(), nop, for_one_size, dynamic=True)
    for n in (3, 3, 5):
        x = runtime.tensor([0.0] * n, requires_grad=True)
        f(x).sum().backward()
        assert x.grad.tolist() == [1.0] * n
    assert sizes == [3, 5]
