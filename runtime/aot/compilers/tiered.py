"""Serve a graph by the replay, and by native code once that is compiled, right and faster.

    f = jit(f, compiler="auto")
    f(x)                            # the replay, at once
    for _ in range(200): f(x)       # meanwhile Inductor compiles in the background
    explain(f)                      # forward: native code, 5.1 µs beside 14.9 of the replay

The replay is there without delay, and a call of a kernel from Python costs it a microsecond.
Inductor takes seconds, and its code may be faster or not. So a graph that is called often is
compiled in the background. Then a few calls run both: the results are compared, and the times. Any
failure leaves the replay.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx

from ...seam.locks import in_child, lock_of
from ...torch_private.dispatcher import below_autograd
from ...trace.symbols import SYMBOLIC
from .boxed import Boxed, nop
from .graph_effects import draws, may_raise, runs_user_code
from .inductor import inductor
from .inductor_trial import TrialFailed
from .native_ops import calls_kernels, reason_for_kernels
from .staged import Settling, Staged

CALLS = 100
"""Calls of a graph before it is compiled. A compilation takes as long as a million small calls, so
that a program which ends soon should begin none."""
ROUNDS = 5
"""Calls that run both, and are compared and timed."""
LIMIT = 600.0
"""Seconds that one graph may take Inductor."""
BUDGET = 1800.0
"""Seconds that all graphs of a process may take it together."""


def tiered(
    module: fx.GraphModule,
    inputs: list[object],
    *,
    calls: int = CALLS,
    rounds: int = ROUNDS,
    limit: float = LIMIT,
) -> Boxed:
    """Compile a graph as ``jit(f, compiler="auto")`` does: the replay, and native code later.

    Args:
        module: The graph.
        inputs: The values that its inputs had in the trace.
        calls: How often the replay serves before Inductor compiles, in the background.
        rounds: How many calls run both, to compare results and times.
        limit: Seconds that Inductor may take.

    Returns:
        A boxed function. Its results are those of the replay bit for bit, until native code takes
        over: from then on sums may be added in another order.
    """
    return Tiers(module, inputs, calls=calls, rounds=rounds, limit=limit)


class Tiers(Settling):
    """Run one graph by the tier that serves it now.

    ``placed``, ``writes``: as those of :func:`.replay.as_python`, of this tier. ``says``: which
    tier that is, and why, for people.
    """

    def __init__(
        self, module: fx.GraphModule, inputs: list[object], *, calls: int, rounds: int, limit: float
    ) -> None:
        self._replay = nop(module, inputs)
        self.placed: dict[int, int] = getattr(self._replay, "placed", {})
        self.writes: dict[int, int] = getattr(self._replay, "writes", {})
        self._compile: Callable[[], Any] | None = partial(_native_code, module, inputs, limit)
        self._may_raise = may_raise(module)
        self._calls, self._rounds = calls, rounds
        self._count = 0
        self._times: list[tuple[float, float]] = []
        self._native: Any = None
        self._is_tried = False  # by a thread, now
        self._lock = lock_of(self, "_lock")
        self.says = "the replay"
        self._serve: Boxed = self._counted
        reason = _reason_for_replay(module, inputs)
        if reason:
            self._keep_replay(reason)

    def __call__(self, args: list[Any]) -> Any:
        """Return the results of the graph, and empty ``args``."""
        return self._serve(args)

    # --- the tiers, in their order ----------------------------------------------------------------

    def _counted(self, args: list[Any]) -> Any:
        """Serve by the replay, until the graph has been called often."""
        self._count += 1
        if self._count >= self._calls:
            self._begin()
        return self._replay(args)

    def _begin(self) -> None:
        """Ask for native code. The replay serves meanwhile."""
        with self._lock:
            if self._count < self._calls or self._serve != self._counted:
                return  # another thread has asked
            self._serve = self._replay
            self.says = "the replay, while Inductor compiles"
        BACKGROUND.do(self._compile_native)

    def _compile_native(self) -> None:
        """Compile in the background, and let the next calls run both."""
        if BACKGROUND.spent >= BUDGET:
            self._keep_replay("the time for compiling in the background is spent")
            return
        try:
            assert self._compile is not None, "it is compiled once, before the end"
            native: Any = self._compile()
        except Exception as error:  # whatever it is, the replay goes on
            self._keep_replay(_first_line(error))
            return
        if set(native.placed) != set(self.placed):
            self._keep_replay("native code writes to other arguments in place")
            return
        self._native, self._serve = native, self._tried
        self.says = "the replay, beside which native code is tried"

    def _tried(self, args: list[Any]) -> Any:
        """Serve by the replay, and run native code on copies. The last such call decides."""
        with self._lock:
            tries = self._serve == self._tried and not self._is_tried
            self._is_tried |= tries
        if not tries:  # another thread does, and this one is served
            return self._replay(args)
        try:
            return self._run_both(args)
        finally:
            self._is_tried = False

    def _run_both(self, args: list[Any]) -> Any:
        """Return the results of the replay. Native code gets copies of all arguments: code that is
        wrong may write to any of them."""
        given = list(args)
        try:
            copies = [*map(_copy_of, args)]
        except RuntimeError as error:  # such as too little memory
            self._keep_replay(f"its arguments are not copied: {_first_line(error)}")
            return self._replay(args)
        kept = list(copies)  # a run empties the list of its arguments
        begin = time.perf_counter()
        results = self._replay(args)
        between = time.perf_counter()
        try:
            found = self._native(copies)
            end = time.perf_counter()
            written = [given[number] for number in self.placed]
            new = [
                (a, b)
                for a, b in zip(results, found, strict=True)
                if not (b is None and _is_one_of(a, written))
            ]
            difference = _difference([*new, *zip(given, kept, strict=True)])
        # The replay has served the call. What its results do not show is no error of the call.
        except Exception as error:
            self._keep_replay(f"native code raises {_first_line(error)}")
            return results
        if difference:
            self._keep_replay(f"native code gives {difference}")
            return results
        self._times.append((between - begin, end - between))
        if len(self._times) >= self._rounds:
            self._choose()
        return results

    def _choose(self) -> None:
        """Let the faster one serve from now on. Medians: a call may be interrupted."""
        replay, native = (
            1e6 * statistics.median(times) for times in zip(*self._times, strict=True)
        )
        if native < replay:
            # by how much a call advances the versions of what the graph has written
            self.placed.update(self._native.placed)
            says = f"native code, {native:.1f} µs beside {replay:.1f} of the replay"
            serve = self._native
            if self._may_raise and not self.placed:
                serve = _with_errors_of(self._replay, serve)
            self._end(serve, says)
        else:
            self._keep_replay(f"native code takes {native:.1f} µs, and the replay {replay:.1f}")

    # --- the end ----------------------------------------------------------------------------------

    def _keep_replay(self, reason: str) -> None:
        self._end(self._replay, f"the replay: {reason}")

    def _end(self, serve: Boxed, says: str) -> None:
        """Let ``serve`` be the last tier, and say so."""
        with self._lock:
            self._serve, self.says = serve, says
            self._native, self._times = None, []
            self._compile = None  # which holds the abstract values of the trace
            # a staged replay is not the last function yet, so it stays behind this one
            if self.settled is not None and not isinstance(serve, Staged):
                _TEXTS[serve] = says
                self.settled(serve)
                self.settled = None


def _native_code(module: fx.GraphModule, inputs: list[object], limit: float) -> Any:
    """Return Inductor's code for a graph, in which C++ calls the kernels of the CPU if it can.

    Without kernels Python calls one loop or two, which takes less than to enter C++ with tensors.
    """
    if not calls_kernels(module) or not all(map(_is_on_cpu, inputs)):
        return inductor(module, inputs, limit=limit)
    try:
        return inductor(module, inputs, limit=limit, cpp_wrapper=True)
    except RuntimeError as error:
        reason = error.__cause__
        if not isinstance(reason, TrialFailed) or reason.what != "error":
            raise
    # some graphs have no such code
    return inductor(module, inputs, limit=limit)


def _is_on_cpu(value: object) -> bool:
    return not isinstance(value, torch.Tensor) or value.device.type == "cpu"


def _with_errors_of(replay: Boxed, native: Boxed) -> Boxed:
    """Return native code whose errors are those of the replay: of torch's classes and with its
    texts. Neither writes to an argument."""

    def run(args: list[Any]) -> Any:
        """Return the results of the graph, and empty ``args``."""
        kept = list(args)
        try:
            return native(args)
        except Exception:
            return replay(kept)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


_TEXTS: WeakKeyDictionary[Boxed, str] = WeakKeyDictionary()  # of functions that are settled


def described(run: Boxed | None) -> str:
    """Return the function that serves a graph, and the reason. Empty if no tier has chosen it."""
    if isinstance(run, Tiers):
        return run.says
    if run is None:
        return ""
    return _TEXTS.get(run, "")


def _reason_for_replay(module: fx.GraphModule, inputs: Sequence[object]) -> str:
    """Return why the graph stays with the replay; nothing if native code may be tried."""
    if draws(module):
        return "it draws random numbers, which two runs would draw twice"
    if runs_user_code(module):
        return "it calls an op of another library, which may have effects"
    if any(type(x) in SYMBOLIC for x in inputs):
        return "it takes numbers that change, of which a compiler may ask what no guard has"
    if any(map(_has_symbols, inputs)):
        return "its sizes are symbols, of which a compiler may ask what no guard has"
    return reason_for_kernels(module)


def _has_symbols(value: object) -> bool:
    """Return whether a size of a tensor is a symbol."""
    if not isinstance(value, torch.Tensor):
        return False
    return any(type(size) is not int for size in value.shape)


def _is_one_of(result: object, written: Sequence[object]) -> bool:
    """Return whether a result is an argument that the graph has written, which native code gives as
    None. It is compared as an argument."""
    return any(result is argument for argument in written)


def _copy_of(x: Any) -> Any:
    """Return a copy of a tensor in memory of its own, with the strides for which code is compiled;
    anything else as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    with below_autograd():
        return _memory_of(x).clone().as_strided(x.shape, x.stride(), 0)


