"""For which results of a program a call of its backward graph runs.

    def f(x):
        return x.sin(), x.cos()

A backward pass that starts from the first result alone does not run the derivative of the cosine.
So each call of the backward graph is marked with the results whose cotangents lead to it.
:mod:`..partition.absent` reads the marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from torch import fx

from ...autograd.function_node import FunctionNode
from ...tape.nodes import Node
from ...tape.running import RUNNING
from ...tape.tape import Tape
from ...trace.provenance import Provenance
from ..control_flow.branches import ControlFlow

PASS = "pass"
"""The key under which a call that a backward pass made has the number of the pass."""
ORIGIN = "origin"
"""The key under which a call of a backward graph has its :class:`Origin`."""


class Kind(Enum):
    """What makes a call of a backward pass."""

    SUM = "the engine, which adds two cotangents of one value"
    RULE = "the derivative of an op, which is linear in its cotangents"
    OWN = "a program of the user's: a custom Function, a hook"


class Origin(NamedTuple):
    """``roots``: bit ``i`` says whether the call runs if there is a cotangent for root ``i``. A sum
    depends on its operands instead."""

    roots: int
    kind: Kind


class Origins(Provenance):
    """Notes where the nodes of a joint graph come from, and those of its backward pass with
    their :class:`Origin`."""

    def __init__(self) -> None:
        super().__init__()
        self.tape: Tape | None = None
        self.roots: Mapping[Node, int] = {}

    def follow(self, tape: Tape, roots: Mapping[Node, int]) -> None:
        """From now on backward passes of ``tape`` run. ``roots``: for each node of the tape the
        roots from which a path leads to it."""
        self.tape, self.roots = tape, roots

    def note(self, node: fx.Node) -> None:
        super().note(node)
        task = RUNNING.task
        if task is not None:
            node.meta[PASS] = task.id
        if self.tape is None or task is None:
            return
        if task.sums and task.level is self.tape:
            node.meta[ORIGIN] = Origin(0, Kind.SUM)
            return
        # a backward pass inside a custom Function, such as that of a checkpoint
        while task.level is not self.tape:
            task = task.outer
            if task is None:
                return
        if task.node is not None:
            node.meta[ORIGIN] = Origin(
                self.roots[task.node], Kind.OWN if _is_own(task.node) else Kind.RULE
            )


def _is_own(node: Node) -> bool:
    hooked = node.pre_hooks or node.tensor_hooks or node.post_hooks
    return bool(hooked) or (
        isinstance(node, FunctionNode) and not issubclass(node._forward_cls, ControlFlow)
    )
