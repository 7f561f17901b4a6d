"""Which kinds of objects there are, one row each: the node that knows what such an object has, and
where one comes to from it.

An object of none of these kinds that has attributes or slots is a node of its attributes. One that
has none, such as one of another package in C, is *opaque*: nobody can ask it whether it is as it
was. A program that has a name for it is refused."""

from __future__ import annotations

import abc
import array
import ast
import datetime
import decimal
import functools
import gc
import importlib
import io
import itertools
import logging
import operator
import os
import random
import re
import struct
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Iterable
from contextvars import Context, ContextVar
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx
from torch.optim.lr_scheduler import LRScheduler

from ...seam.graph_walks import walk
from ...torch_private.dispatcher import OperatorBase, OpOverload, OpOverloadPacket
from .code_names import NAMERS
from .contents import (
    CONTAINERS,
    Buffer,
    CachedResults,
    Draws,
    Elements,
    ExceptionParts,
    FilePlace,
    Parts,
    Position,
    Record,
    StreamText,
    Variable,
)
from .iterators import iterating_class, position_of
from .nodes import Change, ClassNames, Label, Node
from .reads import QUESTIONS
from .switches import text_of_decimals
from .trusted import follows
from .values import module_of

GENERATORS_OF_NUMPY = (
    np.random.RandomState,
    np.random.Generator,
    np.random.BitGenerator,
    np.random.SeedSequence,
)
"""Kinds of generators of NumPy's, each with a state of its own."""


class Row(NamedTuple):
    """``kinds``: classes. ``node``: makes what knows the values of such an object; None if it never
    has others. ``below``: what one comes to beside these values."""

    kinds: tuple[type, ...]
    node: Callable[[Any, str], Node] | None
    below: Callable[[Any], Iterable[Any]] = lambda x: ()


def _parts(parts: Callable[[Any], tuple[object, ...]]) -> Callable[[Any, str], Node]:
    return lambda x, name: Parts(x, name, parts)


def _position(x: object, name: str) -> Node:
    return Position(x, name, position_of)


# nothing public of `abc` says which classes are registered
_get_dump: Any = vars(importlib.import_module("_abc"))["_get_dump"]
# by identity of a class: the class, and which module in the order of imports has it
_Registered = dict[int, tuple[weakref.ref[type], int]]
_REGISTERED: weakref.WeakKeyDictionary[type, tuple[object, _Registered]] = (
    weakref.WeakKeyDictionary()
)
"""By class: Python's token when its registry was read, and what it was."""
_MODULES: dict[str, int] = {}
"""By name: which module it is, in the order in which they were seen."""


def _number_of_modules() -> int:
    """Return how many modules there have been up to now."""
    # a module that is not noted, as another one has gone, counts as an old one
    if len(sys.modules) != len(_MODULES):
        for name in tuple(sys.modules):
            _MODULES.setdefault(name, len(_MODULES))
    return len(_MODULES)


def _registered_with(abstract: type) -> _Registered:
    """Return the classes that are registered with ``abstract`` or below it."""
    _number_of_modules()
    registered: _Registered = {}
    for cls in walk([abstract], type.__subclasses__):
        if "_abc_impl" in vars(cls):
            classes = [reference() for reference in _get_dump(cls)[0]]
            for x in classes:
                if x is not None:
                    module = _MODULES.get(str(module_of(x)), 0)
                    registered[id(x)] = (weakref.ref(x), module)
    return registered


class Registry(Node):
    """The classes that an abstract base class takes for its own: those that are registered with it
    or with a class that inherits from it.

    A class of a module that was imported since is none of them: no object that the program has
    found is one of its. An import of ``sympy``, as programs for any sizes need, registers some with
    those of ``collections.abc``. A class that nobody has any more is none either.
    """

    __slots__ = ("modules", "token")
    puts = False

    def __init__(self, owner: type, name: str) -> None:
        self.modules = _number_of_modules()
        self.token = abc.get_cache_token()
        super().__init__(owner, name)

    def holds(self) -> bool:
        # the token first: with one registry in most programs each call would sort its classes
        token = abc.get_cache_token()
        if token == self.token:
            return True
        self._drop_the_dead()
        if not super().holds():
            return False
        self.token = token
        return True

    def differences(self) -> list[tuple[Label, Any, Any]]:
        self._drop_the_dead()
        return super().differences()

    def changes(self) -> list[Change]:
        self._drop_the_dead()
        return super().changes()

    def look(self) -> tuple[weakref.ref[type], ...]:
        """Return the classes. Python's token of all registries changes with each class that
        somebody registers, wherever. Python makes one weak reference of an object, so references
        are compared by identity."""
        token = abc.get_cache_token()
        known = _REGISTERED.get(self.owner)
        if known is None or known[0] != token:
            known = _REGISTERED[self.owner] = (token, _registered_with(self.owner))
        classes = sorted(known[1].items())
        return tuple(
            cls for _, (cls, module) in classes if module < self.modules and cls() is not None
        )

    def renew(self) -> None:
        """Remember the classes of now."""
        self.modules = _number_of_modules()
        self.token = abc.get_cache_token()
        super().renew()

    def _drop_the_dead(self) -> None:
        self.had = tuple(cls for cls in self.had if cls() is not None)


