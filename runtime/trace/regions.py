"""Marks regions of a traced program, the calls between two moments, in the graph of the trace.

A checkpoint inside a compiled program is such a region. Its calls say in ``meta`` what the
partition is to do with their results.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import fx

from ..seam.level_mode import LevelMode
from ..seam.levels import Level, levels_of
from ..torch_private.mode_stacks import current_dispatch_modes, number_of_modes_before_dispatch
from .pre_dispatch import suspended
from .trace_level import Trace

_KEY = "ac_graph_id"
_numbers = itertools.count(1)


def running_levels() -> list[Level]:
    """Return the levels whose modes run on this thread, outermost first."""
    modes: list[Any] = current_dispatch_modes()
    if number_of_modes_before_dispatch():
        with suspended() as before_dispatch:
            modes = [before_dispatch, *modes]
    return [mode.level for mode in modes if isinstance(mode, LevelMode)]


def running_traces() -> list[Trace]:
    """Return the traces that run on this thread, outermost first."""
    return [level for level in running_levels() if isinstance(level, Trace)]


def traced(args: Iterable[object], kwargs: Mapping[str, object] = MappingProxyType({})) -> bool:
    """Return whether a trace sees a call: its mode is active, or one of its values is within an
    argument."""
    if running_traces():
        return True
    for argument in itertools.chain(args, kwargs.values()):
        if any(isinstance(level, Trace) for level in levels_of(argument)):
            return True
    return False


@contextmanager
def region(mark: Callable[[fx.Node], object]) -> Generator[list[fx.Node]]:
    """Number the calls that running traces write down meanwhile, and set ``meta["recompute"]``
    to ``mark(call)``. The list that it yields has these calls at the end.

    A region inside another one belongs to the outer one.
    """
    with new_calls() as calls:
        yield calls
    number = next(_numbers)
    for trace in running_traces():
        trace.abstract.complete()  # a policy asks for the results
    for node in calls:
        node.meta[_KEY] = number
        node.meta["recompute"] = mark(node)


@contextmanager
def new_calls() -> Generator[list[fx.Node]]:
    """Yield a list that has, at the end, the calls that running traces write down meanwhile, in the
    order of the program, which a policy may count on."""
    traces = running_traces()
    before = [next(iter(reversed(trace.graph.nodes)), None) for trace in traces]
    calls: list[fx.Node] = []
    yield calls
    for trace, last in zip(traces, before, strict=True):
        # from the end, because the graph before the region may be long
        nodes = itertools.takewhile(partial(operator.is_not, last), reversed(trace.graph.nodes))
        calls += [node for node in reversed([*nodes]) if node.op == "call_function"]


def region_of(node: fx.Node) -> int | None:
    """Return the number of the region that the call ``node`` belongs to, None without one."""
    number: int | None = node.meta.get(_KEY)
    return number
