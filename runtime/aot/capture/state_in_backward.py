"""Refuse what a backward pass of the graph would change in Python's state.

    @staticmethod
    def backward(ctx, g):
        stats.calls += 1        # in eager mode at each backward pass, outside of the call
        return g * 2

A capture runs the backward pass, to trace it, and a call runs the graph of it alone. So what custom
Functions and hooks change there would be done by the call, and by no backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...trace.provenance import happened_at
from ..python_state.name_lines import line_naming
from ..python_state.nodes import Change
from ..python_state.program_state import RUN
from ..python_state.values import same


@contextmanager
def refusing_changes() -> Iterator[None]:
    """Run a backward pass that is traced. ``RuntimeError`` if it changes Python's state."""
    state = RUN.state
    if state is None:
        yield
        return
    before = state.changes()
    yield
    change = _first_new(before, state.changes())
    if change is not None:
        code = state.graph.code
        line = line_naming(str(change.label), code.entered.values()) or code.first_line
        raise RuntimeError(
            f"the program changes {change.what} in the backward pass of a result: in a custom "
            "Function or in a hook. In eager mode that happens when the caller runs the pass, and "
            "a graph has tensors alone. Let the program run backward() itself, name the object in "
            f"ignore=, or leave the Function out of what is compiled.{happened_at(line)}"
        )


def _first_new(before: Sequence[Change], after: Sequence[Change]) -> Change | None:
    """Return the first change that is not among those ``before``."""
    known = {(id(change.node), change.label): change for change in before}
    for change in after:
        old = known.pop((id(change.node), change.label), None)
        if old is None or not same(old.now, change.now):
            return change
    return next(iter(known.values()), None)