def _self_of(x: types.BuiltinMethodType) -> tuple[object, ...]:
    """Return what a method is bound to. A function of an extension in C++ is bound to what tells
    its caller how to call it. By ``__import__`` one comes to any module that is loaded."""
    if x is __import__:
        loaded = list(sys.modules.values())
        return tuple(
            module for module in loaded if type(module) is types.ModuleType and follows(module)
        )
    owner = x.__self__
    if isinstance(owner, types.ModuleType) or module_of(type(owner)) == "pybind11_builtins":
        return ()
    return (owner,)


_DESCRIPTORS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
_BOUND = (types.BuiltinMethodType, types.MethodWrapperType)
KINDS_WITH_NAMES = frozenset(
    (
        str,
        np.str_,
        bytes,
        types.MethodType,
        types.FunctionType,
        OpOverload,
        OpOverloadPacket,
        *_BOUND,
        *_DESCRIPTORS,
        *NAMERS,
    )
)
"""The classes of objects by which a program may ask for what its code has no name for."""


def names_behind(x: Any) -> Iterable[str]:
    """Return names of questions that a program may ask by ``x``: a text, which ``getattr`` may
    get, a method of a tensor or of a generator of NumPy's, an ``attrgetter``."""
    kind = type(x)
    if kind is types.MethodType and isinstance(x.__self__, GENERATORS_OF_NUMPY):
        return (x.__name__,)
    return QUESTIONS.intersection(_words_of(x))


def _words_of(x: Any) -> Iterable[str]:
    """Return the names that an object of one of the classes has."""
    kind = type(x)
    if isinstance(x, str):
        return (str(x),)
    if kind is bytes:
        return (x.decode("latin-1"),)
    if kind in NAMERS:
        return (word for path in x.__reduce__()[1] for word in str(path).split("."))
    owner = getattr(x, "__self__", None)
    return (x.__name__.partition(".")[0], getattr(owner, "__name__", ""))


def _variables_of(x: Context) -> tuple[object, ...]:
    return tuple(itertools.chain.from_iterable(x.items()))


def _cached(x: object, name: str) -> Node:
    return CachedResults(x, name, _results_of)


_MANY_RESULTS = 256  # results of a cache up to which a call compares each of them


def _results_of(cache: Any) -> tuple[object, ...]:
    """Return what a cache of a function holds. Of a large one only how many results there are, and
    how often one was computed."""
    info = cache.cache_info()
    if not info.currsize:
        return ()
    if info.currsize > _MANY_RESULTS:
        return (info.currsize, info.misses)
    held = gc.get_referents(cache)[1:]  # after its class
    if type(held[0]) is dict:  # of a cache without a limit; no key is a dictionary
        return (*held[0], *held[0].values())
    return tuple(held[: 3 * info.currsize])  # a key, a result and a class for each


def _wrapped(x: Any) -> tuple[Any, ...]:
    return (x.__wrapped__,)


def _mapping_of(view: object) -> tuple[object, ...]:
    return tuple(x for x in gc.get_referents(view) if isinstance(x, dict))


def _names_behind_proxy(proxy: types.MappingProxyType[object, object]) -> tuple[object, ...]:
    """Return keys and values of the names of a class behind a proxy. Nothing of a mapping, which is
    an object of the graph."""
    (mapping,) = gc.get_referents(proxy)
    if not _is_of_class(mapping):
        return ()
    return (*dict.keys(mapping), *dict.values(mapping))


def _mapping_behind_proxy(proxy: types.MappingProxyType[object, object]) -> tuple[object, ...]:
    """Return the mapping behind a proxy. Not the names of a class, which nobody may assign
    there."""
    return tuple(x for x in gc.get_referents(proxy) if not _is_of_class(x))


def _is_of_class(mapping: object) -> bool:
    """Return whether a mapping has the names of a class, each of which has these two."""
    return type(mapping) is dict and "__module__" in mapping and "__doc__" in mapping


def _zone_of(x: object) -> tuple[object, ...]:
    kind: Any = datetime.datetime if issubclass(type(x), datetime.datetime) else datetime.time
    return (kind.tzinfo.__get__(x),)


def _parts_of_fx_node(node: fx.Node) -> tuple[object, ...]:
    return (node.op, node.name, node.target, node.args, node.kwargs, node.meta, node.next)


