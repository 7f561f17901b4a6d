"""Mark each call of a backward graph with the results of the program that it is for.

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
    """Say who makes a call in a backward pass.

    The kind decides whether the call can be left out when some cotangents are absent.
    """

    SUM = "the engine, which adds two cotangents of one value"
    RULE = "the derivative of an op, which is linear in its cotangents"
    OWN = "a program of the user's: a custom Function, a hook"


class Origin(NamedTuple):
    """Say where a call of a backward graph comes from.

    ``roots``: bit ``i`` says whether the call runs if there is a cotangent for root ``i``, which is
    a result from which the backward pass may start. A sum has no bits: it runs if its operands do.
    """

    roots: int
    kind: Kind


class Origins(Provenance):
    """Note where the nodes of a joint graph come from.

    Those of its backward pass get an :class:`Origin`, too.
    """

    def __init__(self) -> None:
        super().__init__()
        # None in the forward pass; for both attributes see :meth:`follow`
        self.tape: Tape | None = None
        self.roots: Mapping[Node, int] = {}

    def follow(self, tape: Tape, roots: Mapping[Node, int]) -> None:
        """Begin to mark the calls of backward passes of ``tape``.

        ``roots``: for each node of the tape the roots from which a path leads to it, as bits.
        """
        self.tape, self.roots = tape, roots

    def note(self, node: fx.Node) -> None:
        """Note the line of ``node``, and its backward pass and origin if it has one."""
        super().note(node)
        task = RUNNING.task
        if task is not None:
            node.meta[PASS] = task.id
        if self.tape is None or task is None:
            return
        # a sum is for whatever its operands are for
        if task.sums and task.level is self.tape:
            node.meta[ORIGIN] = Origin(0, Kind.SUM)
            return
        # a backward pass inside a custom Function, such as that of a checkpoint
        while task.level is not self.tape:
            task = task.outer
            if task is None:
                return
        if task.node is None:
            return
        kind = Kind.RULE
        if _runs_code_of_user(task.node):
            kind = Kind.OWN
        node.meta[ORIGIN] = Origin(self.roots[task.node], kind)


def _runs_code_of_user(node: Node) -> bool:
    """Return whether ``node`` has hooks or is of a custom Function. Control flow of this package is
    a custom Function, too, but not the user's."""
    if node.pre_hooks or node.tensor_hooks or node.post_hooks:
        return True
    return isinstance(node, FunctionNode) and not issubclass(node._forward_cls, ControlFlow)
