"""The items of dictionaries, whose keys may have code of the user's.

    class Key:
        def __hash__(self): return hash(self.name)      # another one after key.name = "b"

A dictionary holds such a key and finds it no more. So no node looks a key up that it has from the
dictionary itself, and what looks up for a program is ready for an error of the key's code.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from ...trace.provenance import here
from .nodes import Change, Label, Node, OneByOne
from .values import MISSING, are_identical, same, shown

_OTHER_KEYS = (
    "A call could not compare the items. Use keys that stay as they are, such as texts or numbers, "
    "or name the object in ignore=."
)


def are_found(base: Any, owner: Iterable[object]) -> bool:
    """Return whether a look-up finds each key that is in a dictionary or set, as it does not if the
    hash has changed since. ``base``: the class of Python's whose methods ask."""
    try:
        return all(base.__contains__(owner, key) for key in base.__iter__(owner))
    except TypeError:
        # of a symbol of a trace, which has no hash
        return True
    except Exception:
        # of the key's own code
        return False


def require_found(base: Any, node: Node) -> None:
    """Refuse a program that changes the dictionary or set of ``node``, unless all keys are found:
    to put them in again would let a lost one be found."""
    if not are_found(base, node.owner):
        raise RuntimeError(
            f"the program changes {node.name}, which has a key whose hash is another one than "
            f"when it was put in, or which cannot be compared. {_OTHER_KEYS}{here()}"
        )


class DictItems(OneByOne):
    """The items of a dictionary, in their order. ``base``: the class of Python's whose methods find
    them. An ``OrderedDict`` has an order of its own."""

    __slots__ = ("base",)
    had: dict[Any, Any]

    def __init__(self, owner: Any, name: str) -> None:
        self.base: Any = OrderedDict if issubclass(type(owner), OrderedDict) else dict
        super().__init__(owner, name)

    def order(self) -> list[Label]:
        try:
            return list(self.base.__iter__(self.owner))
        except TypeError:
            # a symbol of a trace has no hash, which an `OrderedDict` asks for to find the next key
            return list(dict.__iter__(self.owner))

    def first_order(self) -> Iterable[Label]:
        return self.had

    def singles(self) -> Iterable[Any]:
        return self.had

    def _values(self) -> list[Any]:
        """Return the values in their order, without a hash of a key, as an ``OrderedDict`` asks it
        for each value."""
        if self.base is dict:
            return list(dict.values(self.owner))
        values = {id(key): value for key, value in dict.items(self.owner)}
        return [values[id(key)] for key in self.order()]

    def look(self) -> dict[Any, Any]:
        items = list(zip(self.order(), self._values(), strict=True))
        try:
            found = dict(items)
        except TypeError:
            # a symbol of a trace has no hash: the program is captured with its value then
            raise
        except Exception as error:
            # a program that asks for this key gets the error, too
            raise RuntimeError(
                f"{self.name} has a key whose __hash__ or __eq__ raises {type(error).__name__}: "
                f"{error}. {_OTHER_KEYS}{here()}"
            ) from error
        if len(found) != len(items):
            raise RuntimeError(
                f"{self.name} has two keys that are equal by now and were not when they were put "
                f"in. {_OTHER_KEYS}{here()}"
            )
        return found

    def put(self, values: dict[Any, Any]) -> None:
        self.base.clear(self.owner)
        for key, value in values.items():
            self.base.__setitem__(self.owner, key, value)

    def at(self, label: Label) -> Any:
        try:
            value = dict.get(self.owner, label, MISSING)
        except Exception:
            # of the key's own code, which no look-up of ours is to show
            value = MISSING
        if value is not MISSING:
            return value
        # a key with another hash than when it was put in is there, and is not found
        items = dict.items(self.owner)
        return next((value for key, value in items if key is label), MISSING)

    def assign(self, label: Label, value: Any) -> None:
        if value is MISSING:
            self.base.pop(self.owner, label, None)
        else:
            self.base.__setitem__(self.owner, label, value)

    def holds(self) -> bool:
        keys = self.order()
        if len(keys) != len(self.had) or not all(map(same, keys, self.had)):
            return False
        # no look-up: the hash of a key may have changed since
        return all(map(same, self._values(), self.had.values())) or not self.differences()

    def differences(self) -> list[tuple[Label, Any, Any]]:
        try:
            return self._differences()
        except Exception:
            return [(None, "its keys", "a key whose __hash__ or __eq__ raises an error")]

    def _differences(self) -> list[tuple[Label, Any, Any]]:
        """List the differences by look-ups, which may run code of the keys."""
        found = [
            (key, was, now)
            for key, was in self.had.items()
            if not same(now := self.at(key), was) and key not in self.free
        ]
        keys = self.order()
        new = [key for key in keys if key not in self.had and key not in self.free]
        found += [(key, MISSING, self.at(key)) for key in new]
        if not found and not all(map(same, keys, self.had)):
            found.append((None, "its order", "another order"))
        return found

    def changes(self) -> list[Change]:
        changes = self._changes()
        if changes:
            require_found(dict, self)
        return changes

    def _changes(self) -> list[Change]:
        """Return the changes, also of a dictionary whose keys are not all found."""
        if not self.had and not dict.__len__(self.owner):  # as most are, in modules
            return []
        had = self.had
        keys, values = self.order(), self._values()
        if are_identical(keys, had) and are_identical(values, had.values()):
            return []
        items = list(zip(keys, values, strict=True))
        # what was there has not stayed in place
        if len(keys) < len(had) or not all(map(same, keys, had)):
            return [Change(self, None, had, dict(items))]
        # without a look-up: a key may be a symbol, which has no hash
        pairs = zip(items, itertools.chain(had.values(), itertools.repeat(MISSING)), strict=False)
        return [Change(self, key, was, now) for (key, now), was in pairs if not same(now, was)]

    def restore(self) -> None:
        changes = self._changes()
        if not changes:
            return
        if are_found(dict, self.owner) or any(change.label is None for change in changes):
            self.put(self.had)
            return
        # to put all of them in anew would let the lost ones be found
        for change in changes:
            self.assign(change.label, change.before)

    def below(self) -> Iterable[tuple[Any, str]]:
        keys = ((key, f"a key of {self.name}") for key in self.had)
        return (*keys, *((x, f"{self.name}[{shown(key)}]") for key, x in self.had.items()))
