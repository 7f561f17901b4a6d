"""Backward passes from many threads at once. All numbers are small integers, so that sums do not
depend on their order."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from ..scenarios import OURS

THREADS = 16


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    """Threads take turns as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def at_once(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """``work(i)`` on each of the threads, all starting together; their results, or
    the first error."""
    barrier = threading.Barrier(threads)

    def run(i: int) -> Any:
        barrier.wait()
        return work(i)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads)))


def parameters() -> list[Any]:
    sizes = ((4, 3), (3,), (3, 5), (5,), ())
    return [
        OURS.tensor(
            (torch.arange(max(1, torch.Size(s).numel())).reshape(s) % 3).double().tolist(),
            requires_grad=True,
        )
        for s in sizes
    ]


def loss(params: list[Any], k: int) -> Any:
    w, b, v, c, s = params
    x = OURS.tensor([[float((i + k) % 4) for i in range(4)] for _ in range(2)])
    return (((x @ w + b) @ v + c) * s).sum()


@pytest.mark.parametrize("repetition", range(2))
def test_shared_parameters_get_the_sums_of_the_serial_run(repetition: int) -> None:
    passes = 60
    serial, shared = parameters(), parameters()
    for k in range(THREADS):
        for _ in range(passes):
            loss(serial, k).backward()

    def work(k: int) -> None:
        for _ in range(passes):
            loss(shared, k).backward()

    at_once(work)
    for a, b in zip(serial, shared, strict=True):
        assert a.grad.tolist() == b.grad.tolist()


def test_the_first_gradients_of_all_threads_arrive() -> None:
    """Nobody's first gradient is lost where all threads find ``.grad`` empty."""
    for _ in range(30):
        x = OURS.tensor([1.0] * 64, requires_grad=True)
        at_once(lambda k: (x * (k + 1)).sum().backward())  # noqa: B023
        assert x.grad.tolist() == [THREADS * (THREADS + 1) / 2] * 64


def test_one_graph_may_be_used_by_all_threads() -> None:
    x = OURS.tensor([1.0, 2.0], requires_grad=True)
    y = (x * x * 3).sum()
    at_once(lambda k: [y.backward(retain_graph=True) for _ in range(50)])
    assert x.grad.tolist() == [6.0 * THREADS * 50, 12.0 * THREADS * 50]


def test_of_threads_that_share_and_free_a_graph_one_wins_or_all_are_told() -> None:
    x = OURS.tensor([1.0, 2.0], requires_grad=True)
    y = (x * x).sum()

    def work(k: int) -> str | None:
        try:
            y.backward()
        except RuntimeError as error:
            return str(error)
        return None

    errors = [e for e in at_once(work) if e is not None]
    assert all("backward through the graph a second time" in e for e in errors)
    succeeded = THREADS - len(errors)
    assert succeeded >= 1 and x.grad.tolist()[0] >= 2.0 * succeeded


def test_gradients_asked_for_go_to_the_thread_that_asked() -> None:
    x = OURS.tensor([1.0, 2.0], requires_grad=True)
    y = x * x

    def work(k: int) -> list[Any]:
        seed = OURS.tensor([float(k), 1.0])
        return [OURS.autograd.grad(y, x, seed, retain_graph=True)[0].tolist() for _ in range(50)]

    for k, found in enumerate(at_once(work)):
        assert found == [[2.0 * k, 4.0]] * 50
    assert x.grad is None


def test_grad_mode_belongs_to_the_thread() -> None:
    x = OURS.tensor([1.0], requires_grad=True)

    def work(k: int) -> list[bool]:
        with torch.set_grad_enabled(k % 2 == 0):
            return [(x * 2).requires_grad for _ in range(100)]

    assert at_once(work) == [[k % 2 == 0] * 100 for k in range(THREADS)]


@pytest.mark.usefixtures("routed")
def test_an_error_on_one_thread_is_that_threads() -> None:
    x = OURS.tensor([1.0], requires_grad=True)

    def work(k: int) -> Any:
        y = x * 2
        if k == 3:
            y.register_hook(lambda g: 1 / 0)
        try:
            y.backward()
        except ZeroDivisionError:
            return "error", torch._C._current_graph_task_id()
        return "fine", torch._C._current_graph_task_id()

    found = at_once(work)
    assert found[3] == ("error", -1)
    assert [f for k, f in enumerate(found) if k != 3] == [("fine", -1)] * (THREADS - 1)
    assert x.grad.tolist() == [2.0 * (THREADS - 1)]


def test_hooks_on_several_gradients_keep_passes_apart() -> None:
    x, y = (OURS.tensor([1.0], requires_grad=True) for _ in range(2))
    seen: list[Any] = []
    OURS.graph.register_multi_grad_hook((x, y), lambda gs: seen.append([g.tolist() for g in gs]))
    at_once(lambda k: (x * k + y * 2 * k).backward())
    assert sorted(seen) == [[[float(k)], [2.0 * k]] for k in range(THREADS)]


def test_deep_passes_nest_on_all_threads() -> None:
    def work(k: int) -> int:
        depth = [0]

        def nested(g: Any) -> None:
            depth[0] += 1
            if depth[0] < 80:
                with torch.enable_grad():
                    z = OURS.tensor([1.0], requires_grad=True) * 2
                z.register_hook(nested)
                z.backward()

        nested(None)
        return depth[0]

    assert at_once(work, 8) == [80] * 8
