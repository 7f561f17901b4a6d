"""Remembers the values that an object had before the program: a class for each kind of object.

    node = ListItems([1, 2], "losses")      # a list, and what it had
    node.changes()                          # none until somebody appends to it
    node.restore()

A node is made when a program comes to its object, before the program has changed it. It never calls
the user's code: attributes are found in the object's own dictionary, items by the methods of the
classes of Python's."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any, ClassVar, NamedTuple

import torch

from .values import MISSING, are_identical, attributes_of, same, shown, slot_value, slots_of

Label = Any
"""Where an object has a value, such as a name, a key or a position. None if there is only one
place."""


class Change(NamedTuple):
    """The value ``before`` the program at one place, and the value ``now``.

    ``label``: the place in the object of ``node``, None for the object as a whole.
    """

    node: Node
    label: Label
    before: Any
    now: Any

    @property
    def what(self) -> str:
        """Return how an error names the place, such as ``'x' of self.counts``."""
        if self.label is None:
            return self.node.name
        return f"{shown(self.label)} of {self.node.name}"


class Node:
    """An object, ``owner``, and the values that it had before the program, ``had``.

    ``name``: how the program comes to it, such as ``self.losses``. ``free``: labels of values that
    are inputs of the program, so that a call does not compare them.
    """

    __slots__ = ("free", "had", "name", "owner")
    watched: bool = True
    """Whether a call asks if the values are as they were."""
    puts: ClassVar[bool] = True
    """Whether values can be put back."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name
        self.free: frozenset[Label] = frozenset()
        self.had: Any = self.look()

    def look(self) -> Any:
        """Return the values that the object has now, as a tuple or another copy."""
        raise NotImplementedError

    def put(self, values: Any) -> None:
        """Give the object the ``values`` that :meth:`look` returned."""
        raise NotImplementedError

    def redo(self, change: Change) -> None:
        """Make a change again."""
        self.put(change.now)

    def below(self) -> Iterable[tuple[Any, str]]:
        """Return the objects that the program can come to from here, each with its name."""
        return ((value, self.name) for value in self.had)

    def singles(self) -> Iterable[Any]:
        """Give the values that a program may compare with others by ``is``: what has a name, and
        keys. Items of lists and values of dictionaries are none: a data set has many, and each
        would be one for which a program is captured. A tuple stands for its items."""
        return ()

    def own_dictionary(self) -> dict[str, Any] | None:
        """Return the dictionary in which the object itself keeps its values; None if it has
        none."""
        return None

    def holds(self) -> bool:
        """Return whether a call finds what the program has found."""
        return same(self.look(), self.had)

    def differences(self) -> list[tuple[Label, Any, Any]]:
        """List (label, value before, value now) of each value that a call finds changed."""
        now = self.look()
        return [] if same(now, self.had) else [(None, self.had, now)]

    def changes(self) -> list[Change]:
        """Return what differs from before, also where no call asks for it."""
        now = self.look()
        return [] if same(now, self.had) else [Change(self, None, self.had, now)]

    def restore(self) -> None:
        """Put back the values from before the program, if that is possible."""
        if self.puts and self.changes():
            self.put(self.had)

    def renew(self) -> None:
        """Remember what the object has now, as if the program came to it now."""
        self.had = self.look()

    def settle(self) -> None:
        """Forget what only a capture needs."""


class Place(NamedTuple):
    """One place that can be assigned by itself: an attribute, an item, or a variable of an
    enclosing function."""

    node: OneByOne
    label: Label

    @property
    def key(self) -> tuple[int, Label]:
        """Return what tells this place from others: its object, by identity, and its label."""
        return id(self.node.owner), self.label

    @property
    def what(self) -> str:
        """Return how an error names the place, as :attr:`Change.what`."""
        return self.node.name if self.label is None else f"{shown(self.label)} of {self.node.name}"

    def current(self) -> Any:
        """Return the value that is there now, or ``MISSING``."""
        return self.node.at(self.label)

    def put(self, value: Any) -> None:
        """Assign ``value``. ``MISSING`` deletes what is there."""
        self.node.assign(self.label, value)