def _memory_of(x: torch.Tensor) -> torch.Tensor:
    """Return the elements of memory from the first to the last one of a tensor, each once. An
    expanded tensor shows an element many times, and a row of a table is a small part of it."""
    if not x.numel():
        return x.new_empty(0)
    steps = zip(x.shape, x.stride(), strict=True)
    length = 1 + sum((size - 1) * stride for size, stride in steps)
    return x.as_strided((length,), (1,), x.storage_offset())


def _difference(pairs: Sequence[tuple[object, object]]) -> str:
    """Describe how the results of native code differ. Empty if rounding explains it.

    ``pairs``: each value of the replay and that of native code.
    """
    for number, (a, b) in enumerate(pairs):
        difference = _difference_of_one(a, b)
        if difference:
            return f"{difference} as result {number}"
    return ""


def _difference_of_one(a: object, b: object) -> str:
    """Describe how result ``b`` differs from ``a``. Empty if rounding explains it."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        # NaN does not equal itself
        same = type(a) is type(b) and (a == b or a != a)
        return "" if same else f"{b!r:.40} for {a!r:.40}"
    if (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
        return f"{b.dtype}{list(b.shape)} for {a.dtype}{list(a.shape)}"
    if a.numel() and a.stride() != b.stride():
        return f"strides {list(b.stride())} for {list(a.stride())}"
    with below_autograd():
        return _difference_of_values(_once(a), _once(b))


def _once(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor without the repetitions that an expanded one shows of its elements."""
    for dim, stride in enumerate(x.stride()):
        if stride == 0:
            x = x.narrow(dim, 0, min(1, x.shape[dim]))
    return x


