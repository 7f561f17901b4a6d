"""Errors that come when a graph runs again, and that the program may catch: such a call runs in
eager mode, if its graph has changed nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit

pytestmark = pytest.mark.filterwarnings("ignore:step raises:UserWarning")

X = torch.arange(1.0, 4.0)

# what a program computes of a number ``n`` of the state, which is a good one or a bad one
OF_NUMBERS: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "quotient": (lambda n: 10 / n, 2.0, 0.0),
    "remainder": (lambda n: 10 % n, 3.0, 0.0),
    "power": (lambda n: n**-1.5, 2.0, 0.0),
    "large power": (lambda n: 10.0**n, 2.0, 1000.0),
    "complex root": (lambda n: n**0.5, 2.0, -2.0),
}
# what it computes of a tensor ``t``, which the call is given
OF_TENSORS: dict[str, tuple[Callable[[Tensor], Any], Tensor, Tensor]] = {
    "item": (lambda t: 1 / t.item(), torch.tensor(2.0), torch.tensor(0.0)),
    "index": (lambda t: X[t].sum(), torch.tensor([2, 0]), torch.tensor([0, 3])),
    "integer division": (lambda t: (6 // t).sum(), torch.tensor([2, 1]), torch.tensor([0, 1])),
    "embedding": (
        lambda t: torch.nn.functional.embedding(t, X[:, None]).sum(),
        torch.tensor([1]),
        torch.tensor([-1]),
    ),
    "labels": (
        lambda t: torch.nn.functional.nll_loss(X[None], t),
        torch.tensor([1]),
        torch.tensor([7]),
    ),
    "decomposition": (
        lambda t: torch.linalg.cholesky(t).sum(),
        torch.eye(2),
        -torch.eye(2),
    ),
}


def _results(step: Callable[..., Any], options: dict[str, Any] | None, good: Any, bad: Any) -> str:
    """Return what calls with good and bad values give and leave. ``options``: of jit; None for
    eager mode."""
    t = SimpleNamespace(n=good, calls=0, caught=0, log={}, mean=torch.zeros(3))

    def with_state(value: Any) -> Any:
        return step(t, value)

    with_state.__name__ = "step"
    f = with_state
    if options is not None:
        f = jit(with_state, **options)
    found: list[Any] = []
    for value in (good, good, bad, good, bad, bad, good):
        t.n = value
        try:
            result = f(value)
        except (ArithmeticError, ValueError, RuntimeError, IndexError) as error:
            result = type(error)
        found.append((result, t.calls, t.caught, dict(t.log), t.mean.tolist()))
    return repr(found)


def _catches(compute: Callable[[Any], Any], of_state: bool) -> Callable[..., Any]:
    def step(t: Any, value: Any) -> Any:
        t.calls += 1
        t.mean = t.mean * 0.5 + X
        try:
            result = compute(t.n if of_state else value)
        except Exception:
            t.caught += 1
            t.log["bad"] = t.calls
            result = -1.0
        return X * result

    return step


def _raises(compute: Callable[[Any], Any], of_state: bool) -> Callable[..., Any]:
    def step(t: Any, value: Any) -> Any:
        t.calls += 1
        t.mean = t.mean * 0.5 + X
        result = compute(t.n if of_state else value)
        t.log["good"] = t.calls
        return X * result

    return step


@pytest.mark.parametrize("options", [{}, {"on_break": "eager"}, {"check": 1}], ids=str)
@pytest.mark.parametrize("make", [_catches, _raises], ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_an_error_of_a_number_of_the_state_is_the_programs_own(
    name: str, make: Callable[..., Any], options: dict[str, Any]
) -> None:
    compute, good, bad = OF_NUMBERS[name]
    step = make(compute, True)
    assert _results(step, options, good, bad) == _results(step, None, good, bad)


@pytest.mark.parametrize("options", [{}, {"on_break": "eager"}, {"check": 1}], ids=str)
@pytest.mark.parametrize("make", [_catches, _raises], ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("name", OF_TENSORS)
def test_an_error_of_elements_is_the_programs_own(
    name: str, make: Callable[..., Any], options: dict[str, Any]
) -> None:
    compute, good, bad = OF_TENSORS[name]
    step = make(compute, False)
    assert _results(step, options, good, bad) == _results(step, None, good, bad)


def test_random_numbers_that_a_failed_graph_has_drawn_are_drawn_again() -> None:
    def step(labels: Tensor) -> Tensor:
        x = torch.nn.functional.dropout(X, 0.5)
        try:
            y = x[labels]
        except IndexError:
            y = torch.rand(2)
        return x.sum() + y

    def run(f: Callable[[Tensor], Tensor]) -> list[Any]:
        torch.manual_seed(0)
        return [f(torch.tensor([k, 0])).tolist() for k in (1, 2, 5, 1, 5)]

    assert run(jit(step)) == run(step)


def test_a_call_that_has_changed_something_is_not_run_once_more() -> None:
    held = torch.zeros(3)

    @jit
    def step(labels: Tensor) -> Tensor:
        held.add_(1)
        return X[labels] * held

    step(torch.tensor([0, 1, 2]))
    with pytest.raises(IndexError) as caught:
        step(torch.tensor([0, 1, 9]))
    # eager mode would have added 1 as well, once
    assert held.tolist() == [2, 2, 2]
    assert "float32[3], has its new value" in "".join(caught.value.__notes__)


def test_a_graph_with_an_op_of_another_library_is_not_run_once_more() -> None:
    calls: list[int] = []

    @torch.library.custom_op("graph_errors::note", mutates_args=())
    def note(x: Tensor) -> Tensor:
        calls.append(len(calls))
        return x.clone()

    note.register_fake(lambda x: torch.empty_like(x))

    def look_up(x: Tensor, labels: Tensor) -> Tensor:
        found: Tensor = note(x)[labels]
        return found

    step = jit(look_up, ignore=(calls,))
    for _ in range(3):  # the op's own first calls change it, so that they have other programs
        step(X, torch.tensor([0]))
    before = len(calls)
    with pytest.raises(IndexError):
        step(X, torch.tensor([9]))
    assert len(calls) == before + 1


def test_a_warning_says_once_that_calls_run_in_eager_mode() -> None:
    t = SimpleNamespace(n=1.0)

    @jit
    def step(x: Tensor) -> Any:
        try:
            scale = 1 / t.n
        except ZeroDivisionError:
            scale = 1.0
        return x * scale

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n in (1.0, 2.0, 3.0, 0.0, 0.0, 4.0, 0.0):
            t.n = n
            step(X)
    assert [str(w.message).partition(",")[0] for w in told] == [
        "step raises ZeroDivisionError('float division by zero') in its graph"
    ]


def _own(generator: torch.Generator, x: Tensor) -> Tensor:
    return torch.rand(2, generator=generator)


def _branch(generator: torch.Generator, x: Tensor) -> Tensor:
    drop = torch.nn.functional.dropout
    kept: Tensor = torch.cond(x.sum() > 0, lambda x: drop(x, 0.5), lambda x: x * 2, (x,))
    return kept[:2]


@pytest.mark.parametrize("draw", [_own, _branch], ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("by_side", [False, True])
def test_draws_of_an_own_generator_and_of_a_branch_are_drawn_again(
    draw: Callable[..., Tensor], by_side: bool
) -> None:
    def run(wrap: Callable[[Any], Any]) -> list[object]:
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(3)

        def step(x: Tensor, labels: Tensor) -> Tensor:
            drawn = draw(generator, x)
            if by_side:
                return drawn + 1 if labels.float().sum().item() > 5 else drawn * 1
            try:
                y = X[labels].sum()
            except IndexError:
                y = torch.zeros(())
            return drawn + y

        f = wrap(step)
        return [f(torch.ones(6), torch.tensor([1, k])).tolist() for k in (2, 2, 9, 2, 9, 9, 2)]

    assert run(jit) == run(lambda f: f)


def test_a_branch_of_another_function_does_not_rewind_a_generator() -> None:
    def run(wrap: Callable[[Any], Any]) -> list[float]:
        torch.manual_seed(0)
        draw = wrap(lambda x: x + torch.rand(3))
        choose = wrap(lambda x: x * 2 if x.sum().item() > 2 else x * 3)
        found = []
        for k in range(6):
            draw(X)
            choose(X * (k % 2))
            found.append(torch.rand(()).item())
        return found

    assert run(jit) == run(lambda f: f)