class OneByOne(Node):
    """A node whose values can be assigned one by one."""

    __slots__ = ()

    def at(self, label: Label) -> Any:
        """Return the value at ``label``, or ``MISSING``."""
        raise NotImplementedError

    def assign(self, label: Label, value: object) -> None:
        """Assign ``value`` at ``label``. ``MISSING`` deletes what is there."""
        raise NotImplementedError

    def redo(self, change: Change) -> None:
        """Make a change again: by its label, or of the object as a whole. Items that are arguments
        of the call stay."""
        if change.label is not None:
            self.assign(change.label, change.now)
            return
        # what is `free` is an argument of the graph, so that the capture had another one there
        arguments = [(label, self.at(label)) for label in self.free]
        self.put(change.now)
        for label, value in arguments:
            if value is not MISSING:
                self.assign(label, value)

    def values_before(self) -> Iterable[tuple[Label, Any]]:
        """Return the values from before the program, each with its label."""
        had = self.had
        return had.items() if isinstance(had, Mapping) else enumerate(had)

    def without_memory(self) -> OneByOne:
        """Return a node of the same object that finds its values and has remembered none.

        A place of it may outlive the capture, and keeps nothing alive that was there."""
        found = copy.copy(self)
        found.had, found.free = (), frozenset()
        return found

    def order(self) -> list[Label]:
        """Return the labels in the order in which a program finds them, if it can tell."""
        return []

    def first_order(self) -> Iterable[Label]:
        """Return the labels that :meth:`order` gave before the program."""
        return ()

    def move_last(self, labels: Iterable[Label]) -> None:
        """Move the values at ``labels`` to the end, in this order, by assigning them anew."""
        for label in labels:
            value = self.at(label)
            if value is not MISSING:
                self.assign(label, MISSING)
                self.assign(label, value)


class Named(OneByOne):
    """The values of a dictionary under the names that the program's code uses.

    ``had``: the values by name, ``MISSING`` where there was none.
    """

    __slots__ = ()
    had: dict[str, Any]

    def look(self) -> dict[str, Any]:
        # no name yet: `pick` remembers each one when code that has it is about to run
        return {}

    @property
    def names(self) -> Mapping[str, Any]:
        """Return the dictionary as it is now."""
        owner: Mapping[str, Any] = self.owner
        return owner

    def pick(self, names: Iterable[str]) -> list[Any]:
        """Remember the values of further ``names``, and return those of the new ones."""
        new = {name: self.before(name) for name in names if name not in self.had}
        self.had.update(new)
        return list(new.values())

    def renew(self) -> None:
        self.had = {name: self.before(name) for name in self.had}

    def before(self, name: str) -> Any:
        """Return what was there when the object was reached."""
        return self.names.get(name, MISSING)

    def at(self, label: Label) -> Any:
        return self.names.get(label, MISSING)

    def assign(self, label: Label, value: Any) -> None:
        if value is MISSING:
            self.owner.pop(label, None)
        else:
            self.owner[label] = value

    def holds(self) -> bool:
        # Each call asks this, so without a frame of Python for each name. What is free may differ,
        # and `differences` leaves it out.
        now = map(self.names.get, self.had, itertools.repeat(MISSING))
        return all(map(same, now, self.had.values())) or not self.differences()

    def differences(self) -> list[tuple[Label, Any, Any]]:
        return [
            (name, was, now)
            for name, was in self.had.items()
            if not same(now := self.at(name), was) and name not in self.free
        ]

    def changes(self) -> list[Change]:
        return [
            Change(self, name, was, now)
            for name, was in self.had.items()
            if not same(now := self.at(name), was)
        ]

    def restore(self) -> None:
        for change in self.changes():
            self.assign(change.label, change.before)

    def singles(self) -> Iterable[Any]:
        return self.had.values()

    def below(self) -> Iterable[tuple[Any, str]]:
        return ()  # what a name leads to is reached when the name is picked


class Globals(Named):
    """Names of a module.

    ``counts``: whether a name that the module gets later would change what the program does. None
    for a module that the code has no name for. What its functions look up is then remembered by
    name, also where it is missing. ``defined``: the names that it had before the program.
    """

    __slots__ = ("counts", "defined")

    def __init__(self, owner: dict[str, Any], name: str) -> None:
        self.counts: Callable[[str], bool] | None = None
        self.defined = frozenset(owner)
        super().__init__(owner, name)

    def before(self, name: str) -> Any:
        return super().before(name) if name in self.defined else MISSING

    @property
    def asks_nothing(self) -> bool:
        """Return whether a call has nothing to compare here."""
        return not self.had and self.counts is None

    def holds(self) -> bool:
        return super().holds() and not self._appeared()

    def differences(self) -> list[tuple[Label, Any, Any]]:
        new = [
            (name, MISSING, self.owner[name]) for name in self._appeared() if name not in self.free
        ]
        return [*super().differences(), *new]

    def changes(self) -> list[Change]:
        new = [Change(self, name, MISSING, self.owner[name]) for name in self._appeared()]
        return [*super().changes(), *new]

    def _appeared(self) -> list[str]:
        """List the names that count, and that the module did not have."""
        if self.counts is None or self.owner.keys() <= self.defined:
            return []
        new = self.owner.keys() - self.defined - self.had.keys()
        return list(filter(self.counts, sorted(new)))


