"""Control flow by sizes that are symbols. A graph of ``make_fx`` checks no conditions, so it has
both branches, or the program is refused. A compiled function checks them at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime.aot import aot_function, associative_scan, cond, make_fx, map, nop, scan, while_loop
from tests.runtime.trace.graphs import close, targets

HIGHER = torch.ops.higher_order


def rows(n: int) -> torch.Tensor:
    return torch.arange(2.0 * n).reshape(n, 2) / 7 + 0.1


def chosen(condition: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: cond(condition(x), torch.sin, torch.cos, (x,))


def nested(x: Any) -> Any:
    def inner(x: Any) -> Any:
        return cond(x.shape[0] == 4, torch.sin, torch.cos, (x,))

    return cond(x.sum() > 0, inner, torch.exp, (x,))


def counted(x: Any) -> Any:
    start = torch.tensor(0), x
    return while_loop(lambda i, x: i < x.shape[0], lambda i, x: (i + 1, x * 2), start)[1]


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "equal": chosen(lambda x: x.shape[0] == 4),
    "greater": chosen(lambda x: x.shape[0] > 3),
    "remainder": chosen(lambda x: x.shape[0] % 2 == 0),
    "elements": chosen(lambda x: x.numel() > 7),
    "negated": chosen(lambda x: torch.sym_not(x.shape[0] == 3)),
    "in a branch": nested,
    "size in a branch": lambda x: (lambda n: cond(n == 4, lambda x: x * n, lambda x: x - n, (x,)))(
        x.shape[0]
    ),
    "loop": counted,
    "map": lambda x: map(torch.sin, x),
    "scan": lambda x: scan(lambda c, r: (c + r, c * r), x[0].clone(), x)[1],
    "associative scan": lambda x: associative_scan(torch.add, x, 0),
    "generic scan": lambda x: associative_scan(torch.mul, x, 0, combine_mode="generic"),
    "reversed scan": lambda x: associative_scan(torch.add, x, 0, reverse=True),
}


@pytest.mark.parametrize("pre_dispatch", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_with_symbols_is_right_for_every_size(name: str, pre_dispatch: bool) -> None:
    f = PROGRAMS[name]
    module = make_fx(f, tracing_mode="symbolic", pre_dispatch=pre_dispatch)(rows(3))
    for n in (2, 3, 4, 5, 8):
        close(module(rows(n)), f(rows(n)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_compiled_function_is_right_for_every_size(name: str) -> None:
    compiled = aot_function(PROGRAMS[name], nop, dynamic=True)
    for n in (3, 4, 2):
        close(compiled(rows(n)), PROGRAMS[name](rows(n)))


def test_the_gradient_of_a_choice_by_a_size_chooses_too() -> None:
    def f(x: Any) -> Any:
        y = cond(x.shape[0] == 4, torch.sin, torch.cos, (x,))
        return torch.autograd.grad(y.sum(), x)[0]

    module = make_fx(f, tracing_mode="symbolic")(rows(3).requires_grad_())
    close(module(rows(4)), rows(4).cos())
    close(module(rows(3)), -rows(3).sin())


def test_a_size_that_the_program_text_fixes_decides_at_once() -> None:
    module = make_fx(
        lambda x: cond(x[:2].shape[0] == 2, torch.sin, torch.cos, (x,)), tracing_mode="symbolic"
    )(rows(3))
    assert HIGHER.cond not in targets(module)
    close(module(rows(5)), rows(5).sin())


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "to a size": lambda x: while_loop(
        lambda i, x: i < x.shape[0], lambda i, x: (i + 1, x * 2), (0, x)
    )[1],
    "from a size": lambda x: while_loop(
        lambda i, x: i > 0, lambda i, x: (i - 1, x * 2), (x.shape[0], x)
    )[1],
    "scan": lambda x: scan(lambda c, r: (c + 1, r * c), 0, x)[1],
    "unrolled": lambda x: map(torch.sin, x, unroll=True),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_in_a_loop_over_a_size_are_refused_by_line(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"symbol.*one (size|length).*test_sizes\.py"):
        make_fx(NUMBERS[name], tracing_mode="symbolic")(rows(3))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_condition_that_is_closed_over_is_read_by_each_call(mode: str) -> None:
    condition = torch.tensor(True)
    module = make_fx(
        lambda x: cond(condition, torch.sin, torch.cos, (x,)),
        tracing_mode=mode,
        _allow_non_fake_inputs=True,
    )(rows(3))
    close(module(rows(3)), rows(3).sin())
    condition.fill_(False)
    close(module(rows(3)), rows(3).cos())
