"""A function under ``jit.outside`` runs in each call, with what an eager run would give it. Where
it would see or do something else, that is an error with the line."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import runtime
from runtime import jit
from runtime.aot import aot_function, nop
from runtime.func import grad, vmap

SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


@jit.outside
def log(*args: Any, **kwargs: Any) -> None:
    """Note what it gets."""
    SEEN.append((args, kwargs))


def elements(x: Any) -> Any:
    """``x`` with lists in place of tensors, to be compared."""
    if isinstance(x, torch.Tensor):
        return x.tolist()
    if isinstance(x, (list, tuple)):
        return [elements(y) for y in x]
    return {k: elements(y) for k, y in x.items()} if isinstance(x, dict) else x


@dataclass
class Pair:
    loss: Any
    name: str


class Trainer:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.steps = 0

    def step(self, x: Any) -> Any:
        self.steps += 1
        self.optimizer.zero_grad()
        loss = self.model(x).square().sum()
        before = self.model.weight * 1
        loss.backward()
        self.optimizer.step()
        log(loss, self.steps, "text", None, n=x.shape[0], both=[before, self.model.weight])
        self.note(loss)
        log({"pair": Pair(loss * 2, "pair")}, loss.item() * 2)
        return loss.detach()

    @jit.outside
    def note(self, loss: Any) -> None:
        SEEN.append((self.steps, loss.item()))


def test_each_call_runs_the_functions_in_order_with_what_eager_mode_gives_them() -> None:
    sizes = (2, 2, 3, 4, 5)
    eager = Trainer()
    expected = [eager.step(torch.ones(n, 2)).item() for n in sizes]
    seen = elements([s if not isinstance(s[0], tuple) else s[0] for s in SEEN])
    keywords = elements([s[1] for s in SEEN if isinstance(s[0], tuple)])
    SEEN.clear()
    ours = Trainer()
    f = jit(ours.step)
    assert [f(torch.ones(n, 2)).item() for n in sizes] == expected
    found = [s if not isinstance(s[0], tuple) else s[0] for s in SEEN]
    assert str(elements(found)) == str(seen) and len(found) == 3 * len(sizes)
    assert elements([s[1] for s in SEEN if isinstance(s[0], tuple)]) == keywords


@pytest.mark.parametrize("way", [jit, lambda f: f], ids=["jit", "eager"])
def test_tensors_are_copies_without_a_history(way: Any) -> None:
    weight = torch.ones(2)

    def f(x: Any) -> Any:
        y = x * 2
        log(weight, y, [weight], x)
        return y

    g = way(f)
    for _ in range(3):
        x = runtime.tensor([1.0, 2.0], requires_grad=True)
        y = g(x)
        (ours, result, (inside,), argument), _ = SEEN.pop()
        for t in (ours, result, inside, argument):
            assert not t.requires_grad
            t.zero_()
        assert weight.tolist() == [1, 1] and y.tolist() == [2, 4] and x.tolist() == [1, 2]
        y.sum().backward()
        assert x.grad is not None and x.grad.tolist() == [2, 2]


def test_what_has_no_tensors_is_the_object_of_the_program() -> None:
    kept: list[int] = []

    def f(x: Any) -> Any:
        append(kept, 1)
        return x

    @jit.outside
    def append(to: list[int], x: int) -> None:
        to.append(x)

    g = jit(f, ignore=[kept])
    for i in range(3):
        g(torch.ones(1))
        assert kept == [1] * (i + 1)


def test_a_value_is_that_of_the_moment_of_the_call() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        log(y)
        y.add_(1)
        log(y)
        return y

    g = jit(f)
    for _ in range(3):
        g(torch.ones(1))
        assert [args[0].item() for args, _ in SEEN] == [2, 3]
        SEEN.clear()


def test_each_program_and_each_thread_makes_its_own_calls() -> None:
    def f(x: Any) -> Any:
        log(x.sum())
        return x

    g = jit(f)
    g(torch.ones(2)), g(torch.ones(2))
    SEEN.clear()
    threads = [
        threading.Thread(target=lambda i=i: [g(torch.full((2,), float(i))) for _ in range(20)])
        for i in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(args[0].item() for args, _ in SEEN) == sorted([0.0, 2.0, 4.0, 6.0] * 20)


def test_a_jitted_function_inside_of_a_program_leaves_the_calls_to_it() -> None:
    inner = jit(lambda x: (log(x), x * 2)[1])
    outer = jit(lambda x: inner(x + 1) * 3)
    inner(torch.ones(1))
    for _ in range(3):
        SEEN.clear()
        assert outer(torch.ones(1)).item() == 12
        assert [args[0].item() for args, _ in SEEN] == [2]


def test_an_eager_run_makes_the_calls_once() -> None:
    def f(x: Any) -> Any:
        log(x)
        return x if x.sum() > 0 else -x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        g = jit(f, on_break="eager")
        for i in range(3):
            g(torch.ones(1))
            assert len(SEEN) == i + 1


def test_an_error_of_the_function_reaches_the_caller_after_the_changes() -> None:
    steps = [0]

    @jit.outside
    def fails(x: Any) -> None:
        raise ValueError("no")

    def f(x: Any) -> Any:
        steps[0] += 1
        fails(x)
        return x

    g = jit(f)
    for i in range(3):
        with pytest.raises(ValueError, match="no"):
            g(torch.ones(1))
        assert steps == [i + 1]


WEIGHT = nn.Parameter(torch.ones(2))
STEPS = [0]


def changes_a_list(x: Any) -> Any:
    log(x)
    STEPS[0] += 1
    return x


def writes_an_argument(x: Any) -> Any:
    x.add_(1)
    log(x)
    x.add_(1)
    return x


def writes_a_view(x: Any) -> Any:
    log(x)
    with torch.no_grad():
        WEIGHT[0].mul_(1)
    return x


def leaves_a_gradient(x: Any) -> Any:
    loss = (x * WEIGHT).sum()
    log(loss)
    loss.backward()
    return loss.detach()


AFTER: dict[Callable[[Any], Any], str] = {
    changes_a_list: r"changes 0 of .*STEPS after it has called log.*log\(x\)",
    writes_an_argument: r"changes a tensor \(at .*x\.add_\(1\)\) after it has called log.*log\(x\)",
    writes_a_view: r"changes a tensor \(at .*WEIGHT\[0\].*after it has called log.*log\(x\)",
    leaves_a_gradient: r"changes \.grad of a tensor after it has called log.*log\(loss\)",
}


@pytest.mark.parametrize("f", AFTER)
def test_a_change_after_the_call_is_refused(f: Callable[[Any], Any]) -> None:
    with pytest.raises(RuntimeError, match=AFTER[f]):
        jit(f)(torch.ones(2))
    assert STEPS == [0] and WEIGHT.grad is None and SEEN == []


def test_what_the_function_changes_may_not_be_read_by_the_program() -> None:
    def f(x: Any) -> Any:
        log(x)
        return x * len(SEEN)

    with pytest.raises(RuntimeError, match=r"log, left out .*changes .*SEEN, which.*log\(x\)"):
        jit(f)(torch.ones(1))
    g = jit(f, ignore=[SEEN])
    n = len(SEEN)
    assert g(torch.ones(1)).item() == n


def test_the_function_may_draw_from_generators_of_python_that_the_program_does_not_read() -> None:
    drawn: list[float] = []

    @jit.outside
    def draw(x: Any) -> None:
        drawn.append(random.random())

    @jit
    def f(x: Any) -> Any:
        draw(x)
        return x * 2

    random.seed(3)
    for _ in range(3):
        assert f(torch.ones(1)).item() == 2
    random.seed(3)
    assert drawn == [random.random() for _ in range(3)]


def test_a_counter_that_is_an_argument_may_not_be_changed_by_the_function() -> None:
    class Counter:
        n = 0

        def step(self, x: Any) -> Any:
            self.n += 1
            count(self)
            return x * self.n

    @jit.outside
    def count(counter: Counter) -> None:
        counter.n += counter.n > last

    for last in (0, 4):
        g = jit(Counter().step)
        for i in range(last):
            assert g(torch.ones(1)).item() == i + 1
        with pytest.raises(RuntimeError, match=r"'n' of .*which the program may read"):
            g(torch.ones(1))


def in_vmap(x: Any) -> Any:
    return vmap(lambda y: (log(y), y)[1])(x)


def in_grad(x: Any) -> Any:
    return grad(lambda y: (log(y), y * y)[1])(x[0])


def in_a_branch(x: Any) -> Any:
    def yes(y: Any) -> Any:
        log(y)
        return y * 1

    return torch.cond(x.sum() > 0, yes, lambda y: y * 2, (x,))


@pytest.mark.parametrize("f", [in_vmap, in_grad, in_a_branch])
def test_a_call_in_a_transform_or_branch_of_the_program_is_refused(f: Any) -> None:
    with pytest.raises(RuntimeError, match=r"log is left out .*at .*log\(y\)"):
        jit(f)(torch.ones(2))
    assert SEEN == []


def test_other_compilers_refuse_the_call() -> None:
    def f(x: Any) -> Any:
        log(x)
        return x

    g = jit(f)
    g(torch.ones(1))
    SEEN.clear()
    for inner in (f, g):
        with pytest.raises(RuntimeError, match=r"log is left out .*at .*log\(x\)"):
            aot_function(lambda x, inner=inner: inner(x), nop)(torch.ones(1))
    assert SEEN == []


@pytest.mark.parametrize("way", [jit, lambda f: f], ids=["jit", "eager"])
def test_a_function_that_returns_something_is_refused(way: Any) -> None:
    @jit.outside
    def gives(x: Any) -> Any:
        return 3

    def f(x: Any) -> Any:
        gives(x)
        return x

    with pytest.raises(RuntimeError, match=r"gives .*returns a int.*at .*gives\(x\)"):
        way(f)(torch.ones(1))


def test_a_block_cannot_be_left_out() -> None:
    block: Any = jit.outside
    with pytest.raises(TypeError, match="decorator of a function"), block():
        pass


def test_the_function_has_its_name_and_text() -> None:
    assert log.__name__ == "log" and log.__doc__ == "Note what it gets."
    assert repr(log) == "<log, outside of programs>"
