"""What modules and classes of libraries have under the names that the program's code uses.

    torch.settings = {"rate": 0.1}      # by the user

    @jit
    def step(x):
        return F.relu(x) * torch.settings["rate"]

torch, Python's library and NumPy are not followed: what they have is theirs. But anybody may put
something into a module or a class of theirs, or put another function in place of one. So a call
asks whether ``relu`` and ``settings`` are the objects that they were, and what is the user's is
followed from there. A dictionary tells by its version that nothing was written, so most calls ask
one question for each module and class.

Code of a library that the program enters has names, too: ``nn.Linear`` calls ``F.linear``. Under
these functions, classes, modules and plain values count: a switch such as that of
``torch.backends.mha`` is a global. An object of a library's, such as ``logging.root``, has a node
for those of its attributes that the program's code has names for.
"""

from __future__ import annotations

import functools
import io
import random
import sys
from collections.abc import Iterable, Set
from itertools import chain
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch

from ...seam.own_modules import is_own_module
from ...torch_private.mode_stacks import TorchDispatchMode
from ...trace.provenance import is_of_package
from .code_names import names_of
from .nodes import Change, FunctionParts, Globals, Named, Node, path_of
from .object_kinds import GENERATOR_OF_PYTHON, Registry, class_names, row_of
from .program_code import ProgramCode, is_of_ours, is_of_user, is_special
from .trusted import RUNNERS, follows, is_followed
from .values import SIMPLE, attributes_of, module_of, slots_of

_FUNCTIONS = (
    FunctionType,
    BuiltinFunctionType,
    WrapperDescriptorType,
    MethodDescriptorType,
    GetSetDescriptorType,
)
_IN_MEMORY = (io.StringIO, io.BytesIO)
_OF_LAYERS = ("__call__", "_call_impl", "forward")
"""What runs a layer, which no code of the program's has a name for."""
_IMMUTABLE = 1 << 8  # flag of a class of C to which nobody can write


class LibraryGlobals(Globals):
    """Names of a library's module, which may load more of its modules at any time, or of an object
    of a library's. ``named``: tells whether code of the program's has a name."""

    __slots__ = ("named",)

    def __init__(self, owner: dict[str, Any], name: str, code: ProgramCode) -> None:
        super().__init__(owner, name)
        self.counts = code.may_have
        self.named = code.has_name

    def _appeared(self) -> list[str]:
        return [name for name in super()._appeared() if not _is_library_module(self.owner[name])]

    def changes(self) -> list[Change]:
        """Return what a run has changed, and not what the library has loaded meanwhile."""
        return [
            change for change in super().changes() if self.named(change.label) or _is_switch(change)
        ]


