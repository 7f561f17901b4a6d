"""Follow arguments that a call fills, besides its results, as batch norm fills its running
statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import InplaceError
from ..rules.ops import Op
from ..rules.record import parameters
from ..rules.samples.places import ALONE, Mixed, Place, Tensor
from ..seam.containers import written_arguments
from ..seam.levels import Value


class Filled:
    """The arguments that one call of ``op`` fills, by name. They are copied before the call, which
    may have to be undone."""

    def __init__(self, op: Op, arguments: dict[str, Tensor]) -> None:
        self.op = op
        self.arguments: dict[str, Any] = arguments
        # a call that turns out to mix samples is undone, and run on the parameters themselves
        self.before = {name: _memory(argument).clone() for name, argument in arguments.items()}

    def restore(self) -> None:
        """Undo the call."""
        for name, before in self.before.items():
            _memory(self.arguments[name]).copy_(before)

    def follow(self, session: Any, places: dict[str, object], why: Mixed | None) -> None:
        """Give the arguments the states of what the call has written to them. ``places``: where the
        samples lie in them. ``why``: the reason if the call mixes samples."""
        # in a batch of one, everything belongs to the one sample
        alone = session.size is not None and session.size < 2
        for name, argument in self.arguments.items():
            place = ALONE if alone else places.get(name)
            # a plain buffer, such as a running statistic, becomes a value until the context ends
            if not isinstance(argument, Value):
                self._lift(session, name, argument)
            if why is None and isinstance(place, Place):
                session.follow_filled(argument, place, self.op)
                continue
            error = why or Mixed(f"it writes values of all samples to its argument {name}")
            session.refuse_filled(argument, self.op, error)

    def _lift(self, session: Any, name: str, tensor: Tensor) -> None:
        """Make a plain argument a value of the session. Raise if that is impossible."""
        try:
            session.lift(tensor, self.op)
        except InplaceError as error:
            raise RuntimeError(
                f"per_sample: {self.op.func} writes values of the samples to its argument {name} "
                f"in {session.where()}. Other tensors share its memory, or it requires grad, "
                "so it is not known where these values are read. Give it a buffer of its own."
            ) from error


def filled_by(op: Op, args: Sequence[object], kwargs: dict[str, object]) -> Filled:
    """Return the arguments that a call is about to fill."""
    # most ops fill none
    if not op.fills_argument and (op.record is None or op.record.hidden_writes is None):
        return Filled(op, {})
    arguments: dict[str, Tensor] = {}
    for name in _names(op, args, kwargs):
        argument = op.argument(op.positions[name], args, kwargs)
        if isinstance(argument, torch.Tensor):
            arguments[name] = argument
    return Filled(op, arguments)


def _names(op: Op, args: Sequence[object], kwargs: dict[str, object]) -> Sequence[str]:
    """Return the names of the arguments that a call fills."""
    if op.fills_argument:
        return [name for _, name in written_arguments(op.func._schema)]
    if op.record is None or op.record.hidden_writes is None:
        return ()
    # whether the call writes depends on its arguments, as on `training` of batch norm
    hidden = op.record.hidden_writes
    values = (op.argument(op.positions[name], args, kwargs) for name in parameters(hidden.when))
    if not hidden.when(*values):
        return ()
    return hidden.arguments


def _memory(tensor: Tensor) -> Tensor:
    """Return an alias of the tensor's memory, which no level follows."""
    if isinstance(tensor, Value):
        tensor = tensor._inner
    memory: Tensor = tensor.detach()
    return memory
