"""Observe every call of torch's dispatcher, with the name of its overload, in each thread.

torch's profiler sees what it runs by callbacks in the dispatcher itself. So it sees composed ops,
leaf ops and what kernels call, pushes no mode, and needs no compiler. It does not see the few ops
that torch does not observe, such as ``aten::size``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from torch._C._autograd import _disable_profiler, _enable_profiler, _prepare_profiler
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    _ExperimentalConfig,
    _RecordFunctionFast,
)

__all__ = ["MARK", "Observed", "OperatorCall", "marked", "observed_calls"]

MARK = "matrix: the target runs"
"""The name of a span in which the target runs."""


@dataclass(frozen=True)
class OperatorCall:
    """A call of an op, such as ``aten::add.Tensor``, or a span with the name :data:`MARK`.

    `begin` and `end` are nanoseconds. A call that begins and ends within another one of its thread
    is made by it.
    """

    name: str
    thread: int
    begin: int
    end: int


@dataclass
class Observed:
    """The calls of a block, once it has ended."""

    calls: list[OperatorCall] = field(default_factory=list)


@contextmanager
def observed_calls() -> Iterator[Observed]:
    """Observe the calls inside a block, those of other threads too."""
    details = _ExperimentalConfig(capture_overload_names=True, profile_all_threads=True)
    # neither shapes, nor memory, stacks, operations or modules
    settings = ProfilerConfig(ProfilerState.KINETO, False, False, False, False, False, details, "")
    activities = {ProfilerActivity.CPU}
    observed = Observed()
    _prepare_profiler(settings, activities)
    _enable_profiler(settings, activities)
    try:
        yield observed
    finally:
        results = _disable_profiler()
    for event in results.events():
        name = event.name()
        if not (name.startswith("aten::") or name == MARK):
            continue
        overload = event.overload_name()
        observed.calls.append(
            OperatorCall(
                f"{name}.{overload}" if overload else name,
                event.start_thread_id(),
                event.start_ns(),
                event.end_ns(),
            )
        )


def marked() -> AbstractContextManager[object]:
    """Return a context that is seen as a span of the name :data:`MARK`."""
    span: AbstractContextManager[object] = _RecordFunctionFast(MARK)
    return span
