"""Replacing attributes of other modules and classes so that every one of them can be put back."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

_ABSENT: Any = object()
_OWN = __name__.split(".")[0]


class Patches:
    """A list of replaced attributes, undone in reverse order."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any]] = []
        self._entered = contextlib.ExitStack()

    def enter(self, manager: contextlib.AbstractContextManager[Any]) -> None:
        """Enter a context that :meth:`undo` leaves."""
        self._entered.enter_context(manager)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """``owner.name = value``, where owner is a module or a class."""
        old = type(owner) if name == "__class__" else vars(owner).get(name, _ABSENT)
        self._done.append((owner, name, old))
        setattr(owner, name, value)

    def replace_everywhere(self, table: Mapping[int, tuple[Any, Any]]) -> None:
        """In every imported module but our own, replace each name bound to an object of ``table``: ``{id: (object, replacement)}``.

        So ``from torch.func import grad`` written before is routed as well.
        """
        for module_name, module in list(sys.modules.items()):
            if module is None or module_name.partition(".")[0] == _OWN:
                continue
            names = getattr(module, "__dict__", None)
            if not isinstance(names, dict):
                continue
            for name, value in list(names.items()):
                found = table.get(id(value))
                if found is not None and found[0] is value:
                    self.set(module, name, found[1])

    def undo(self) -> None:
        self._entered.close()
        for owner, name, old in reversed(self._done):
            if old is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, old)
        self._done.clear()
