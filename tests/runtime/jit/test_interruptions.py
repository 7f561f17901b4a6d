"""A jitted function in another process, in a copy, in several threads, and where its program does
not come to an end: state is as eager mode leaves it, or as it was before the call."""

from __future__ import annotations

import copy
import fractions
import io
import json
import multiprocessing
import pickle
import queue
import statistics
import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runtime import jit
from runtime.jit import explain

X = torch.ones(2)


@jit
def doubles(x: Tensor) -> Tensor:
    return x * 2


def _triples(x: Tensor) -> Tensor:
    return x * 3


class Holder(nn.Module):
    """A module with jitted functions among its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.run = jit(self.inner)
        self.triples = jit(_triples, dynamic=True)
        self.step = jit(self.triple_all)

    def triple_all(self, x: Tensor) -> Tensor:
        found: Tensor = self.triples(self.run(x))
        return found

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.step(x)
        return found


def _saved(x: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "deepcopy": copy.deepcopy,
    "torch.save": _saved,
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_a_module_that_holds_jitted_functions_has_its_own_parameters(name: str) -> None:
    module = Holder()
    before = module(X)
    other = COPIES[name](module)
    with torch.no_grad():
        other.inner.weight.zero_()
    assert torch.equal(module(X), before)
    assert torch.equal(other(X), other.inner.bias * 3)
    assert len(explain(other.step).programs) == 1


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_a_decorated_function_is_that_function(name: str) -> None:
    assert COPIES[name](doubles) is doubles


def _child(connection: Any, run: Callable[[Tensor], Tensor], state: Any) -> None:
    state.rate = 5.0
    connection.send((run(X).tolist(), state.count))


def test_a_forked_process_goes_on_with_its_own_state() -> None:
    state = SimpleNamespace(rate=2.0, count=0)

    @jit
    def run(x: Tensor) -> Any:
        state.count += 1
        return x * state.rate

    run(X)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads around
        child = context.Process(target=_child, args=(theirs, run, state))
        child.start()
    assert ours.recv() == ([5.0, 5.0], 2)
    child.join()
    assert run(X).tolist() == [2.0, 2.0] and state.count == 2


class Stop(Exception):
    """What the program below raises."""


def _stops(t: Any, x: Tensor, at: int) -> Any:
    """Does several things, and raises before the one of number ``at``."""
    for i, change in enumerate(_CHANGES):
        if i == at:
            raise Stop(i)
        change(t, x)
    return x * t.n


def _counts(t: Any, x: Tensor) -> None:
    t.n += 1


def _appends(t: Any, x: Tensor) -> None:
    t.found.append(t.n)


def _writes(t: Any, x: Tensor) -> None:
    t.w.add_(x)


def _keeps(t: Any, x: Tensor) -> None:
    t.last = x * t.n


def _drops(t: Any, x: Tensor) -> None:
    t.found.pop(0)


_CHANGES = (_counts, _appends, _writes, _keeps, _counts, _writes, _drops)


@pytest.mark.parametrize("at", range(len(_CHANGES)))
def test_an_error_of_the_program_leaves_what_it_leaves_in_eager_mode(at: int) -> None:
    def seen(wrap: Callable[..., Any]) -> list[Any]:
        t = SimpleNamespace(n=0, found=[7], w=torch.zeros(2), last=torch.zeros(2))
        run = wrap(lambda x, at: _stops(t, x, at))
        states = []
        for stop in (at, 99, at, at, 99):
            if stop == at:
                with pytest.raises(Stop):
                    run(X, stop)
            else:
                run(X, stop)
            states.append((t.n, list(t.found), t.w.tolist(), t.last.tolist()))
        return states

    assert seen(jit) == seen(lambda f: f)


ENDS: dict[str, Callable[[], Any]] = {
    "exit": lambda: sys.exit(3),
    "a class of its own": lambda: _ends(),
    "json": lambda: json.loads("{"),
    "statistics": lambda: statistics.mean([]),
    "fractions": lambda: fractions.Fraction(1, 0),
    "an empty queue": lambda: queue.Queue().get_nowait(),
}


class Ended(BaseException):
    """No ``Exception``."""


def _ends() -> None:
    raise Ended


@pytest.mark.parametrize("name", ENDS)
def test_what_python_raises_for_a_program_is_an_error_of_its_own(name: str) -> None:
    t = SimpleNamespace(n=0)

    @jit
    def f(x: Tensor) -> Any:
        t.n += 1
        if t.n % 2 == 0:
            ENDS[name]()
        return x * t.n

    with pytest.raises(BaseException) as found:
        ENDS[name]()
    for n in (1, 3):
        assert torch.equal(f(X), X * n)
        with pytest.raises(found.type):
            f(X)
        assert t.n == n + 1


def test_an_error_that_only_a_capture_raises_is_told_and_the_call_runs_eagerly() -> None:
    def f(x: Tensor) -> Tensor:
        if type(x) is not torch.Tensor:
            raise Stop
        return x * 2

    with pytest.warns(UserWarning, match="f raises Stop.*when it is captured, and not in eager"):
        assert jit(f)(X).tolist() == [2.0, 2.0]


def _interrupt_at(line: int) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that interrupts ``_stops`` at the start of a line."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code is not _stops.__code__:
            return None
        if event == "line" and frame.f_lineno == line and frame.f_locals.get("i") == 3:
            raise KeyboardInterrupt
        return trace

    return trace


@pytest.mark.parametrize("offset", [2, 3, 5])  # the loop, the condition, the change
def test_an_interrupted_capture_leaves_all_as_before_the_call(offset: int) -> None:
    t = SimpleNamespace(n=0, found=[7], w=torch.zeros(2), last=torch.zeros(2))
    run = jit(lambda x: _stops(t, x, 99))
    before = sys.gettrace()
    sys.settrace(_interrupt_at(_stops.__code__.co_firstlineno + offset))
    try:
        with pytest.raises(KeyboardInterrupt):
            run(X)
    finally:
        sys.settrace(before)
    assert sys.getprofile() is None
    assert (t.n, t.found, t.w.tolist(), t.last.tolist()) == (0, [7], [0.0] * 2, [0.0] * 2)
    assert run(X).tolist() == [float(t.n)] * 2


def test_threads_that_call_find_one_state_or_the_other_while_a_third_one_writes() -> None:
    class Pair:
        def __init__(self, value: float) -> None:
            self.first = self.second = value

    pairs = [Pair(1.0), Pair(2.0)]
    t = SimpleNamespace(pair=pairs[0])
    run = jit(lambda x: torch.stack((x * t.pair.first, x * t.pair.second)))
    for pair in pairs:  # both have their programs
        t.pair = pair
        run(X)
    stop, wrong = threading.Event(), []

    def write() -> None:
        while not stop.is_set():
            t.pair = pairs[1] if t.pair is pairs[0] else pairs[0]

    def call() -> None:
        for _ in range(200):
            first, second = run(X)
            if not torch.equal(first, second):
                wrong.append((first, second))

    writer = threading.Thread(target=write)
    writer.start()
    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    stop.set()
    writer.join()
    assert wrong == []


def test_a_call_does_not_write_back_a_number_that_its_program_only_reads() -> None:
    """Another thread assigns one while the graph runs, which the compiler stands for here."""
    t = SimpleNamespace(n=0, rate=1.0)
    meanwhile: list[Any] = []

    def compiler(graph: Any, _: Any) -> Any:
        def run(*args: Any) -> Any:
            for assign in meanwhile:
                assign()
            return graph(*args)

        return run

    @jit(compiler=compiler)
    def step(x: torch.Tensor) -> Any:
        t.n += 1
        return x * t.rate

    for rate in (1.0, 2.0, 3.0, 4.0):  # it becomes an argument
        t.rate = rate
        step(X)
    meanwhile.append(lambda: setattr(t, "rate", 9.0))
    assert torch.equal(step(X), X * 4)
    assert (t.n, t.rate) == (5, 9.0)


@pytest.mark.parametrize("kind", ["a number", "a tensor", "a list", "a tensor that is given"])
def test_no_change_is_lost_by_threads_that_make_the_first_calls(kind: str) -> None:
    found = torch.ones(2)
    t = SimpleNamespace(number=0, tensor=torch.zeros(()), items=[])

    def step(x: torch.Tensor) -> torch.Tensor:
        if kind == "a tensor":
            t.tensor = t.tensor + 1
        elif kind == "a list":
            t.items.append(1)
        else:
            t.number += 1
        return x * found

    run, n = jit(step, limit=200), 12
    errors: list[BaseException] = []

    def call(turn: int) -> None:
        try:
            for i in range(n):
                run(found if kind == "a tensor that is given" and (i + turn) % 2 else X)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    counted = {"a tensor": t.tensor.item(), "a list": len(t.items)}
    assert counted.get(kind, t.number) == 4 * n


def test_calls_in_eager_mode_wait_for_one_another_s_locks_and_lose_no_change() -> None:
    t, lock, meeting = SimpleNamespace(number=0), threading.RLock(), threading.Barrier(2)

    def step(x: torch.Tensor) -> torch.Tensor:
        t.number += 1
        if x.numel() == 3 and x.tolist()[0] > 0:  # which no program can ask
            meeting.wait(20)  # the other call begins meanwhile
            with lock:
                t.number += 1
        return x * 2

    run = jit(step, on_break="eager", ignore=[lock, meeting])
    errors: list[BaseException] = []

    def call() -> None:
        try:
            with lock:
                run(torch.ones(2))
            run(torch.ones(3))
        except BaseException as error:
            errors.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert errors == [] and not any(thread.is_alive() for thread in threads)
    assert t.number == 6


class Batch:
    """An argument that ``meets`` another thread while a call looks at it."""

    meets: Callable[[], object] | None = None

    def __init__(self, x: Any) -> None:
        self.x = x


def _parts_of_batch(batch: Batch) -> tuple[list[Any], None]:
    if batch.meets is not None:
        batch.meets()
    return [batch.x], None


torch.utils._pytree.register_pytree_node(Batch, _parts_of_batch, lambda parts, _: Batch(*parts))


def test_a_program_that_another_thread_has_just_captured_assigns_as_in_eager_mode() -> None:
    t = SimpleNamespace()

    def step(batch: Batch) -> Any:
        if batch.x.dim() == 2:
            t.last = batch.x * 3
        return batch.x + 1

    run = jit(step)
    for _ in range(3):
        run(Batch(X))  # no call assigns by now
    entered, leave = threading.Event(), threading.Event()
    late = Batch(torch.ones(2, 2))

    def meets() -> None:
        entered.set()
        assert leave.wait(20)

    late.meets = meets
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(run(late)))
    thread.start()
    assert entered.wait(20)
    run(Batch(torch.zeros(2, 2)))
    del t.last  # as it was when that program was captured
    leave.set()
    thread.join()
    assert torch.equal(found[0], late.x + 1) and torch.equal(t.last, late.x * 3)


def test_traces_of_two_threads_leave_torch_s_generator_alone() -> None:
    first, second, ended = threading.Event(), threading.Event(), threading.Event()

    def doubles(x: torch.Tensor) -> torch.Tensor:
        first.set()
        second.wait(0.5)  # for a trace that must not begin by now
        return x * 2

    def triples(x: torch.Tensor) -> torch.Tensor:
        second.set()
        assert ended.wait(20)
        return x * 3

    events = [first, second, ended]
    before, errors = torch.get_rng_state(), list[BaseException]()

    def call(f: Callable[..., Any]) -> None:
        try:
            jit(f, ignore=events)(X)
        except BaseException as error:
            errors.append(error)
        ended.set()

    threads = [threading.Thread(target=call, args=(f,)) for f in (doubles, triples)]
    threads[0].start()
    assert first.wait(20)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert errors == [] and torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("options", [{}, {"check": 2}], ids=["", "check"])
@pytest.mark.parametrize("whose", ["the function that is captured", "another one"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_that_is_forked_while_a_thread_captures_has_programs(
    whose: str, options: dict[str, Any]
) -> None:
    tracing, ended = threading.Event(), threading.Event()

    def waits(x: torch.Tensor) -> torch.Tensor:
        if not tracing.is_set():  # in the capture alone
            tracing.set()
            ended.wait(100)
        return x * 2

    f = jit(waits, ignore=[tracing, ended], **options)
    thread = threading.Thread(target=f, args=(X,))
    thread.start()
    assert tracing.wait(20)
    work = f if whose == "the function that is captured" else jit(_triples)
    child = multiprocessing.get_context("fork").Process(target=work, args=(X,))
    child.start()
    child.join(90)
    child.kill()  # one that has ended stays as it was
    ended.set()
    thread.join()
    child.join()
    assert child.exitcode == 0


class Count(nn.Module):
    """Counts its calls in a buffer. Other threads run while it multiplies, between read and
    write."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.work = torch.ones(200, 200)

    def forward(self, x: Tensor) -> Tensor:
        calls = self.calls + 1
        self.calls.copy_(calls + 0 * (self.work @ self.work).sum())
        return x * self.calls


def _run_in_threads(call: Callable[[], object], times: int) -> None:
    """Call from four threads at once, which take turns as often as Python lets them."""

    def work() -> None:
        for _ in range(times):
            call()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)


def test_calls_of_threads_that_write_to_a_buffer_run_one_after_the_other() -> None:
    module = Count()
    f = jit(module)
    f(X), f(X)
    seen = list[float]()
    _run_in_threads(lambda: seen.append(f(X)[0].item()), 50)
    assert module.calls == 202 and sorted(seen) == [float(i) for i in range(3, 203)]


def test_what_another_thread_s_call_assigns_is_no_change_of_a_function_outside() -> None:
    trainer, noted = SimpleNamespace(steps=0), list[int]()
    errors = list[BaseException]()

    @jit.outside
    def note(loss: Tensor, steps: int) -> None:
        noted.append(steps)

    @jit
    def step(x: Tensor) -> Tensor:
        trainer.steps += 1
        note(x.sum(), trainer.steps)
        return x * 2

    def call() -> None:
        try:
            step(X)
        except RuntimeError as e:
            errors.append(e)

    _run_in_threads(call, 25)
    assert errors == [] and trainer.steps == 100 and sorted(noted) == list(range(1, 101))
