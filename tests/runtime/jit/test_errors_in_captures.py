"""Errors that torch raises while a program is captured: the call runs in eager mode instead, so
that objects are afterwards as the program has left them."""

from __future__ import annotations

import functools
import gc
import re
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from runtime import dropin, jit

X = torch.arange(1.0, 7.0).reshape(2, 3)

ERRORS: dict[str, Callable[[Any, Tensor], Any]] = {
    "shapes": lambda t, x: x @ x,
    "values": lambda t, x: torch.linalg.cholesky(-x[:, :2] @ x[:, :2].T),
    "a label": lambda t, x: F.nll_loss(x, torch.tensor([1, 7])),
    "an index": lambda t, x: x[torch.tensor([5])],
    "a check of a module": lambda t, x: nn.BatchNorm1d(3)(x[:1]),
    "a check of an optimizer": lambda t, x: torch.optim.SGD([t.p], lr=-1.0),
    "a missing attribute": lambda t, x: t.mean.colour,
    "a missing key": lambda t, x: t.sums["missing"],
    "a second backward": lambda t, x: [t.p.sum().backward() or x.sum().backward()],
    "a gradient of another shape": lambda t, x: setattr(t.p, "grad", torch.ones(7)),
    "a gradient of another dtype": lambda t, x: setattr(t.p, "grad", torch.ones(3).double()),
    "a gradient that is no tensor": lambda t, x: setattr(t.p, "grad", 2.0),
    "a gradient of none": lambda t, x: (x * 2).retain_grad(),
    "an array": lambda t, x: t.p.numpy(),
    "a hook": lambda t, x: x.register_hook(print),
    "a freed graph": lambda t, x: [t.sums["1"].backward(), t.sums["1"].backward()],
    "an argument of another class": lambda t, x: torch.cat([x, t.calls]),
    "a write to a leaf": lambda t, x: t.p.add_(1),
    "a size": lambda t, x: x.view(t.calls, -1, 7),
}


def _changes_all(t: Any, x: Tensor) -> None:
    t.calls += 1
    t.log.append(t.calls)
    t.sums[f"{t.calls}"] = x.sum() + torch.rand(())
    t.mean.mul_(0.5).add_(x)
    if t.p.grad is not None:
        t.p.grad.mul_(2)
    (t.p * x).sum().backward()


def _state() -> Any:
    p = torch.ones(3, requires_grad=True)
    return SimpleNamespace(calls=0, log=[], sums={}, mean=torch.zeros(2, 3), p=p, fails=False)


def _left_by(raise_error: Callable[[Any, Tensor], Any], good: int, jits: bool) -> str:
    """Return what a call leaves and raises that fails after ``good`` others."""
    t = _state()

    def step(x: Tensor) -> Any:
        _changes_all(t, x)
        if t.fails:
            raise_error(t, x)
        t.log.append("end")
        return t.mean.sum()

    f: Callable[[Tensor], Any] = step
    if jits:
        f = jit(step)
    torch.manual_seed(0)
    for _ in range(good):
        f(X)
    t.fails = True
    with pytest.raises(Exception) as caught:
        f(X)
    text = str(caught.value).partition("\n")[0]
    return repr((type(caught.value), text, vars(t), t.p.grad, torch.rand(1)))


@pytest.mark.parametrize("good", [0, 1, 3])
@pytest.mark.parametrize("name", ERRORS)
def test_a_call_leaves_what_the_program_had_changed_before_the_error(name: str, good: int) -> None:
    assert _left_by(ERRORS[name], good, True) == _left_by(ERRORS[name], good, False)


@pytest.mark.parametrize("name", ["shapes", "values", "a check of a module"])
def test_the_error_names_the_line_of_the_program(name: str) -> None:
    def fail(x: Tensor) -> Any:
        return ERRORS[name](None, x)

    with pytest.raises((RuntimeError, ValueError), match=r"test_errors_in_captures\.py:.*lambda"):
        jit(fail)(X)


def test_an_error_of_torch_is_no_break() -> None:
    f = jit(lambda x, w: x.add_(1) @ w, on_break="eager")
    x = torch.ones(2, 2)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        f(x, torch.ones(3, 3))
    assert x.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_a_refusal_that_comes_before_leaves_all_as_it_was() -> None:
    t = _state()

    def step(x: Tensor) -> Tensor:
        _changes_all(t, x)
        return x if x.tolist()[0] > 0 else x @ x

    before = repr(vars(t))
    with pytest.raises(RuntimeError, match="asks for the elements of a tensor"):
        jit(step)(X)
    assert repr(vars(t)) == before and t.p.grad is None


