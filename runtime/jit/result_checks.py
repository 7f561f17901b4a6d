"""Refuse what a program returns or leaves and a call would not give in the same way.

    checks = ResultChecks(state, given)
    checks.refuse_made(places, values)      # state.log = Log(), which each call would share
    checks.refuse_returned(result)          # return Log()

A graph returns tensors and symbols, and a call puts lists, dictionaries and objects of data classes
around them. Any other object is the one of the capture. That is right for a constant and for what
the program was given, and wrong for what the program makes in each call anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..aot.capture import opened
from ..aot.python_state.nodes import Place
from ..aot.python_state.program_state import ProgramState
from ..tape.values import GradValue
from ..trace.symbols import SYMBOLIC
from .same_containers import MARKS

# what may be in a result: the graph returns tensors and symbols, and a call replaces marks
_OF_RESULTS = (torch.Tensor, *MARKS, *SYMBOLIC)


class ResultChecks:
    """Checks what one run of a program returns and leaves.

    Args:
        state: what the capture finds in Python's state.
        given: the tensors and other leaves that the run is given. It may return and leave these,
            as it has not made them.
    """

    def __init__(self, state: ProgramState, given: Iterable[object]) -> None:
        self._state = state
        # the run has the objects until it is checked, so that no other one gets their identities
        self._given = set(map(id, given))

    def refuse_made(self, places: Sequence[Place], values: Sequence[object]) -> None:
        """Refuse what the program leaves at places and a call would not make anew.

        Args:
            places: those to which a call assigns.
            values: for each of the places what is assigned there, with marks.

        Raises:
            RuntimeError: for an object that the program has made, and for a parameter. A call would
                put the capture's own object there, or a tensor that is no parameter.
        """
        for place, value in zip(places, values, strict=True):
            for leaf in self._leaves_of(value):
                if not isinstance(leaf, _OF_RESULTS):
                    self._state.refuse_made(place.what, leaf)
                if self._is_new_parameter(leaf):
                    self._state.refuse_parameter(place.what)

    def _leaves_of(self, value: object) -> list[object]:
        """Return the leaves of a tree. Refuse one of a ``defaultdict`` whose factory holds values:
        it belongs to the structure of the tree, which is that of the capture."""
        leaves, spec = opened.flatten(value)
        pending = [spec]
        while pending:
            part = pending.pop()
            if part.type is defaultdict:
                self._state.refuse_factory(part.context[0])
            pending += part.children()
        return list(leaves)

    def _is_new_parameter(self, leaf: object) -> bool:
        """Return whether ``leaf`` is a parameter that the program has made."""
        if not isinstance(leaf, GradValue) or not isinstance(leaf, torch.nn.Parameter):
            return False
        return id(leaf) not in self._given and not self._state.graph.knows(leaf)

    def refuse_put(self, contents: Sequence[object]) -> None:
        """Refuse what a call would not make anew in a container that it is given.

        Args:
            contents: what containers of the caller's have after the program, with marks.

        Raises:
            RuntimeError: for an object that the program has made.
        """
        for leaf in self._leaves_of(contents):
            if not isinstance(leaf, _OF_RESULTS) and id(leaf) not in self._given:
                self._state.refuse_made("a container that it is given", leaf)

    def refuse_returned(self, result: object) -> None:
        """Refuse a result that may change, and that all calls would share.

        Args:
            result: what the program returns, with marks.

        Raises:
            RuntimeError: for an object that the program has made, unless it stays as it is, as
                constants and members of enumerations do.
        """
        for leaf in self._leaves_of(result):
            if not isinstance(leaf, _OF_RESULTS) and id(leaf) not in self._given:
                self._state.refuse_returned(leaf)


def refuse_retained(results: Sequence[object]) -> None:
    """Refuse ``retain_grad()`` of a result, which no graph repeats."""
    if any(isinstance(result, GradValue) and result._retains for result in results):
        raise RuntimeError(
            "the program calls retain_grad() of a tensor that it returns. "
            "Call it of the result, or return the gradient."
        )


def refuse_histories(gradients: Sequence[Any]) -> None:
    """Refuse gradients with a history, as those of ``backward(create_graph=True)``."""
    if any(grad is not None and grad.requires_grad for grad in gradients):
        raise RuntimeError(
            "backward(create_graph=True) leaves a gradient with a history behind, "
            "which a call cannot assign to .grad. Use torch.autograd.grad, "
            "or set .grad to None before the end."
        )
