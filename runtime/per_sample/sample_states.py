"""Hold the states of the tensors of one batch: put them, and find them again after writes.

    session.mark(x, 0)    # the samples lie in dimension 0 of x
    session.state(x)      # Place(0)

A state lies in the dictionary of its tensor, with the number of writes when it was put. A later
write to the memory ends it. What the write leaves follows from the base of a view, or from the
record of writes that aliases share (see :mod:`.uses`). See :mod:`.states` for the kinds.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..rules.ops import Op
from ..rules.samples.places import ALONE, Place, Tensor, listed, place_in_view
from ..seam.levels import Value
from ..session.stand_in import StandIn
from ..session.tensor import SESSION
from ..tape.lift import give_back, lift_in_place
from ..tape.values import edge_of
from .boundary_nodes import WRITTEN_ELSEWHERE
from .states import PARAMETERS, Mixture
from .uses import base_or_self, writes_to


class SampleStates(StandIn):
    """The states of the tensors of one batch.

    ``size``: the number of samples, None until the first batch is marked.
    """

    __slots__ = ("lifted", "size")

    def __init__(self) -> None:
        self.size: int | None = None
        # plain tensors that became values of the session when samples were written to them
        self.lifted: list[weakref.ref[torch.Tensor]] = []

    def state(self, value: Any) -> Any:
        """Return the state of a tensor of the session, or None."""
        # (session, state, number of writes when the state was put), see `put`
        entry, view = value.__dict__.get("_samples"), value._view
        is_own = entry is not None and entry[0]() is self
        if is_own and entry[2] == writes_to(value).number:
            return entry[1]
        # after a write to its base, what the base has decides
        if view is not None:
            return self._state_of_view(value, view.base)
        writes = value.__dict__.get("_sample_writes")
        # another session, whose state it has, followed the writes itself
        is_followed_here = is_own or entry is None
        if writes is None or not writes.number or not is_followed_here:
            return None
        # a write through detach() may have left samples in all of it
        left = writes.left_for(self, value._inner)
        # its history leads to the places of before
        has_moved = value._edge is not None and (entry is None or entry[1] != left)
        if left is None or has_moved:
            return Mixture(WRITTEN_ELSEWHERE)
        return left

    def _state_of_view(self, value: object, base: object) -> object:
        """Return the state of a view that has none of its own, as it follows from its base."""
        of_base = self.state(base)
        if not isinstance(of_base, Place):
            return of_base
        assert self.size is not None
        if self.size < 2:  # the one sample has all of the base, and so all of the view
            return of_base
        place = place_in_view(value, of_base, self.size)
        if place is None:
            return Mixture(
                "per_sample: a view shows parts of several samples that were written to its "
                "base after it was taken"
            )
        return place

    def state_of(self, argument: object) -> object:
        """Return the state of an argument of any kind. Only tensors of the session have one."""
        if isinstance(argument, Value) and argument._level is SESSION:
            return self.state(argument)
        return None

    def put(self, value: object, state: object) -> None:
        """Give ``value`` a state. It holds until its memory is written to."""
        # weakly, as a tensor may outlive the session
        value.__dict__["_samples"] = (weakref.ref(self), state, writes_to(value).number)

    def follow_data(self, out: Any, of: object) -> None:
        """Give ``out`` the state of ``of``. It is ``of.data`` or ``of.detach()``, and shares memory
        with it."""
        state = self.state(of)
        # a view asks its base, and needs no record of its own
        if out._view is None:
            out.__dict__["_sample_writes"] = writes_to(of)
        if state is not None and state is not PARAMETERS:
            self.put(out, state)

    def give_back(self) -> None:
        """Make the tensors of :meth:`lift` plain again, unless they have a history."""
        lifted = [reference() for reference in self.lifted]
        # all are asked before the first is given back, as a view asks its base
        alive = [tensor for tensor in lifted if tensor is not None]
        plain = [tensor for tensor in alive if edge_of(base_or_self(tensor)) is None]
        for tensor in plain:
            give_back(SESSION, tensor)
        self.lifted.clear()

    def lift(self, tensor: object, op: Op) -> None:
        """Make the plain tensor ``tensor``, and its base, values of the session until
        :meth:`give_back`. ``op``: the op that writes to it."""
        value: Any = lift_in_place(SESSION, tensor, op.func)
        self.lifted.append(weakref.ref(value))
        if value._view is not None:
            self.lifted.append(weakref.ref(value._view.base))

    def mark(self, value: torch.Tensor, dim: int) -> None:
        """Note that the samples lie in dimension ``dim`` of ``value``.

        ``RuntimeError`` if an earlier batch has another number of samples.
        """
        # the first batch says how many samples there are
        count = value.shape[dim]
        if self.size is None:
            self.size = count
        if count != self.size:
            raise RuntimeError(
                f"per_sample: a batch has {count} samples in dimension {dim}, "
                f"and another one has {self.size}"
            )
        # a single sample has all of every tensor, so no op can lose its place
        self.put(value, ALONE if count < 2 else Place(dim))

    def mark_rows(self, value: object, owners: Tensor) -> None:
        """Note that row i of ``value`` belongs to sample ``owners[i]``."""
        count = int(owners.max()) + 1
        if self.size is None:
            self.size = count
        # fewer are no contradiction: a batch may have samples without a row
        if count > self.size:
            raise RuntimeError(
                f"per_sample: a packed sequence has {count} samples, "
                f"and another batch has {self.size}"
            )
        self.put(value, ALONE if self.size < 2 else listed(0, owners, self.size, packed=True))

    def is_parameter(self, argument: object) -> bool:
        """Return whether ``argument`` follows from parameters alone."""
        return self.state_of(argument) is PARAMETERS
