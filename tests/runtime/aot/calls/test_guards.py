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


def doubled(x: Any) -> Any:
    return x * 2 if isinstance(x, torch.Tensor) else x


def outcome(f: Callable[[Any], Any], x: Any) -> Any:
    """Return what a call of ``f`` gives."""
    y = f(x)
    if not isinstance(y, torch.Tensor):
        return repr(y), type(y)
    plain = runtime.unwrap(y.detach())
    return plain.to_dense().tolist(), y.dtype, y.requires_grad, plain.is_conj(), plain.is_sparse


TENSORS = [name for name, make in PLAIN.items() if isinstance(make(), torch.Tensor)]


@pytest.mark.parametrize(
    "recording, dynamic, n_programs",
    [(False, False, 10), (False, True, 9), (True, False, 10), (True, True, 9)],
)
def test_a_guard_takes_what_has_the_same_kind(
    recording: bool, dynamic: bool, n_programs: int
) -> None:
    """Each pair of arguments in turn, so that each of the two guards that are asked first is that
    of any other argument."""
    graphs: list[Any] = []

    def compiler(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        return nop(module, inputs)

    f = aot_function(doubled, compiler, nop, dynamic=dynamic)
    with torch.set_grad_enabled(recording):
        for pair in itertools.product(TENSORS, TENSORS):
            for name in pair:
                x = PLAIN[name]()
                assert outcome(f, x) == outcome(doubled, x), pair
    assert len(graphs) == n_programs


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_guard_of_another_kind_of_argument_does_not_take_it(dynamic: bool) -> None:
    f = aot_function(doubled, nop, dynamic=dynamic)
    for pair in itertools.product(PLAIN, PLAIN):
        for name in pair:
            assert outcome(f, PLAIN[name]()) == outcome(doubled, PLAIN[name]()), pair


DIFFERENTIATED: dict[str, Callable[[Any], Any]] = {
    "leaf": lambda x: x,
    "result": lambda x: x * 1,
    "view": lambda x: (x * 1)[:2],
    "view of a leaf": lambda x: x[:2],
}


@pytest.mark.parametrize("first", DIFFERENTIATED)
def test_gradients_go_to_the_argument_of_the_call(first: str) -> None:
    f = aot_function(doubled, nop)
    for name in (first, *DIFFERENTIATED, first):
        for make in (lambda: torch.ones(2, 3, requires_grad=True), PLAIN["leaf"]):
            x: Any = make()
            # what torch has recorded is no argument of the session's engine
            given = x if not isinstance(x, runtime.Tensor) else DIFFERENTIATED[name](x)
            f(given).sum().backward()
            assert x.grad.tolist() == [[2.0] * 3] * 2, name


def test_another_number_of_arguments_is_not_taken() -> None:
    f = aot_function(lambda *xs: [x * 2 for x in xs], nop)
    for _ in range(3):
        for n in (2, 1, 3, 2, 2):
            assert [y.item() for y in f(*(torch.ones(()) for _ in range(n)))] == [2.0] * n


CHANGES: dict[str, Callable[[nn.Linear], object]] = {
    "frozen": lambda m: m.weight.requires_grad_(False),
    "other data": lambda m: setattr(m.weight, "data", torch.full((2, 3), 2.0)),
    "other strides": lambda m: setattr(m.weight, "data", torch.arange(6.0).reshape(3, 2).t()),
    "another parameter": lambda m: setattr(m, "weight", nn.Parameter(torch.full((2, 3), 3.0))),
    "other precision": lambda m: m.double(),
    "a hook": lambda m: m.weight.register_hook(lambda g: g * 2),
    "an update": lambda m: m.weight.data.mul_(2),
}


@pytest.mark.usefixtures("guards")
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