# what `copy` notes in a class, and this package in a custom Function
NOTES = frozenset(("__slotnames__", "_runtime_definition"))


class ClassNames(Named):
    """Names that a class defines itself.

    ``counts``: as that of :class:`Attributes`. ``defined``: the names that it had before the
    program. ``dictionary``: where the names are, whose version a write to the class changes.
    """

    __slots__ = ("counts", "defined", "dictionary")

    def __init__(
        self,
        owner: type,
        name: str,
        counts: Callable[[Any, str], bool],
        dictionary: dict[str, object],
    ) -> None:
        self.counts = counts
        self.defined = frozenset(vars(owner))
        self.dictionary = dictionary
        super().__init__(owner, name)

    def holds(self) -> bool:
        return super().holds() and not self._appeared()

    def differences(self) -> list[tuple[Label, Any, Any]]:
        return [
            *super().differences(),
            *((name, MISSING, self.at(name)) for name in self._appeared()),
        ]

    def changes(self) -> list[Change]:
        new = [Change(self, name, MISSING, self.at(name)) for name in self._appeared()]
        # a name that code has and the class had not is among those of `super`
        return [*super().changes(), *(change for change in new if change.label not in self.had)]

    def _appeared(self) -> list[str]:
        """List the names that count, and that the class did not define."""
        new = vars(self.owner).keys() - self.defined - NOTES
        if not self.at("__annotations__"):
            new.discard("__annotations__")  # Python makes an empty one when somebody asks for it
        return [
            name for name in sorted(new) if name not in self.free and self.counts(self.owner, name)
        ]

    @property
    def names(self) -> Mapping[str, Any]:
        own: Mapping[str, Any] = vars(self.owner)
        return own

    def before(self, name: str) -> Any:
        return super().before(name) if name in self.defined else MISSING

    def assign(self, label: Label, value: object) -> None:
        # by `type`, since a metaclass may have a `__setattr__` of the user's
        if value is not MISSING:
            type.__setattr__(self.owner, label, value)
        elif label in vars(self.owner):
            type.__delattr__(self.owner, label)


class ClassParts(Node):
    """The names of a class, the classes that it inherits from, its own class, and whether `match`
    takes its objects for sequences or mappings, as somebody may register it."""

    __slots__ = ()

    def look(self) -> tuple[Any, ...]:
        cls = self.owner
        return (
            class_name(cls),
            qualified_name(cls),
            cls.__bases__,
            type(cls),
            pattern_of(cls),
        )

    def below(self) -> Iterable[tuple[Any, str]]:
        """Return what the class inherits from, and its own class. Python asks ``type`` for the
        program, not the program."""
        above = (*self.had[2], self.had[3])
        return ((cls, class_name(cls)) for cls in above if cls is not type)

    def put(self, values: tuple[Any, ...]) -> None:
        self.owner.__name__, self.owner.__qualname__, bases, kind, _ = values
        if type(self.owner) is not kind:
            type.__setattr__(self.owner, "__class__", kind)
        if self.owner.__bases__ != bases:
            self.owner.__bases__ = bases


# by the descriptor, since a metaclass of the user's may have an attribute of this name
class_name: Callable[[type], str] = type.__dict__["__name__"].__get__
qualified_name: Callable[[type], str] = type.__dict__["__qualname__"].__get__
_flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__


def pattern_of(cls: type) -> int:
    """Return what `match` takes the objects of a class for: 32 a sequence, 64 a mapping."""
    return _flags_of(cls) & 96  # Py_TPFLAGS_SEQUENCE and Py_TPFLAGS_MAPPING


