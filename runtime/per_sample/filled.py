"""Arguments that a call fills beside its results, as batch norm does its running statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import InplaceError
from ..rules.ops import Op
from ..rules.record import parameters
from ..rules.samples.places import ALONE, Mixed, Place, Tensor
from ..seam.levels import Value


class Filled:
    """The arguments that one call of ``op`` fills, by name. They are read before the call."""

    def __init__(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.op = op
        given = {
            name: op.argument(op.positions[name], args, kwargs) for name in _names(op, args, kwargs)
        }
        self.given: dict[str, Any] = {
            name: t for name, t in given.items() if isinstance(t, torch.Tensor)
        }
        self.before = {name: _memory(t).clone() for name, t in self.given.items()}

    def restore(self) -> None:
        """Undo the call."""
        for name, old in self.before.items():
            _memory(self.given[name]).copy_(old)

    def follow(self, session: Any, places: dict[str, Any], why: Mixed | None) -> None:
        """Tell the session what the arguments hold now. ``places``: where the samples lie in them.
        ``why``: what the call mixes."""
        for name, t in self.given.items():
            place = ALONE if session.size is not None and session.size < 2 else places.get(name)
            if not isinstance(t, Value):
                self._lift(session, name, t)
            error = why or Mixed(f"it writes values of all samples to its argument {name}")
            session.filled(
                t, place if why is None and isinstance(place, Place) else None, self.op, error
            )

    def _lift(self, session: Any, name: str, t: Tensor) -> None:
        try:
            session.lift(t, self.op)
        except InplaceError as error:
            raise RuntimeError(
                f"per_sample: {self.op.func} writes values of the samples to its argument {name} "
                f"in {session.where()}. Other tensors share its memory, or it requires grad, "
                "so it is not known where these values are read. Give it a buffer of its own."
            ) from error


def _names(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[str]:
    if op.fills_argument:
        return [
            a.name
            for a in op.func._schema.arguments
            if a.alias_info is not None and a.alias_info.is_write
        ]
    hidden = None if op.record is None else op.record.hidden_writes
    if hidden is not None and hidden.when(
        *(op.argument(op.positions[name], args, kwargs) for name in parameters(hidden.when))
    ):
        return hidden.arguments
    return ()


def fills(op: Op) -> bool:
    """Return whether calls of ``op`` may fill an argument."""
    return op.fills_argument or (op.record is not None and op.record.hidden_writes is not None)


def _memory(t: Any) -> Tensor:
    return t._inner.detach() if isinstance(t, Value) else t.detach()
