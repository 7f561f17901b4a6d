"""Nodes of one kind, which a guard compares together.

    batch = Versions([node of vars(layer), node of layer._parameters, …])
    batch.condition(constant)           # "list(map(dict_version, c1)) == c2"
    batch.compare()                     # the same node by node, where the condition does not hold

A condition is Python source. It holds if all values are the objects that the program has found, or
constants of a version that was compared before. It may fail although they are equal, so then the
nodes are compared one by one. ``map`` over functions of C takes a fifth of the time of a loop in
Python. Of few nodes each is asked by itself, which takes less time than ``map``: ``c1() is c2``
28 ns, and ``all(map(is_, map(c3, c1), c2))`` 180 ns and 25 for each node."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from types import GetSetDescriptorType
from typing import Any

from ...native.noted import Question
from ...torch_private.graph_parts import dict_version
from .nodes import (
    FUNCTION_LABELS,
    Attributes,
    Cell,
    ClassParts,
    FunctionParts,
    Node,
    class_name,
    pattern_of,
    qualified_name,
)
from .value_attributes import OF_PACKAGE, ValueAttributes
from .values import MISSING

Constant = Callable[[Any], str]
"""Gives an object a name in the source."""


def _versions_tell() -> bool:
    """Return whether an assignment to an attribute gives a dictionary another version."""

    class Probe:
        attribute = 0

    probe = Probe()
    before = dict_version(vars(probe))
    probe.attribute = 1
    return bool(dict_version(vars(probe)) != before)


VERSIONS_TELL = _versions_tell()
"""Whether an assignment to an attribute changes the version of the object's dictionary. Python 3.13
keeps attributes in the object itself, and tells nobody."""

FEW = 10
"""Nodes up to which each has a condition of its own."""
_is = operator.is_
_own = operator.attrgetter("__dict__")
_LOOK_UP: Any = object.__getattribute__
_named_defaults, _content, _bases = map(
    operator.attrgetter, ("__kwdefaults__", "cell_contents", "__bases__")
)


class Batch:
    """See above. ``question``: the same for the native part (:mod:`runtime.native.noted`), None if
    that does not know it."""

    question: Question | None = None

    def condition(self, constant: Constant) -> str:
        """Write the question whether nothing has changed. ``constant``: names an object."""
        raise NotImplementedError

    def compare(self) -> bool:
        """Compare the nodes one by one."""
        raise NotImplementedError


def _all_hold(nodes: Iterable[Node]) -> bool:
    return all(node.holds() for node in nodes)


def _identities(constant: Constant, now: str, had: Sequence[Any]) -> str:
    """Write the question whether an iterator gives the objects ``had``. Whether it gives as many is
    asked apart: ``map`` ends with the shorter one."""
    return f"all(map({constant(_is)}, {now}, {constant(had)}))"


def finds_own(x: object) -> bool:
    """Return whether Python's own look-up finds the dictionary of ``x``, and no code of the
    user's."""
    kind = type(x)
    found = [vars(cls)["__dict__"] for cls in kind.__mro__ if "__dict__" in vars(cls)]
    by_python = all(type(descriptor) is GetSetDescriptorType for descriptor in found)
    return by_python and kind.__getattribute__ is _LOOK_UP


class Versions(Batch):
    """Dictionaries. Each write gives a dictionary of CPython's another number, its version. Where
    that differs, the dictionary is compared, and the new version is noted."""

    def __init__(self, found: Sequence[tuple[dict[Any, Any], Node]]) -> None:
        self._dictionaries = [dictionary for dictionary, _ in found]
        self._nodes = [node for _, node in found]
        self._known = [-1] * len(found)  # no version, so that the first call compares
        self.question = Question("versions", self._dictionaries)

    def condition(self, constant: Constant) -> str:
        version, known = constant(dict_version), constant(self._known)
        if len(self._nodes) > FEW:
            return f"list(map({version}, {constant(self._dictionaries)})) == {known}"
        return " and ".join(
            f"{version}({constant(dictionary)}) == {known}[{index}]"
            for index, dictionary in enumerate(self._dictionaries)
        )

    def compare(self) -> bool:
        known = self._known
        # the versions from before the comparison: another thread may write after it
        for index, now in enumerate(map(dict_version, self._present())):
            if now != known[index]:
                if not self._nodes[index].holds():
                    return False
                known[index] = now
        return True

    def _present(self) -> Iterable[dict[object, object]]:
        """Return the dictionaries that a call finds."""
        return self._dictionaries