class LibraryNames:
    """See above. ``code``: that of the program. ``nodes``: of the graph; more are added."""

    def __init__(self, code: ProgramCode, nodes: list[Node]) -> None:
        self._code = code
        self._nodes = nodes
        self._known: dict[int, Named] = {}  # by identity of a module or a class
        self._objects: dict[int, LibraryGlobals] = {}  # by identity of an object's dictionary
        self._entered: set[str] = set()  # names in code of libraries that ran
        self.of_class(torch.Tensor)  # of which each program has objects

    def of_module(self, m: ModuleType) -> list[tuple[object, str]]:
        """Add a module of a library. Return what is to be followed from there, with names."""
        root = m.__name__.partition(".")[0]
        if id(m) in self._known or is_own_module(m.__name__) or root in RUNNERS:
            return []
        if m.__name__ == TorchDispatchMode.__module__:  # whose flags say that a capture runs
            return []
        node = LibraryGlobals(vars(m), m.__name__, self._code)
        found = self._add(m, node, ())
        if m is random:  # whose functions are methods of a generator that has no name
            found.append((GENERATOR_OF_PYTHON, m.__name__))
        return found

    def of_class(self, cls: type) -> list[tuple[object, str]]:
        """Add a class of a library, and those that it inherits from, as :meth:`of_module`."""
        self._code.asks_types |= cls is type
        return self._of_class(cls)

    def _of_class(self, cls: type) -> list[tuple[object, str]]:
        """Do :meth:`of_class` where the class is no sign that the program itself calls it."""
        found: list[tuple[object, str]] = []
        for kind in cls.__mro__:
            if id(kind) in self._known or not _may_be_written(kind):
                continue
            node = class_names(kind, self._code.counts_in_library)
            by_torch = _OF_LAYERS if issubclass(kind, torch.nn.Module) else ()
            special = [name for name in vars(kind) if is_special(kind, name)]
            found += self._add(kind, node, (*special, *by_torch))
            if "_abc_impl" in vars(kind):
                self._nodes.append(Registry(kind, kind.__qualname__))
        return found

    def enter(self, code: CodeType, m: ModuleType) -> list[tuple[object, str]]:
        """Let the names count that a function of the module ``m`` of a library has, and the class
        whose method it is. Return what is to be followed."""
        found = self.of_module(m)
        owner = vars(m).get(code.co_qualname.partition(".")[0])
        if isinstance(owner, type):
            found += self.of_class(owner)
        new = set(code.co_names) - self._entered
        self._entered |= new
        for node in self._all_nodes() if new else ():
            found += self._ask(node, _names_of_library(node, new))
        return found

    def ask(self, names: Iterable[str]) -> list[tuple[object, str]]:
        """Let ``names`` count, which code of the program's has by now. Return what is to be
        followed."""
        names = set(names)
        return [found for node in self._all_nodes() for found in self._ask_named(node, names)]

    def ask_all(self) -> list[tuple[object, str]]:
        """Let all names count, since code of the program's computes names. Return what is to be
        followed."""
        return [found for node in list(self._known.values()) for found in self._ask_all(node)]

    def _add(self, owner: object, node: Named, more: Iterable[str]) -> list[tuple[object, str]]:
        self._known[id(owner)] = node
        self._nodes.append(node)
        found = self._ask_named(node, self._code.names, self._code.words, set(more))
        found += self._ask(node, _names_of_library(node, self._entered))
        if self._code.computed:
            found += self._ask_all(node)
        return found

    def _ask_named(self, node: Named, *names: Set[str]) -> list[tuple[object, str]]:
        """Let ``names`` of ``node`` count, most of which it does not have."""
        own = node.names.keys()
        common = [name for some in names for name in own & some]
        return self._ask(node, sorted(common))

    def _ask(self, node: Named, names: Iterable[str]) -> list[tuple[object, str]]:
        """Let ``names`` of ``node`` count. Return what is to be followed from there."""
        asked = filter(self._code.may_ask, dict.fromkeys(names))
        new = [name for name in asked if _may_count(node, name)]
        found: list[tuple[object, str]] = []
        for name, x in zip(new, node.pick(new), strict=True):
            path = path_of(node.name, name)
            if _is_followed(x):
                found.append((x, path))
            elif self._code.has_name(name):
                found += self._of_library(x, path)
            # Code of the library itself has the name, or code that computes names may ask for it.
            # That alone calls no `type`.
            elif issubclass(type(x), type) and not _is_of_torch(x):
                found += self._of_class(x)
        return found

    def _of_library(self, x: object, name: str) -> list[tuple[object, str]]:
        """Add what a library has under a name that code of the program's has, too. An object may be
        the user's, who has put it there, and a function of the library may have attributes of
        his."""
        if type(x) is BuiltinFunctionType:  # it may ask for a switch
            return [(x, name)]
        if not issubclass(type(x), _FUNCTIONS) and _tells_of_itself(x):
            return [(x, name)]
        if issubclass(type(x), FunctionType):
            self._nodes.append(FunctionParts(x, name))
        return self._of_object(x, name)

    def _of_object(self, x: object, name: str) -> list[tuple[object, str]]:
        """Add an object of a library's, with the attributes that code of the program's names."""
        own = attributes_of(x)
        if own is None or id(own) in self._objects:
            return []
        found: list[tuple[object, str]] = []
        if not callable(x):
            found += self.of_class(type(x))
        node = self._objects[id(own)] = LibraryGlobals(own, name, self._code)
        node.counts = self._code.has_name
        self._nodes.append(node)
        found += self._ask_named(node, self._code.names, self._code.words)
        return [*found, *self._ask(node, _names_of_library(node, self._entered))]

    def _all_nodes(self) -> list[Named]:
        return [*self._known.values(), *self._objects.values()]

    def _ask_all(self, node: Named) -> list[tuple[object, str]]:
        """Let all names of ``node`` count, but those of a library's own counters. Other modules of
        libraries are followed only by their names, since each leads to all."""
        found = self._ask_named(node, self._code.names, self._code.words)
        others = self._ask(node, _without_counters(node, node.names))
        found += [(x, path) for x, path in others if not issubclass(type(x), ModuleType)]
        return found

    def clear(self) -> None:
        self._known.clear()
        self._objects.clear()


