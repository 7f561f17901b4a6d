"""Optimizers that a program steps are among the objects that it can come to.

Torch's code changes an optimizer where no code of the user's names its attributes. So one that the
graph of objects has not found is refused: a call would leave its numbers as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..aot.python_state.object_graph import ObjectGraph
from ..seam.ambient import Ambient
from ..trace.provenance import here


class _Capture(Ambient):
    """``graph``: of the program that this thread captures."""

    graph: ObjectGraph | None = None


_CAPTURE = _Capture()


@contextmanager
def refuse_strangers(graph: ObjectGraph) -> Iterator[None]:
    """Refuse, while entered, that this thread steps an optimizer which neither ``graph`` has found
    nor the program has made."""
    before, _CAPTURE.graph = _CAPTURE.graph, graph
    try:
        yield
    finally:
        _CAPTURE.graph = before


def _begin(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """Raise ``RuntimeError`` before a step of an optimizer that the capture of this thread does not
    know. It is a hook that torch calls before each step."""
    graph = _CAPTURE.graph
    if graph is None or graph.has(optimizer) or id(optimizer) in graph.made:
        return
    raise RuntimeError(
        f"the program steps a {type(optimizer).__name__} that none of its variables and "
        "attributes leads to. Pass it as an argument, or hold it in a variable that the "
        f"program names.{here()}"
    )


# once, so that the table of hooks is the same before and in a capture
register_optimizer_step_pre_hook(_begin)