def _is_alive(x: Any) -> tuple[bool]:
    return (weakref.finalize.peek(x) is not None,)


def _callback_of(x: Any) -> tuple[object, ...]:
    """Return the function of a finalizer and its arguments, without the object that it waits
    for."""
    found: Any = weakref.finalize.peek(x)
    return () if found is None else tuple(found[1:])


class Lock(Node):
    """A lock. No call asks whether it is held, and one that a program acquires is no change that a
    call makes. A run that fails or is repeated gives it back."""

    __slots__ = ("watched",)

    def __init__(self, owner: Any, name: str) -> None:
        self.watched = False
        super().__init__(owner, name)

    def look(self) -> tuple[bool]:
        """Return whether the lock is held: one that its holder may acquire again, by this
        thread."""
        is_owned = getattr(self.owner, "_is_owned", None)
        return (self.owner.locked() if is_owned is None else is_owned(),)

    def changes(self) -> list[Change]:
        return []

    def restore(self) -> None:
        (was_held,) = self.had
        # in a loop: an RLock is free when it is released as often as it was acquired
        while not was_held and self.look()[0]:
            self.owner.release()


# The first row that fits counts. So a class stands before one that it inherits from: SystemRandom,
# which has no state, before Random, and streams before IOBase.
ROWS: tuple[Row, ...] = (
    Row((types.MethodType,), None, lambda x: (x.__self__, x.__func__)),
    Row((types.BuiltinMethodType, types.MethodWrapperType), None, _self_of),
    Row((functools.partial,), _parts(lambda x: (x.func, x.args, x.keywords))),
    Row((io.StringIO, io.BytesIO), StreamText),
    Row((io.TextIOWrapper, io.BufferedReader, io.FileIO), FilePlace),
    Row((property,), None, lambda x: (x.fget, x.fset)),
    Row((staticmethod, classmethod), None, lambda x: (x.__func__,)),
    Row((functools.cached_property,), None, lambda x: (x.func,)),
    Row((functools._lru_cache_wrapper,), _cached, _wrapped),
    Row((ContextVar,), Variable),
    Row((Context,), _parts(_variables_of)),
    Row((decimal.Context,), _parts(text_of_decimals)),
    Row((array.array, bytearray, memoryview), Buffer),
    Row((types.MappingProxyType,), _parts(_names_behind_proxy), _mapping_behind_proxy),
    Row((datetime.datetime, datetime.time), None, _zone_of),
    Row((struct.Struct,), _parts(lambda x: (x.format, x.size))),
    Row((type(threading.Lock()), type(threading.RLock())), Lock),
    Row((weakref.finalize,), _parts(_is_alive), _callback_of),
    Row((np.void,), Record),
    Row((fx.Node,), _parts(_parts_of_fx_node)),
    Row(tuple(map(type, ({}.keys(), {}.values(), {}.items()))), None, _mapping_of),
    Row((BaseException,), ExceptionParts),
    Row((np.ndarray,), Elements),
    Row((random.SystemRandom,), None),
    Row((random.Random, *GENERATORS_OF_NUMPY), Draws),
    *(Row((kind,), node) for kind, node in CONTAINERS),
    Row((tuple, frozenset), None, tuple),
    Row((slice,), None, lambda x: (x.start, x.stop, x.step)),
    Row((io.IOBase,), None),
)

PLAIN: tuple[Any, ...] = (
    np.generic,
    *_DESCRIPTORS,
    types.ClassMethodDescriptorType,
    types.CodeType,
    types.EllipsisType,
    types.NotImplementedType,
    torch.Size,
    OperatorBase,
    OpOverloadPacket,
    torch.library.Library,
    io.BufferedWriter,
    io.BufferedRandom,
    io.BufferedRWPair,
)
"""Kinds whose objects are no state of the program: constants, what is followed elsewhere (random
generators), and what a program only tells something to."""

_CONSTANTS: tuple[Any, ...] = (
    re.Pattern,
    re.Match,
    datetime.date,
    decimal.Decimal,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    operator.itemgetter,
    types.GenericAlias,
    types.UnionType,
    typing.TypeVar,
    typing.ParamSpec,
    type(NamedTuple("_Pair", [("first", int)]).first),  # type: ignore[attr-defined]
    np.dtype,
    type(np.sum),
    torch.qscheme,
    torch.jit.ScriptFunction,
    torch.finfo,
    torch.iinfo,
    torch.Stream,
    torch.Event,
)
"""Classes of C whose objects never change."""
_OF_OBJECTS = frozenset("O->")
"""The letters in the types of a function of NumPy's that takes any object."""
_CONSTANT_PACKAGES = frozenset(("pydantic_core", "scipy", "uarray"))
"""Packages of others, of whose classes of C the same is true."""