def test_a_lock_that_the_program_holds_is_free_for_the_eager_run() -> None:
    lock, again = threading.Lock(), threading.RLock()

    def step(x: Tensor) -> Tensor:
        assert lock.acquire(timeout=5), "held by the capture"
        again.acquire()
        y = x @ x
        lock.release()
        return y

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        jit(step)(X)
    assert lock.locked()
    again.release()
    with pytest.raises(RuntimeError, match="cannot release"):
        again.release()


def test_what_a_cached_function_does_is_done_once() -> None:
    seen: list[int] = []

    @functools.lru_cache
    def look_up(n: int) -> int:
        seen.append(n)
        return 2 * n

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        jit(lambda x: (x * look_up(3)) @ x)(X)
    assert seen == [3]


def test_an_error_keeps_nothing_alive() -> None:
    class Batch:
        values = X

    kept: list[weakref.ref[Batch]] = []

    def step(x: Tensor) -> Tensor:
        batch = Batch()
        kept.append(weakref.ref(batch))
        return batch.values @ x

    f = jit(step, ignore=(kept,))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        f(X)
    gc.collect()
    assert kept and all(reference() is None for reference in kept)


def test_a_trace_of_torchs_that_is_caught_is_refused() -> None:
    def step(x: Tensor) -> Any:
        try:
            return make_fx(torch.sin)(x)(x)
        except RuntimeError:
            return x * 99

    with pytest.raises(RuntimeError, match="the program catches RuntimeError: a trace of torch's"):
        jit(step)(X)


class Empty:
    pass


def test_an_object_without_attributes_is_no_result_of_all_calls() -> None:
    with pytest.raises(RuntimeError, match="returns a Empty, which it has made"):
        jit(lambda x: (x * 2, Empty()))(X)


FOREIGN_MEMORY: dict[str, Callable[[], object]] = {
    "from_numpy": lambda: torch.from_numpy(np.arange(3.0)[::-1]),
    "frombuffer": lambda: torch.frombuffer(bytearray(b"abc"), dtype=torch.float32),
}


@pytest.mark.parametrize("name", FOREIGN_MEMORY)
def test_an_error_of_foreign_memory_leaves_the_state_as_in_eager_mode(name: str) -> None:
    def outcomes(compiled: Callable[[Any], Any]) -> list[object]:
        held = SimpleNamespace(array=np.zeros(2), n=0, seen=[], fails=False)

        def program(x: Any) -> Any:
            held.array[0] += 1
            held.n += 1
            held.seen.append(1)
            if held.fails:
                FOREIGN_MEMORY[name]()
            return x * 2

        step = compiled(program)
        found: list[object] = []
        for held.fails in (False, True, False, True):
            try:
                step(torch.ones(2))
            except ValueError as error:
                found.append(type(error).__name__)
            found.append((held.array.tolist(), held.n, len(held.seen)))
        return found

    with dropin.installed():
        assert outcomes(jit) == outcomes(lambda f: f)


async def _draws(x: Tensor) -> AsyncIterator[Tensor]:
    yield x * 2


def test_an_asynchronous_generator_that_the_program_makes_is_refused_as_a_result() -> None:
    with pytest.raises(RuntimeError, match="returns a async_generator, which it has made"):
        jit(_draws)(torch.ones(1))


@pytest.mark.parametrize(
    "make",
    [lambda: Decimal(2), lambda: re.compile("a"), lambda: weakref.ref(Decimal), lambda: range(3)],
)
def test_a_constant_that_the_program_makes_is_a_result(make: Callable[[], Any]) -> None:
    compiled = jit(lambda x: (x * 2, make()))
    for _ in range(2):
        assert compiled(torch.ones(1))[1] == make()


def _with_a_list(x: Tensor) -> object:
    def count(seen: list[int] = []) -> int:  # noqa: B006
        seen.append(1)
        return len(seen)

    return x * 1, count


def _with_a_list_by_name(x: Tensor) -> object:
    def count(*, seen: list[int] = []) -> int:  # noqa: B006
        seen.append(1)
        return len(seen)

    return x * 1, count


@pytest.mark.parametrize("f", [_with_a_list, _with_a_list_by_name])
def test_a_function_that_is_made_with_a_default_that_may_change_is_refused(f: Any) -> None:
    """All calls would have one list, and eager mode makes one in each."""
    with pytest.raises(RuntimeError, match="returns a function, which it has made"):
        jit(f)(torch.ones(1))