class OwnVersions(Versions):
    """The dictionaries of objects, found by the object: an assignment to ``__dict__`` puts another
    dictionary there, which has another version."""

    def __init__(self, nodes: Sequence[Attributes]) -> None:
        super().__init__([(node.own, node) for node in nodes])
        self._owners = [node.owner for node in nodes]
        self.question = Question("versions of attributes", self._owners, self._dictionaries)

    def condition(self, constant: Constant) -> str:
        version, known = constant(dict_version), constant(self._known)
        if len(self._nodes) > FEW:
            now = f"map({constant(_own)}, {constant(self._owners)})"
            return f"list(map({version}, {now})) == {known}"
        # by a plain look-up: `finds_own` has shown that it runs no code of the user's
        return " and ".join(
            f"{version}({constant(x)}.__dict__) == {known}[{index}]"
            for index, x in enumerate(self._owners)
        )

    def _present(self) -> Iterable[dict[object, object]]:
        return map(_own, self._owners)


class Items(Batch):
    """Dictionaries whose versions do not tell: any may be that of an object."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._owners = [node.owner for node in nodes]
        self._keys = [key for node in nodes for key in node.had]
        self._values = [x for node in nodes for x in node.had.values()]

    def condition(self, constant: Constant) -> str:
        owners, flat = constant(self._owners), constant(chain.from_iterable)
        lengths = constant([len(node.had) for node in self._nodes])
        values = f"{flat}(map({constant(dict.values)}, {owners}))"
        return (
            f"list(map(len, {owners})) == {lengths}"
            f" and {_identities(constant, f'{flat}({owners})', self._keys)}"
            f" and {_identities(constant, values, self._values)}"
        )

    def compare(self) -> bool:
        # before the nodes are asked, as in `Versions.compare`
        now = [list(dict.values(x)) for x in self._owners]
        if not _all_hold(self._nodes):
            return False
        self._values[:] = chain.from_iterable(now)  # equal constants may be other objects
        return True


class OwnNames(Batch):
    """Attributes in dictionaries whose versions do not tell: those that the program's code names,
    and which others there are."""

    def __init__(self, nodes: Sequence[Attributes]) -> None:
        self._nodes = nodes
        self._dictionaries = [node.own for node in nodes]
        places = [(node, name) for node in nodes for name in node.had if name not in node.free]
        self._places = [node.own for node, _ in places]
        self._names = [name for _, name in places]
        self._values = [node.had[name] for node, name in places]
        # how many attributes each has, and which, by the last call that has compared the nodes
        self._lengths = [-1] * len(nodes)  # none, so that the first call compares
        self._present: list[str] = []

    def condition(self, constant: Constant) -> str:
        dictionaries = constant(self._dictionaries)
        present = f"{constant(chain.from_iterable)}({dictionaries})"
        return (
            f"list(map(len, {dictionaries})) == {constant(self._lengths)}"
            f" and {_identities(constant, present, self._present)}"
            f" and {_identities(constant, self._found(constant), self._values)}"
        )

    def _found(self, constant: Constant) -> str:
        places, names = constant(self._places), constant(self._names)
        missing = f"{constant(repeat)}({constant(MISSING)})"
        return f"map({constant(dict.get)}, {places}, {names}, {missing})"

    def compare(self) -> bool:
        present = list(map(list, self._dictionaries))
        values = list(map(dict.get, self._places, self._names, repeat(MISSING)))
        if not _all_hold(self._nodes):
            return False
        self._lengths[:] = map(len, present)
        self._present[:] = chain.from_iterable(present)
        self._values[:] = values
        return True


class Orders(Batch):
    """The order of the keys in each ``OrderedDict``. ``move_to_end`` changes no version."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes

    def condition(self, constant: Constant) -> str:
        owners = [node.owner for node in self._nodes]
        keys = [key for node in self._nodes for key in node.had]
        now = f"{constant(chain.from_iterable)}({constant(owners)})"
        # how many keys there are, the batch says that has the items of the same dictionary
        return _identities(constant, now, keys)

    def compare(self) -> bool:
        return _all_hold(self._nodes)


class Empty(Batch):
    """Containers without items, of which a module has a dozen."""

    def __init__(self, found: Sequence[tuple[Any, Node]]) -> None:
        self._containers = [x for x, _ in found]
        self._nodes = [node for _, node in found]
        self.question = Question("empty containers", self._containers)

    def condition(self, constant: Constant) -> str:
        if len(self._nodes) > FEW:
            return f"not any({constant(self._containers)})"
        return " and ".join(f"not {constant(x)}" for x in self._containers)

    def compare(self) -> bool:
        return _all_hold(self._nodes)