def is_constant(x: Any) -> bool:
    """Return whether an object without attributes never changes: of a class of C that is known, of
    an enumeration of C++, or of a class of Python's without any slot."""
    kind = type(x)
    if kind is np.ufunc:  # one of `np.frompyfunc`, of objects alone, holds a function of the user's
        return not x.types or not all(map(_OF_OBJECTS.issuperset, x.types))
    if issubclass(kind, _CONSTANTS) or "__members__" in vars(kind):
        return True
    if all("__slots__" in vars(cls) for cls in kind.__mro__ if cls is not object):
        return True
    return str(module_of(kind)).partition(".")[0] in _CONSTANT_PACKAGES


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class statement makes one, as do some modules of C


def has_unknown_part(kind: type) -> bool:
    """Return whether objects of ``kind`` have attributes, and beside them what a class of C has
    that is none of the kinds above: a subclass of ``queue.SimpleQueue``, say."""
    if iterating_class(kind) is not None or issubclass(kind, _WITH_KNOWN_PARTS):
        return False
    return any(_is_of_c(cls) for cls in kind.__mro__ if cls is not object)


def _is_of_c(cls: type) -> bool:
    """Return whether a class is of C: a function of C makes its objects, or no class statement has
    made it."""
    made_in_c = isinstance(vars(cls).get("__new__"), types.BuiltinFunctionType)
    return made_in_c or not cls.__flags__ & _HEAP_TYPE


_WITH_KNOWN_PARTS: tuple[type, ...] = (
    *(kind for row in ROWS for kind in row.kinds),
    *(kind for kind in PLAIN if isinstance(kind, type)),
    *_CONSTANTS,
    int,
    float,
    complex,
    str,
    bytes,
    type,
    types.FunctionType,
    types.ModuleType,
    types.SimpleNamespace,
    threading.local,
    ast.AST,
    decimal.Decimal,
    torch.Tensor,
    torch.Generator,
)
"""Classes of C whose objects the graph knows, and those without other parts than attributes."""


def row_of(x: object) -> Row | None:
    """Return the row for an object; None if it has none."""
    # Rows first: a file is an iterator, too. By the class, since `isinstance` may ask the object
    # for its `__class__`, which may be code of the user's.
    found = next((row for row in ROWS if issubclass(type(x), row.kinds)), None)
    if found is None and iterating_class(type(x)) is not None:
        return Row((type(x),), _position)
    return found


NAMED_ALONE: dict[type, frozenset[str]] = {
    LRScheduler: frozenset(),
    logging.Logger: frozenset(("level", "disabled", "propagate", "parent", "manager")),
    logging.Manager: frozenset(("_disable",)),
    logging.Handler: frozenset(("level", "_name")),
    threading.Thread: frozenset(("_name", "_daemonic", "_is_stopped", "_started")),
    type(os.environ): frozenset(),  # each variable has a question of its own
}
"""Kinds of torch's and Python's of which only the attributes count that code has names for, and
those that their methods read for a caller. Of others code that is not looked through may read
any."""

GENERATOR_OF_PYTHON: Any = vars(random)["_inst"]
GENERATORS_OF_ALL: tuple[tuple[Any, str], ...] = (
    (GENERATOR_OF_PYTHON, "random"),
    (vars(np.random.mtrand)["_rand"], "numpy.random"),
)
"""The generators that the functions of Python's and NumPy's modules draw from."""
NOT_HELD = (types.ModuleType, types.FrameType, types.TracebackType)
"""What an object of C may refer to, and what is no state of it."""


def _global_hooks(module: str) -> list[tuple[str, Any]]:
    names = vars(sys.modules[module]).items()
    return [
        (name, hooks)
        for name, hooks in names
        if name.startswith("_global_") and name.endswith("hooks")
    ]


HOOKS_OF_ALL: dict[str, list[tuple[str, Any]]] = {
    name: _global_hooks(name) for name in ("torch.nn.modules.module", "torch.optim.optimizer")
}
"""The dictionaries of hooks that torch calls for every module and every optimizer, by the name of
the module whose code does so."""


def hooks_of_all(kind: type) -> list[tuple[str, Any]]:
    """Return the dictionaries of hooks that torch calls for every object of a class."""
    for cls in (torch.nn.Module, torch.optim.Optimizer):
        if issubclass(kind, cls):
            return HOOKS_OF_ALL[cls.__module__]
    return []


def class_names(cls: type, counts: Callable[[Any, str], bool]) -> ClassNames:
    """Return the node of what a class defines itself. ``counts``: as in :class:`ClassNames`."""
    (dictionary,) = gc.get_referents(vars(cls))  # which Python shows by a view alone
    return ClassNames(cls, cls.__qualname__, counts, dictionary)
