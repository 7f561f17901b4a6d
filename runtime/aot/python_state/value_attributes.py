"""The attributes that users give to tensors of the session, beside those of the package itself.

    x = runtime.wrap(torch.ones(2))
    x.scale = 3.0
    attributes_of_user(x)           # {"scale": 3.0}

Such a tensor keeps both in one dictionary. The package changes its own in each backward pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from ...seam.levels import Value
from ...seam.own_modules import is_own_module
from ...seam.shells import VALUES
from .nodes import Change, Label, Named
from .values import MISSING, same


@cache
def is_own(kind: Any, name: str) -> bool:
    """Return whether ``name`` is an attribute of the class ``kind``, and not of the user's."""
    return hasattr(kind, name) or name in _of_package(kind)


@cache
def _of_package(kind: Any) -> frozenset[str]:
    """Return the names that those classes of ``kind`` annotate which are the package's."""
    # each class of the package annotates the attributes that it gives to its values
    ours = filter(_is_of_package, kind.__mro__)
    return frozenset().union(*map(inspect.get_annotations, ours))


def _is_of_package(cls: Any) -> bool:
    # under the drop-in the classes of values say that they are torch's
    return cls is Value or cls in VALUES or is_own_module(cls.__module__)


OF_PACKAGE: frozenset[str] = frozenset().union(*(_of_package(kind) for kind in VALUES))
"""The attributes that the package itself gives to tensors of the session."""


def attributes_of_user(x: Any) -> dict[str, Any]:
    """Return the attributes that the user has given to a tensor of the session."""
    own: dict[str, Any] = object.__getattribute__(x, "__dict__")
    kind: Any = type(x)
    return {name: value for name, value in own.items() if name not in _of_package(kind)}


class ValueAttributes(Named):
    """The user's attributes of a tensor of the session.

    ``copy``: all of them when it was reached. ``counts``: as that of :class:`~.nodes.Attributes`.
    """

    __slots__ = ("copy", "counts")

    def __init__(self, owner: Any, name: str, counts: Callable[[Any, str], bool]) -> None:
        self.copy = attributes_of_user(owner)
        self.counts = counts
        super().__init__(owner, name)

    @property
    def names(self) -> dict[str, Any]:
        return attributes_of_user(self.owner)

    def before(self, name: str) -> Any:
        return self.copy.get(name, MISSING)

    def own_dictionary(self) -> dict[str, Any]:
        own: dict[str, Any] = object.__getattribute__(self.owner, "__dict__")
        return own

    def assign(self, label: Label, value: Any) -> None:
        if value is MISSING:
            self.own_dictionary().pop(label, None)
        else:
            self.own_dictionary()[label] = value

    def holds(self) -> bool:
        now = self.names
        if not all(same(now.get(name, MISSING), was) for name, was in self.had.items()):
            return not self.differences()
        return now.keys() <= self.copy.keys() or not self._appeared()

    def differences(self) -> list[tuple[Label, Any, Any]]:
        new = [(name, MISSING, self.at(name)) for name in self._appeared()]
        return [*super().differences(), *new]

    def changes(self) -> list[Change]:
        now = self.names
        return [
            Change(self, name, was, now.get(name, MISSING))
            for name, was in {**dict.fromkeys(now, MISSING), **self.copy}.items()
            if not same(now.get(name, MISSING), was)
        ]

    def renew(self) -> None:
        self.copy = self.names
        super().renew()

    def settle(self) -> None:
        self.copy = dict.fromkeys(self.copy)  # the names, and not what was there

    def order(self) -> list[Label]:
        return list(self.names)

    def first_order(self) -> Iterable[Label]:
        return self.copy

    def _appeared(self) -> list[str]:
        """List the attributes that count, and that the tensor did not have."""
        new = [name for name in self.names if name not in self.had and name not in self.copy]
        return [name for name in new if name not in self.free and self.counts(self.owner, name)]
