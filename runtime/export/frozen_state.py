"""Captures whose graphs keep what they find in Python's state: exports.

    state = FrozenState([model])
    joint = state.keep(lambda: joint_graph(f, …))   # the model is afterwards as it was

The one who exports asks for that. What the program changes, no call of its graph changes: a warning
names it, and it is put back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import torch

from ..aot.python_state.nodes import Change, Globals
from ..aot.python_state.program_state import ProgramState, shortly

R = TypeVar("R")


class FrozenState:
    """The state that a program finds which is exported. ``roots``: what is known before it runs."""

    def __init__(self, roots: Iterable[object]) -> None:
        self._state = ProgramState(roots)

    @property
    def generators(self) -> list[torch.Generator]:
        """List the random generators that the program may draw from."""
        return self._state.early.generators

    def keep(self, capture: Callable[[], R]) -> R:
        """Run ``capture``, and put back what it changes. ``RuntimeError`` for what the graph would
        have to read and assign, and for what it takes from an iterator or asks of the system."""
        nodes = (*self._state.graph.nodes, *self._state.early.nodes)
        before = {id(node.owner) for node in nodes}
        try:
            result = self._state.watched(capture)
            self._state.returned()
            self._state.leave_assigned()
            effects = self._state.effects(frozenset())
            changed = [
                change.what
                for change in effects.changes
                if not _is_of_generated_code(change, before)
            ]
        # also after an error, as the caller may go on with the module
        finally:
            self._state.restore()
            flags = self._restored_flags()
        names: list[str] = []
        if changed:
            names.append(shortly(changed))
        if flags:
            names.append(f"requires_grad of {flags} tensor{'s' * (flags != 1)}")
        if names:
            warnings.warn(
                f"the program changes {' and '.join(names)}. "
                "The exported program does not, and keeps "
                "what it has found there. Make it a buffer, or pass it and return the new one.",
                UserWarning,
                stacklevel=2,
            )
        return result

    def _restored_flags(self) -> int:
        """Put back which leaves require grad. How many it was."""
        reads = self._state.graph.tensors.values()
        pairs = [(read.owner, read.value.requires_grad) for read in reads]
        changed = [
            (tensor, flag)
            for tensor, flag in pairs
            if tensor.requires_grad != flag and tensor.is_leaf
        ]
        for tensor, flag in changed:
            tensor.requires_grad_(flag)
        return len(changed)


def _is_of_generated_code(change: Change, before: Collection[int]) -> bool:
    """Return whether a change is in a namespace of no module that the run has made, as torch makes
    one for the code of a graph. ``before``: what was there, by identity."""
    owner = change.node.owner
    namespace = isinstance(change.node, Globals) and "__name__" not in owner
    return namespace and id(owner) not in before
