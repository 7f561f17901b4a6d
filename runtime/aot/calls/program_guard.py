"""Which calls a compiled program serves.

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
    """What a call must have in common with the one that the program was captured for, beside the
    kinds of its arguments.

    ``outside``: the kinds of the tensors that the program closes over. ``sharing``: which arguments
    share memory; None if the program changes none, so that it does not matter. ``reads``: single
    questions to Python's state. ``state``: asks whether Python's objects are as the program has
    found them. ``alone``: asks whether the program comes to no argument of a call by itself.
    ``unknown``: the arguments that are numbers of any value.
    """

    joint: Joint
    outside: Sequence[Kind]
    sharing: tuple[Group, ...] | None
    reads: Sequence[Read]
    state: StateGuard
    alone: Apart
    unknown: frozenset[int]
    # by the classes of the arguments; None where only the general way can tell
    _ways: dict[tuple[type, ...], Take | None] = field(default_factory=dict, init=False)

    def takes(self, call: Call, tracked: bool) -> Call | None:
        """Return ``call`` with the tensors that the program closes over as further arguments; None
        if it is of another kind."""
        if not self.state.holds() or not all(read.holds() for read in self.reads):
            return None
        if not self.alone.holds(call.given):
            return None
        return self.completed(call, tracked)

    def completed(self, call: Call, tracked: bool) -> Call | None:
        """As :meth:`takes`, for a call that finds in Python's state what the program has found."""
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
        based = self._based(call)
        if based is None or not self._holds_symbols(based.plain):
            return None
        return based if outside is None else based.followed_by(outside)

    def moved(self) -> list[tuple[str, Any, Any]]:
        """Return what of Python's state is not as the program has found it: the name, what was
        there, what is."""
        read = [(str(r), r.value, r.current()) for r in self.reads if not r.holds()]
        return [*self.state.differences(), *read]

    def way(self, given: Sequence[object], kinds: Sequence[Kind], tracked: bool) -> Take | None:
        """Return the guard that finds this program for calls like the present one without asking
        :meth:`takes`."""
        classes = tuple(map(type, given))
        if classes not in self._ways:
            self._ways[classes] = self._generated(given, kinds, tracked)
        return self._ways[classes]

    def _generated(
        self, given: Sequence[object], kinds: Sequence[Kind], tracked: bool
    ) -> Take | None:
        joint, abstraction = self.joint, self.joint.abstraction
        if any(not group.identical for group in joint.groups):
            return None
        sizes: Sizes | None = None
        if abstraction is not None:
            if joint.layouts is not None:
                return None
            sizes = Sizes(abstraction.holds, self._asked(given), abstraction.dynamic)
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

    def _based(self, call: Call) -> Call | None:
        """Return ``call`` with the bases of arguments that share memory as further arguments. None
        if these lie in other places than those that the program was traced for."""
        groups = self.joint.groups
        if all(group.identical for group in groups):
            return call
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
        asked = [plain[i] for i in self._asked(plain)]
        if joint.layouts is not None:
            asked = [part for t in asked for part in flattened(t)]
        return joint.abstraction.holds(*asked)

    def _asked(self, plain: Sequence[object]) -> list[int]:
        """Return the arguments whose sizes or values are symbols of the graph."""
        abstraction = self.joint.abstraction
        asked = set(self.unknown)
        if abstraction is not None and abstraction.dynamic:
            asked |= {index for index, x in enumerate(plain) if isinstance(x, torch.Tensor)}
        return [i for i in range(len(plain)) if i in asked]