def _names_of_library(node: Named, names: Set[str]) -> list[str]:
    """Return those of ``names``, which a library has, that count. Of a class these are all but
    integers, which are counters, as ``RemovableHandle.next_id``. Of a module they are what is
    called, modules, and plain values: others may be a cache."""
    own = node.names
    common = own.keys() & names
    if not common:
        return []
    if isinstance(node, LibraryGlobals):
        return [name for name in sorted(common) if _is_called_or_plain(own[name])]
    return [name for name in sorted(common) if type(own[name]) is not int]


def _without_counters(node: Named, names: Iterable[str]) -> list[str]:
    """Return ``names`` without those of integers in a class of a library that its methods name:
    these count something for it. As an argument of a program such a number would be a symbol in
    what the library keeps."""
    if isinstance(node, LibraryGlobals):
        return list(names)
    own, used = node.names, _names_in_methods(node.owner)
    return [name for name in names if type(own[name]) is not int or name not in used]


@functools.cache
def _names_in_methods(cls: type) -> frozenset[str]:
    """Return the names that the methods of a class have."""
    methods = [value for value in vars(cls).values() if isinstance(value, FunctionType)]
    return frozenset(chain.from_iterable(names_of(method.__code__).every for method in methods))


def _is_called_or_plain(x: Any) -> bool:
    return callable(x) or issubclass(type(x), ModuleType) or type(x) in SIMPLE


def _may_count(node: Named, name: str) -> bool:
    """Return whether ``node`` has the name, nobody has asked for it, and it is not for the time of
    a capture alone."""
    if name in node.had or name not in node.names:
        return False
    return not _is_of_capture(node.names[name])


def _is_of_capture(x: Any) -> bool:
    """Return whether this package has exchanged a function of a library's for one of its own, as a
    capture does."""
    return issubclass(type(x), FunctionType) and is_of_package(x.__code__.co_filename)


def _tells_of_itself(x: object) -> bool:
    """Return whether one can ask an object what it has. One of C may say nothing, such as what each
    abstract class has. Nobody asks for the text that has gone to a stream."""
    kind = type(x)
    if x is sys.modules or (issubclass(kind, io.IOBase) and not issubclass(kind, _IN_MEMORY)):
        return False
    if issubclass(kind, (type, torch.Generator)):
        return True
    return attributes_of(x) is not None or bool(slots_of(kind)) or row_of(x) is not None


def _is_of_torch(cls: type) -> bool:
    """Return whether a class is torch's, which has hundreds: those count that the program names, or
    has objects of."""
    return str(module_of(cls)).partition(".")[0] == "torch"


def _is_switch(change: Change) -> bool:
    """Return whether a plain value has become another one."""
    return type(change.before) in SIMPLE and type(change.now) in SIMPLE


def _is_library_module(x: Any) -> bool:
    return issubclass(type(x), ModuleType) and not follows(x)


def _may_be_written(cls: type) -> bool:
    """Return whether somebody can put an attribute into a class of a library."""
    return not (cls.__flags__ & _IMMUTABLE or is_of_user(cls) or is_of_ours(cls))


def _is_followed(x: Any) -> bool:
    """Return whether what a library has may be the user's: an object of the user's class, a
    function that is not the library's. So may be what another module has."""
    kind = type(x)
    if issubclass(kind, FunctionType):
        return is_followed(x.__code__.co_filename)
    if issubclass(kind, type):
        return is_of_user(x)
    if issubclass(kind, ModuleType):
        return True
    return is_of_user(kind)
