"""Decide which calls a compiled program serves.

call = guard.takes(call, tracked)       # the general way; None if the program is not for it
take = guard.way(given, kinds, tracked) # the same question as one generated function
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..capture.aliasing import Group, place_of, sharing
from ..capture.joint import Joint
from ..capture.subclass_parts import flattened
from ..python_state.reads import Read
from ..python_state.state_guard import StateGuard
from .arguments import Call, Kind, enter
from .guards import Sizes, Take, guard
from .identities import Apart
from .shared_arguments import with_bases


@dataclass(frozen=True)
class ProgramGuard:
    """Ask whether the program that was captured for one call may serve another.

    The kinds of the arguments are compared elsewhere.
    """

    joint: Joint
    # The kinds of the tensors that the program closes over.
    outside: Sequence[Kind]
    # The arguments that share memory. None if the program changes none, as sharing does not matter
    # then.
    sharing: tuple[Group, ...] | None
    # Single questions to Python's state.
    reads: Sequence[Read]
    # Asks whether Python's objects are as they were at the capture.
    state: StateGuard
    # Asks whether the program reaches no argument of a call by itself.
    alone: Apart
    # The arguments that are numbers of any value.
    unknown: frozenset[int]
    # by the classes of the arguments; None where only the general way can decide
    _ways: dict[tuple[type, ...], Take | None] = field(default_factory=dict, init=False)

    def takes(self, call: Call, tracked: bool) -> Call | None:
        """Return ``call`` with the tensors that the program closes over as further arguments.

        None if the program is not for it.
        """
        if not self.state.holds() or not all(read.holds() for read in self.reads):
            return None
        if not self.alone.holds(call.given):
            return None
        return self.completed(call, tracked)

    def completed(self, call: Call, tracked: bool) -> Call | None:
        """Return what :meth:`takes` does if Python's state is as it was at the capture."""
        # the tensors that the program closes over, which may have changed since the capture
        outside: Call | None = None
        tensors = call.plain
        if self.joint.closed_over:
            outside = enter(self.joint.closed_over, tracked, False)
        if outside is not None:
            if outside.kinds != self.outside:
                return None
            tensors = [*tensors, *outside.plain]
        if self.sharing is not None and sharing(tensors) != self.sharing:
            return None
        # a symbol may be the size of a base, so these come before the conditions on symbols
        based = self._with_bases(call)
        if based is None or not self._holds_symbols(based.plain):
            return None
        if outside is None:
            return based
        return based.followed_by(outside)

    def moved(self) -> list[tuple[str, Any, Any]]:
        """List the changes of Python's state since the capture: name, old value, new value."""
        changes = [
            (str(read), read.value, read.current()) for read in self.reads if not read.holds()
        ]
        return [*self.state.differences(), *changes]

    def way(self, given: Sequence[object], kinds: Sequence[Kind], tracked: bool) -> Take | None:
        """Return a generated guard that decides as :meth:`takes` for calls like the present one.

        None if there is none for the classes of the arguments ``given``.
        """
        classes = tuple(map(type, given))
        if classes not in self._ways:
            self._ways[classes] = self._generate(given, kinds, tracked)
        return self._ways[classes]

    def _generate(
        self, given: Sequence[object], kinds: Sequence[Kind], tracked: bool
    ) -> Take | None:
        """Generate a guard. None for a program of a kind that only the general way knows."""
        joint, abstraction = self.joint, self.joint.abstraction
        # a generated guard does not look for bases of arguments that share memory
        if any(not group.identical for group in joint.groups):
            return None
        sizes: Sizes | None = None
        if abstraction is not None:
            if joint.layouts is not None:
                return None
            sizes = Sizes(abstraction.holds, self._symbolic_arguments(given), abstraction.dynamic)
        return guard(
            given,
            kinds,
            joint.closed_over,
            self.outside,
            self.reads,
            self.sharing,
            sizes,
            tracked,
            self.alone,
            self.state,
        )

    def _with_bases(self, call: Call) -> Call | None:
        """Return ``call`` with the bases of arguments that share memory as further arguments.

        None if these lie in other places than those that the program was traced for.
        """
        groups = self.joint.groups
        if all(group.identical for group in groups):
            return call
        # a single tensor that overlaps itself is in no answer of `sharing`
        for group in groups:
            alone = len(group.members) == 1 and group.places
            if alone and place_of(call.plain[group.members[0]]) != group.places[0]:
                return None
        return with_bases(call, groups)

    def _holds_symbols(self, plain: Sequence[object]) -> bool:
        """Return whether the graph is right for the sizes and numbers of ``plain``."""
        joint = self.joint
        if joint.abstraction is None:
            return True
        asked = [plain[index] for index in self._symbolic_arguments(plain)]
        if joint.layouts is not None:
            parts: list[object] = []
            for tensor in asked:
                parts += flattened(tensor)
            asked = parts
        return joint.abstraction.holds(*asked)

    def _symbolic_arguments(self, plain: Sequence[object]) -> list[int]:
        """Return the arguments whose sizes or values are symbols of the graph."""
        abstraction = self.joint.abstraction
        asked = set(self.unknown)
        if abstraction is not None and abstraction.dynamic:
            asked |= {index for index, x in enumerate(plain) if isinstance(x, torch.Tensor)}
        # in the order of the arguments
        return [index for index in range(len(plain)) if index in asked]