class EmptyOwn(Batch):
    """Objects without attributes, as most tensors are. Each is asked for its dictionary, as an
    assignment to ``__dict__`` puts another one there."""

    def __init__(self, nodes: Sequence[Attributes]) -> None:
        self._nodes = nodes
        self._owners = [node.owner for node in nodes]
        own = [node.own for node in nodes]
        self.question = Question("objects without attributes", self._owners, own)

    def condition(self, constant: Constant) -> str:
        if len(self._nodes) > FEW:
            return f"not any(map({constant(_own)}, {constant(self._owners)}))"
        return " and ".join(f"not {constant(x)}.__dict__" for x in self._owners)

    def compare(self) -> bool:
        return _all_hold(self._nodes)


class WithoutNames(Batch):
    """Tensors of the session to which the user has given no attribute."""

    def __init__(self, nodes: Sequence[ValueAttributes]) -> None:
        self._nodes = nodes
        self._owners = [node.owner for node in nodes]

    def condition(self, constant: Constant) -> str:
        now = f"map({constant(_own)}, {constant(self._owners)})"
        return f"all(map({constant(OF_PACKAGE.issuperset)}, {now}))"

    def compare(self) -> bool:
        return _all_hold(self._nodes)


class Sequences(Batch):
    """The items of lists and deques."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._owners = [node.owner for node in nodes]
        self._items = [x for node in nodes for x in node.had]
        self.question = Question("items of lists", self._owners)

    def condition(self, constant: Constant) -> str:
        owners = constant(self._owners)
        lengths = constant([len(node.had) for node in self._nodes])
        now = f"{constant(chain.from_iterable)}({owners})"
        return f"list(map(len, {owners})) == {lengths} and " + _identities(
            constant, now, self._items
        )

    def compare(self) -> bool:
        now = list(map(list, self._owners))
        if not _all_hold(self._nodes):
            return False
        self._items[:] = chain.from_iterable(now)  # equal constants may be other objects
        return True


class Classes(Batch):
    """The classes of objects."""

    def __init__(self, nodes: Sequence[Attributes]) -> None:
        self._nodes = nodes
        self.question = Question("classes", [node.owner for node in nodes])

    def condition(self, constant: Constant) -> str:
        if len(self._nodes) > FEW:
            owners = constant([node.owner for node in self._nodes])
            return _identities(
                constant, f"map(type, {owners})", [node.kind for node in self._nodes]
            )
        return " and ".join(
            f"type({constant(node.owner)}) is {constant(node.kind)}" for node in self._nodes
        )

    def compare(self) -> bool:
        return _all_hold(self._nodes)


class Dictionaries(Batch):
    """The dictionaries of other objects, each of which may be replaced by an assignment to
    ``__dict__``."""

    def __init__(self, nodes: Sequence[Attributes]) -> None:
        self._nodes = nodes

    def condition(self, constant: Constant) -> str:
        get = constant(_LOOK_UP)
        if len(self._nodes) > FEW:
            owners = constant([node.owner for node in self._nodes])
            now = f"map({get}, {owners}, {constant(repeat)}('__dict__'))"
            return _identities(constant, now, [node.own for node in self._nodes])
        return " and ".join(
            f"{get}({constant(node.owner)}, '__dict__') is {constant(node.own)}"
            for node in self._nodes
        )

    def compare(self) -> bool:
        return _all_hold(self._nodes)


class Functions(Batch):
    """The code of functions, the defaults of their arguments, and what they say of themselves."""

    def __init__(self, nodes: Sequence[FunctionParts]) -> None:
        self._nodes = nodes

    def condition(self, constant: Constant) -> str:
        plain = [node for node in self._nodes if not node.had[2]]
        named = [node for node in self._nodes if node.had[2]]
        conditions = [self._of_named(node, constant) for node in named]
        if len(plain) <= FEW:
            conditions += [self._of_one(node, constant) for node in plain]
        else:
            conditions += self._of_many(plain, constant)
        return " and ".join(conditions)

    @staticmethod
    def _of_many(nodes: Sequence[FunctionParts], constant: Constant) -> Iterator[str]:
        """Yield conditions of functions without defaults by keyword, each of all of them."""
        functions = constant([node.owner for node in nodes])
        yield f"not any(map({constant(_named_defaults)}, {functions}))"
        places = (0, 1, *range(3, 3 + len(FUNCTION_LABELS)))
        labels = ("__code__", "__defaults__", *FUNCTION_LABELS)
        for place, label in zip(places, labels, strict=True):
            now = f"map({constant(operator.attrgetter(label))}, {functions})"
            yield _identities(constant, now, [node.had[place] for node in nodes])

    @classmethod
    def _of_one(cls, node: FunctionParts, constant: Constant) -> str:
        function = constant(node.owner)
        return f"{cls._of_code(node, constant)} and not {function}.__kwdefaults__"

    @classmethod
    def _of_named(cls, node: FunctionParts, constant: Constant) -> str:
        """Return the condition of a function that has defaults by keyword."""
        now = f"({constant(node.owner)}.__kwdefaults__ or {{}})"
        names, values = zip(*node.had[2], strict=True)
        return (
            f"{cls._of_code(node, constant)} and tuple({now}) == {constant(names)} "
            f"and {_identities(constant, f'{now}.values()', values)}"
        )

    @staticmethod
    def _of_code(node: FunctionParts, constant: Constant) -> str:
        function, code = constant(node.owner), constant(node.had[0])
        defaults = constant(node.had[1])
        labels = (
            f"{function}.{label} is {constant(had)}"
            for label, had in zip(FUNCTION_LABELS, node.had[3:], strict=True)
        )
        parts = (f"{function}.__code__ is {code}", f"{function}.__defaults__ is {defaults}")
        return " and ".join((*parts, *labels))

    def compare(self) -> bool:
        return _all_hold(self._nodes)


class Cells(Batch):
    """Variables of functions around, all of which have a value."""

    def __init__(self, nodes: Sequence[Cell]) -> None:
        self._nodes = nodes
        self._cells = [node.owner for node in nodes]
        self._contents = [node.had[0] for node in nodes]

    def condition(self, constant: Constant) -> str:
        # a call, since a variable without a value raises, which a condition cannot catch
        return f"{constant(self._same)}()"

    def _same(self) -> bool:
        try:
            return all(map(_is, map(_content, self._cells), self._contents))
        except ValueError:  # one of them has none
            return False

    def compare(self) -> bool:
        return _all_hold(self._nodes)


class PartsOfClasses(Batch):
    """What classes inherit from, their names and their own classes, and what `match` takes their
    objects for."""

    def __init__(self, nodes: Sequence[ClassParts]) -> None:
        self._nodes = nodes
        self._classes = [node.owner for node in nodes]
        parts = zip(*(node.had for node in nodes), strict=True)
        self._names, self._qualified, self._bases, self._kinds, self._matched = map(list, parts)

    def condition(self, constant: Constant) -> str:
        if len(self._nodes) <= FEW:
            return " and ".join(self._of_one(index, constant) for index in range(len(self._nodes)))
        classes = constant(self._classes)
        bases = _identities(constant, f"map({constant(_bases)}, {classes})", self._bases)
        names = _identities(constant, f"map({constant(class_name)}, {classes})", self._names)
        now = f"map({constant(qualified_name)}, {classes})"
        qualified = _identities(constant, now, self._qualified)
        kinds = _identities(constant, f"map(type, {classes})", self._kinds)
        matched = f"[*map({constant(pattern_of)}, {classes})] == {constant(self._matched)}"
        return f"{bases} and {names} and {qualified} and {kinds} and {matched}"

    def _of_one(self, index: int, constant: Constant) -> str:
        cls, name = constant(self._classes[index]), constant(self._names[index])
        # the bases by the list of all, whose items `compare` replaces
        return (
            f"{constant(_bases)}({cls}) is {constant(self._bases)}[{index}] "
            f"and {constant(class_name)}({cls}) is {name} "
            f"and {constant(qualified_name)}({cls}) is {constant(self._qualified[index])} "
            f"and type({cls}) is {constant(self._kinds[index])} "
            f"and {constant(pattern_of)}({cls}) == {self._matched[index]}"
        )

    def compare(self) -> bool:
        now = [node.owner.__bases__ for node in self._nodes]
        if not _all_hold(self._nodes):
            return False
        self._bases[:] = now  # equal tuples may be other objects
        return True


class Others(Batch):
    """Nodes that have no kind in common."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes

    def condition(self, constant: Constant) -> str:
        questions = [node.holds for node in self._nodes]
        if len(questions) > FEW:
            return f"all(map({constant(operator.call)}, {constant(questions)}))"
        return " and ".join(f"{constant(holds)}()" for holds in questions)

    def compare(self) -> bool:
        return False  # the condition has asked each