class Attributes(Named):
    """Attributes in an object's own dictionary, its class, and its slots.

    ``own``: its dictionary, and ``copy``: what that had when the object was reached. ``size``: how
    many attributes these were. ``kind``: its class, None once the object is let go. ``slots``: the
    values of its slots by name. ``counts``: whether an attribute that the object gets later would
    change what the program does.
    """

    __slots__ = ("copy", "counts", "kind", "own", "size", "slots")
    kind: type | None

    def __init__(
        self, owner: Any, name: str, own: dict[str, Any], counts: Callable[[Any, str], bool]
    ) -> None:
        self.own = own
        self.copy = dict(own)
        self.size = len(own)
        self.counts = counts
        self.kind = type(owner)
        super().__init__(owner, name)
        self.slots = {slot.__name__: slot_value(slot, owner) for slot in slots_of(type(owner))}

    @property
    def names(self) -> Mapping[str, Any]:
        return self.own

    def own_dictionary(self) -> dict[str, Any] | None:
        return self.own

    def before(self, name: str) -> Any:
        return self.copy.get(name, MISSING)

    def at(self, label: Label) -> Any:
        if label in self.slots:
            return self._slot(label)
        return self._now.get(label, MISSING)

    @property
    def _now(self) -> dict[str, object]:
        """Return the dictionary that the object has by now, for places that outlive a capture."""
        now = attributes_of(self.owner)
        return self.own if now is None else now

    def order(self) -> list[Label]:
        return list(self._now)

    def first_order(self) -> Iterable[Label]:
        return self.copy

    def _slot(self, name: str) -> object:
        # of the class that the object has now, which may be another one than at the capture
        found = next(slot for slot in slots_of(type(self.owner)) if slot.__name__ == name)
        return slot_value(found, self.owner)

    def assign(self, label: Label, value: object) -> None:
        if label in ("__class__", "__dict__"):  # which no dictionary has
            object.__setattr__(self.owner, label, value)
        elif label in self.slots:
            slot = next(slot for slot in slots_of(type(self.owner)) if slot.__name__ == label)
            if value is not MISSING:
                slot.__set__(self.owner, value)
            elif slot_value(slot, self.owner) is not MISSING:
                slot.__delete__(self.owner)
        elif value is MISSING:
            self._now.pop(label, None)
        else:
            self._now[label] = value

    def holds(self) -> bool:
        if self.kind is not None and (type(self.owner) is not self.kind or self._has_another()):
            return False
        if self.slots and not all(same(self._slot(name), was) for name, was in self.slots.items()):
            return not self.differences()
        # the keys first: most objects get no attribute, and C compares these
        return super().holds() and (self.own.keys() <= self.copy.keys() or not self._appeared())

    def _has_another(self) -> bool:
        """Return whether somebody has assigned to the ``__dict__`` of the object."""
        return self._now is not self.own

    def _appeared(self) -> list[str]:
        """List the attributes that count, and that the object did not have."""
        new = [name for name in self.own if name not in self.had and name not in self.copy]
        return [name for name in new if name not in self.free and self.counts(self.owner, name)]

    def differences(self) -> list[tuple[Label, Any, Any]]:
        found = super().differences()
        found += [
            (name, was, now)
            for name, was in self.slots.items()
            if not same(now := self._slot(name), was) and name not in self.free
        ]
        found += [(name, MISSING, self.own[name]) for name in self._appeared()]
        if self.kind is not None and type(self.owner) is not self.kind:
            found.append(("__class__", self.kind, type(self.owner)))
        if self.kind is not None and self._has_another():
            found.append(("__dict__", self.own, self._now))
        return found

    def changes(self) -> list[Change]:
        found = self._own_changes()
        found += [
            Change(self, name, was, now)
            for name, was in self.slots.items()
            if not same(now := self._slot(name), was)
        ]
        if type(self.owner) is not self.kind:
            found.append(Change(self, "__class__", self.kind, type(self.owner)))
        if self._has_another():
            found.append(Change(self, "__dict__", self.own, self._now))
        return found

    def _own_changes(self) -> list[Change]:
        """Return the changes of its dictionary: of all attributes, and not only of those that code
        has names for, since each is put back."""
        own, before = self.own, self.copy
        keys, values = dict.keys(own), dict.values(own)
        if are_identical(keys, before) and are_identical(values, before.values()):
            return []
        found = [
            Change(self, name, was, now)
            for name, was in before.items()
            if not same(now := own.get(name, MISSING), was)
        ]
        new = [(name, now) for name, now in own.items() if name not in before]
        return found + [Change(self, name, MISSING, now) for name, now in new]

    def restore(self) -> None:
        # the class and the dictionary first: what follows looks slots and names up in these
        if type(self.owner) is not self.kind:
            object.__setattr__(self.owner, "__class__", self.kind)
        if self._has_another():
            object.__setattr__(self.owner, "__dict__", self.own)
        # a dictionary only gets its order back when it is filled anew
        if list(self.own) != list(self.copy):
            self.own.clear()
        changes = self.changes()
        self.own.update(self.copy)
        for change in changes:
            if change.label in self.slots:
                self.assign(change.label, change.before)

    def values_before(self) -> Iterable[tuple[Label, Any]]:
        return (*self.had.items(), *self.slots.items())

    def without_memory(self) -> Attributes:
        found = copy.copy(self)
        found.had, found.free, found.copy = {}, frozenset(), {}
        found.slots = dict.fromkeys(self.slots)  # the names, by which `at` and `assign` know a slot
        return found

    def renew(self) -> None:
        self.copy = dict(self.own)
        self.slots = {name: self._slot(name) for name in self.slots}
        super().renew()

    def settle(self) -> None:
        self.copy = dict.fromkeys(self.copy)  # the names, and not what was there

    def singles(self) -> Iterable[Any]:
        # the program has names for these, as in `layer.weight`, though dictionaries have them
        tensors: list[object] = []
        if isinstance(self.owner, torch.nn.Module):
            for name in ("_parameters", "_buffers"):
                tensors += (self.own.get(name) or {}).values()
        return (*super().singles(), *self.slots.values(), *tensors)

    def below(self) -> Iterable[tuple[Any, str]]:
        return ((value, f"{self.name}.{name}") for name, value in self.slots.items())

    def let_go(self) -> None:
        """Drop the object, and keep its dictionary. Slots are only in the object, so one with slots
        stays."""
        if not self.slots:
            self.owner = self.kind = None


