"""Declares what may stand in for the session in a thread, see
:func:`runtime.tape.running.stand_in`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StandIn:
    """Handles the session's calls of a thread. A subclass has ``call(func, args, kwargs)``."""

    __slots__ = ("__weakref__",)
    # whether backward passes run on values of the session, so that it handles their calls
    sees_gradients = False

    def layer(self, func: object, args: Sequence[object]) -> Any:
        """Run a layer, see :meth:`runtime.seam.levels.Level.layer`."""
        return NotImplemented

    def follow_data(self, out: object, of: object) -> None:
        """Note that ``out`` has the memory of ``of``, whose ``detach()`` or ``data`` it is."""