def _difference_of_values(a: torch.Tensor, b: torch.Tensor) -> str:
    """Compare elements. Sums in another order differ by some units in the last place of the
    largest term, which may be larger than the sum."""
    if not (a.is_floating_point() or a.is_complex()):
        return "" if a.equal(b) else "other elements"
    tolerance = torch.finfo(a.dtype).eps ** (2 / 3)
    scale = a.abs().nan_to_num(0.0, 0.0, 0.0).max().item() if a.numel() else 0.0
    if torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
        return ""
    return "other elements"


def _first_line(error: BaseException) -> str:
    lines = f"{type(error).__name__}: {error}".splitlines()
    return lines[0][:200]


# --- the background -------------------------------------------------------------------------------


class Background:
    """Compile one graph after the other in a thread, which ends with the interpreter.

    A crash of Inductor is one of the process in which it is tried (:mod:`.inductor_trial`).
    """

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """Begin anew, without a thread: a fork has none. Its graphs stay with the replay."""
        self.spent = 0.0
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def do(self, job: Callable[[], None]) -> None:
        """Let ``job`` run after those before."""
        with self._lock:
            self._jobs.put(job)
            if self._thread is None:
                # a daemon: the interpreter waits for none at its exit
                self._thread = threading.Thread(
                    target=self._work, name="runtime-native-code", daemon=True
                )
                self._thread.start()

    def _work(self) -> None:
        _lower_priority()
        while True:
            job = self._jobs.get()
            begin = time.monotonic()
            job()
            self.spent += time.monotonic() - begin


def _lower_priority() -> None:
    """Let the threads of the user go first, where the system has a priority for each thread."""
    if hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


BACKGROUND = Background()
in_child(BACKGROUND, Background.forked)