class Cell(OneByOne):
    """The ``variable`` of an enclosing function."""

    __slots__ = ("variable",)

    def __init__(self, owner: Any, name: str, variable: str) -> None:
        self.variable = variable
        super().__init__(owner, name)

    def values_before(self) -> Iterable[tuple[Label, Any]]:
        return ((None, value) for value in self.had)

    def look(self) -> tuple[Any, ...]:
        return (self.at(None),)

    def at(self, label: Label) -> Any:
        try:
            return self.owner.cell_contents
        except ValueError:
            return MISSING

    def assign(self, label: Label, value: Any) -> None:
        if value is MISSING:
            del self.owner.cell_contents
        else:
            self.owner.cell_contents = value

    def put(self, values: tuple[Any, ...]) -> None:
        self.assign(None, *values)

    def singles(self) -> Iterable[Any]:
        return tuple(self.had)

    def redo(self, change: Change) -> None:
        self.assign(None, change.now)

    def holds(self) -> bool:
        now, was = self.at(None), self.had[0]
        # there is one label, None: if anything is free, the variable is
        return same(now, was) or bool(self.free)

    def differences(self) -> list[tuple[Label, Any, Any]]:
        return [] if self.holds() else [(None, self.had[0], self.at(None))]

    def changes(self) -> list[Change]:
        now = self.at(None)
        return [] if same(now, self.had[0]) else [Change(self, None, self.had[0], now)]


FUNCTION_LABELS = ("__name__", "__qualname__", "__doc__", "__module__")
"""What a function says of itself."""


class FunctionParts(Node):
    """The code of a function, the defaults of its arguments, and what it says of itself."""

    __slots__ = ()

    def look(self) -> tuple[Any, ...]:
        function: FunctionType = self.owner
        # a copy of its items: somebody may write to this dictionary in place
        named = function.__kwdefaults__
        return (
            function.__code__,
            function.__defaults__,
            None if named is None else tuple(named.items()),
            *(getattr(function, label) for label in FUNCTION_LABELS),
        )

    def put(self, values: tuple[Any, ...]) -> None:
        code, defaults, named, *labels = values
        function: FunctionType = self.owner
        function.__code__, function.__defaults__ = code, defaults
        function.__kwdefaults__ = None if named is None else dict(named)
        for label, value in zip(FUNCTION_LABELS, labels, strict=True):
            setattr(function, label, value)

    def own_dictionary(self) -> dict[str, Any] | None:
        named: dict[str, Any] | None = self.owner.__kwdefaults__
        return named

    def singles(self) -> Iterable[Any]:
        _, defaults, named, *_ = self.had
        return (*(defaults or ()), *(value for _, value in named or ()))

    def below(self) -> Iterable[tuple[Any, str]]:
        return ((value, f"a default of {self.name}") for value in self.singles())


def path_of(owner: str, name: str) -> str:
    """Return how one comes to an attribute. The dictionaries of a module's parts are a detail of
    torch."""
    return owner if name in ("_parameters", "_buffers", "_modules") else f"{owner}.{name}"
