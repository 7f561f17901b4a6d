"""The code that a program runs, and what it may ask objects for.

    code = ProgramCode()
    code.add(f.__code__, f.__globals__)
    code.counts(model, "rate")          # whether the program may ask for model.rate

A name counts wherever code has it, also in a text. Of objects of classes whose code is not looked
through, any attribute may be asked for."""

from __future__ import annotations

import builtins
import enum
import itertools
import operator
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import fx

from ...seam.own_modules import is_own_module
from ...trace.provenance import Line, happened_at
from .code_names import COMPUTED, CodeNames, beginning_of, names_of
from .nodes import NOTES, Attributes, Cell, FunctionParts, Named, Node, class_name
from .object_kinds import GENERATORS_OF_NUMPY, NAMED_ALONE, row_of
from .trusted import is_followed_module
from .values import SIMPLE, attributes_of, module_of

Code = tuple[CodeType, dict[str, Any]]
"""A function's code, and its globals."""
_WITHOUT_STATE = (torch.nn.Module, SimpleNamespace, object)
_OF_CLASSES = frozenset(
    [
        "__dict__",
        "__weakref__",
        "__doc__",
        "__module__",
        "__qualname__",
        "_abc_impl",
        "__annotations__",
        "__firstlineno__",
        "__static_attributes__",
        *NOTES,
    ]
)
"""Names that most classes or modules have, and hardly any code asks for."""
_TEXTS_OF_CLASSES = frozenset(("__annotations__", "__doc__", "__module__", "__qualname__"))
"""Those that count where code has them. The others are the work of Python's own code."""
# a note that only a warning of schedulers reads
_OF_OPTIMIZERS = frozenset(("_opt_called",))
# what a generator of Python's keeps of the last two numbers that it has drawn
_NEXT_DRAW = "gauss_next"
# of a graph module, which runs generated code: its property `graph` reads it
_GRAPH = "_graph"

# What reads or sets where an object is, by kind, and tells no hook that it has the object: methods
# of NumPy's, functions of Python's. NumPy's other methods draw, so that the state tells of them.
_READS_STATE: tuple[tuple[type, frozenset[str]], ...] = (
    (np.random.RandomState, frozenset(("get_state", "set_state", "_bit_generator"))),
    (np.random.Generator, frozenset(("bit_generator", "_bit_generator"))),
    (np.random.BitGenerator, frozenset(("state", "jumped"))),
    (np.random.SeedSequence, frozenset(("state", "n_children_spawned"))),
    (itertools.count, frozenset(("repr", "str", "format"))),
    (Iterator, frozenset(("length_hint",))),
)
_PICKLES = frozenset(("dump", "dumps", "Pickler", "__getstate__", "__reduce__"))


class BackwardEntries:
    """What a backward pass enters that the caller runs. ``codes``: of functions, by identity.
    ``found``: by identity what their variables have when they begin. ``layers``: those that run,
    whose code is torch's. ``given``: identities of the containers that the run has in place of the
    caller's."""

    def __init__(self) -> None:
        self.given: frozenset[int] = frozenset()
        self.codes: dict[int, Code] = {}
        self.found: dict[int, Any] = {}
        self.layers: dict[int, torch.nn.Module] = {}

    def add(self, function: object) -> None:
        """Note ``function``, which may be an object, such as a layer."""
        self.found[id(function)] = function

    def enter(self, code: CodeType, names: dict[str, Any], variables: Mapping[str, Any]) -> None:
        """Note that a function begins. ``names``: its globals."""
        self.codes[id(code)] = code, names
        for x in variables.values():
            self.found[id(x)] = x
            if is_of_ours(type(x)) and not isinstance(x, torch.Tensor):  # a context of a Function
                self.found |= {id(y): y for y in (attributes_of(x) or {}).values()}

    def refuse_given(self) -> None:
        """Raise ``RuntimeError`` if a function comes to a container of the caller's."""
        if self.given.isdisjoint(self.found):
            return
        code, _ = next(iter(self.codes.values()))
        raise RuntimeError(
            "the backward pass of the program comes to a container that the program is given, in a "
            "custom Function or in a hook. A call would not see that it changes before the pass. "
            "Pass its items, or let the program run backward() itself."
            f"{happened_at(beginning_of(code))}"
        )


def builtins_of(names: dict[str, Any]) -> dict[str, Any]:
    """Return where Python looks names up that globals do not have: others than its own functions,
    if the globals say so."""
    own = names.get("__builtins__", builtins)
    if isinstance(own, ModuleType):
        return vars(own)
    return own if type(own) is dict else vars(builtins)


class ProgramCode:
    """See above. ``entered``: by identity of the code. ``names``: of globals and attributes.
    ``words``: of texts. ``loaded``: the names that code does not only store to. ``of_schedulers``:
    names in the code of torch's schedulers that ran. ``computed``: whether code looks attributes up
    by names that it computes. ``finds_globals``: whether it has a function that finds globals so,
    by whatever name. ``asks_types``: whether it calls ``type``, which tells symbols from numbers.
    ``fresh``: names that no object has been asked for yet."""

    def __init__(self) -> None:
        self.entered: dict[int, Code] = {}
        self._defined: set[int] = set()  # identities of the code of functions that it makes
        self.names: set[str] = set()
        self.words: set[str] = set()
        self.loaded: set[str] = set()
        self.of_schedulers: set[str] = set()
        self.computed = False
        self.finds_globals = False
        self.asks_types = False
        self.fresh: list[str] = []

    def has(self, code: CodeType) -> bool:
        return id(code) in self.entered

    def add(self, code: CodeType, names: dict[str, Any]) -> CodeNames:
        """Learn the names in ``code``. ``names``: its globals."""
        self.entered[id(code)] = (code, names)  # the code stays alive, and so its identity
        self._defined.update(id(x) for x in code.co_consts if isinstance(x, CodeType))
        found = names_of(code)
        self.loaded |= found.loaded
        self.learn(found.every, found.words)
        # it may ask for a name that it computes, or for all
        if "sys" in self.loaded and "modules" in self.names:
            self.learn(("sys.modules",), ())
        self.asks_types |= "type" in found.globals and "type" not in names
        return found

    def defines(self, code: CodeType) -> bool:
        """Return whether a function that the program runs makes functions with this code."""
        return id(code) in self._defined

    def learn(self, names: Iterable[str], words: Iterable[str]) -> None:
        """Let names and words of texts count, too."""
        # in an order, so that reports and errors are the same in each process
        new = sorted({name for name in names if name not in self.names})
        if "graph" in new and _GRAPH not in self.names:
            new.append(_GRAPH)
        self.names.update(new)
        words = sorted({word for word in words if word not in self.words})
        self.words.update(words)
        self.fresh += new
        self.fresh += [word for word in words if word not in self.names]

    def learn_scheduler(self, code: CodeType) -> set[str]:
        """Learn the names in the code of a scheduler. Return the new ones."""
        new = set(code.co_names) - self.of_schedulers
        self.of_schedulers |= new
        return new

    def take_fresh(self) -> list[str]:
        """Return the names that no object has been asked for yet."""
        new, self.fresh = self.fresh, []
        return new

    def texts_of_modules(self, new: Iterable[str]) -> Iterable[str]:
        """Return the texts that code may look up in ``sys.modules``, whether or not there is such a
        module: ``"torchvision" in sys.modules``. ``new``: the names and texts that came last."""
        if "modules" not in self.names:
            return ()
        if "modules" in new:
            return sorted(self.words)
        return [word for word in new if word in self.words]

    @property
    def asks_all_globals(self) -> bool:
        """Return whether code finds globals by names that it computes."""
        return self.finds_globals or not self.names.isdisjoint(("globals", "eval", "exec"))

    def own_globals(self) -> list[tuple[str, dict[str, Any]]]:
        """List the globals of the program's code, with the names of its modules: what
        ``globals()`` gives to the code that calls it."""
        found = {id(names): names for _, names in self.entered.values()}
        return [(str(names.get("__name__")), names) for names in found.values()]

    def globals_found(self, names: dict[str, Any]) -> Iterator[str]:
        """Yield which of a module's names code finds that computes them: those of all values, and
        of the functions and classes that a text names."""
        for name, x in list(names.items()):
            is_value = not issubclass(type(x), (FunctionType, ModuleType, type))
            if name in self.words or (is_value and name[:2] != "__"):
                yield name

    @property
    def first_line(self) -> Line | None:
        """Return where the function begins that the program entered first."""
        for code, _ in self.entered.values():
            return code.co_filename, code.co_firstlineno, code.co_name
        return None

    def counts(self, x: Any, name: str) -> bool:
        """Return whether the program may ask ``x`` for ``name``."""
        kind = type(x)
        if self.has_name(name):
            return name not in _OF_OPTIMIZERS or not issubclass(kind, torch.optim.Optimizer)
        if issubclass(kind, tuple(NAMED_ALONE)):
            read = next(names for cls, names in NAMED_ALONE.items() if issubclass(kind, cls))
            return name in read or name in self.of_schedulers
        if issubclass(kind, type):
            of_torch = issubclass(x, torch.nn.Module) and name == "forward"
            return of_torch or name.startswith("__") or self._sees_all(x)
        if issubclass(kind, torch.optim.Optimizer):
            return name not in _OF_OPTIMIZERS
        return self._counts_in_object(kind, name)

    def _counts_in_object(self, kind: type, name: str) -> bool:
        """Return whether code for which ``name`` is no name may ask an object of ``kind`` for
        it."""
        if kind is FunctionType or (name == _NEXT_DRAW and issubclass(kind, random.Random)):
            return self.computed
        if name == _GRAPH and issubclass(kind, fx.GraphModule):
            return self.computed or self.has_name("graph")
        # torch's own code asks each layer for these: its tables begin with an underscore
        of_layers = name[0] == "_" or name in ("training", "forward")
        if of_layers and issubclass(kind, torch.nn.Module):
            return True
        return self._sees_all(kind)

    def has_name(self, name: str) -> bool:
        """Return whether ``name`` is in code, also in a text."""
        return name in self.names or name in self.words

    def may_have(self, name: str) -> bool:
        """Return whether code has a name, or computes names."""
        return self.computed or self.has_name(name)

    def may_ask(self, name: str) -> bool:
        """Return whether a name counts that most classes or modules have."""
        return name not in _OF_CLASSES or (name in _TEXTS_OF_CLASSES and self.has_name(name))

    def named_objects(self, nodes: Iterable[Node], roots: Iterable[object]) -> set[int]:
        """Return the identities of the objects that the program has names for, and of those in
        them.

            it = iter(samples)

            @jit
            def step(x):
                return x * length_hint(it)      # `it` is named here

        The graph of objects may hold an iterator that the program has no name for: the trainer has
        it, and code that computes names may come to it. What is named may be read by a function of
        C that no hook sees, as in the example.

        ``nodes``: of the graph. ``roots``: what the program is made of and given. An attribute
        counts whosever it is, if code has its name. What variables of functions around and defaults
        hold counts, as do the items of a container that counts."""
        items: defaultdict[int, list[Node]] = defaultdict(list)
        pending: list[object] = list(roots)
        for node in nodes:
            if isinstance(node, Attributes):
                values = [*node.had.items(), *node.slots.items()]
                pending += [x for name, x in values if self._may_name(node.owner, name)]
            elif isinstance(node, Named):
                pending += [x for name, x in node.had.items() if self.has_name(name)]
            elif isinstance(node, (Cell, FunctionParts)):
                pending += _below(node)
            else:
                items[id(node.owner)].append(node)
        found: set[int] = set()
        while pending:
            x = pending.pop()
            if type(x) in SIMPLE or id(x) in found:
                continue
            found.add(id(x))
            for node in items[id(x)]:
                pending += _below(node)
            row = row_of(x)
            if row is not None:
                pending += row.below(x)
        return found

    def _may_name(self, x: object, name: str) -> bool:
        """Return whether code may come to an attribute of ``x``: it has its name, or computes it,
        or a class of Python's library, such as ``UserList``, has methods that do. What objects of
        torch's hold in C is torch's."""
        if self.computed or self.has_name(name) or isinstance(x, enum.Enum):
            return True
        kind = type(x)
        root = str(module_of(kind)).partition(".")[0]
        return root in sys.stdlib_module_names and self._sees_all(kind)

    def reads_state_of(self, x: object) -> bool:
        """Return whether code has a name that reads or sets where ``x`` is: an iterator, or a
        random generator of NumPy's. False for one of Python's, whose methods the hook sees."""
        asked = self.names | self.words
        if isinstance(x, GENERATORS_OF_NUMPY) and "seed" in asked:
            # other objects have a seed, and each program may come to NumPy's own generator
            return x is not np.random.mtrand._rand or "random" in asked
        return any(
            isinstance(x, kind) and not asked.isdisjoint(names | _PICKLES)
            for kind, names in _READS_STATE
        )

    def counts_in_modules(self, name: str) -> bool:
        """Return whether the program may ask a module for ``name``. Not for any where code computes
        names: a module leads to what it imports, and so to all modules."""
        return self.has_name(name) or name == "__getattr__"

    def counts_in_library(self, cls: type, name: str) -> bool:
        """Return whether the program may ask for ``name`` of a class that is not the user's. Python
        asks for special methods, such as ``__mul__``, and no code has their names."""
        return self.may_have(name) or is_special(cls, name)

    def _sees_all(self, kind: type) -> bool:
        """Return whether code that is not looked through may read any attribute of an object of
        this class: that of a class that it inherits from."""
        return self.computed or any(
            not is_of_user(cls) for cls in kind.__mro__ if cls not in _WITHOUT_STATE
        )


def names_asked_by(cls: type) -> list[str]:
    """Return the names by which Python itself asks objects on behalf of a class: those of a pattern
    by position, and the members of a protocol, for ``isinstance``."""
    own = vars(cls)
    names = [name for name in own.get("__match_args__", ()) if isinstance(name, str)]
    if own.get("_is_protocol"):
        names += [name for name in own if name not in _OF_CLASSES]
        names += own.get("__annotations__", ())
    return names


_OF_OPERATORS = frozenset(
    [
        *(name for name, f in vars(operator).items() if name[:2] == "__" and callable(f)),
        *(f"__r{name[2:]}" for name in vars(operator) if name[:2] == "__"),
        *(f"__{name}__" for name in ("bool", "complex", "float", "hash", "int", "iter", "len")),
    ]
)
"""What operators ask tensors for. Of the other special methods a drop-in exchanges some."""


def is_special(cls: type, name: str) -> bool:
    """Return whether Python itself may ask ``cls`` for ``name``, which no code then has: operators,
    statements, `str` and `match` do."""
    if cls is torch.Tensor:
        return name in _OF_OPERATORS
    return name[:2] == "__" == name[-2:] and name not in _OF_CLASSES


class NameIndex:
    """What waits for a name: objects have it, and no code of the program's does yet.

        index = NameIndex()
        index.wait(node, "rate")            # the object of `node` has an attribute `rate`
        index.nodes_of(["rate"])            # the program's code has this name by now

    The dictionaries of torch's layers wait, too. A layer has a dozen, such as its hooks, and each
    might get an attribute beside its items. torch asks none for attributes. So these are state only
    where code of the program's has the name of the dictionary."""

    def __init__(self) -> None:
        self._nodes: defaultdict[str, list[Named]] = defaultdict(list)
        self._dictionaries: defaultdict[str, list[tuple[Any, str]]] = defaultdict(list)
        self._identities: set[int] = set()

    def wait(self, node: Named, name: str) -> None:
        """Let a node wait for ``name``, which its object has."""
        self._nodes[name].append(node)

    def nodes_of(self, names: Iterable[str]) -> list[tuple[str, Named]]:
        """Return the nodes that have waited for these names, each with the name. They wait no
        longer."""
        return [(name, node) for name in names for node in self._nodes.pop(name, ())]

    def forget_nodes(self) -> None:
        """Let no node wait: all names count."""
        self._nodes.clear()

    def wait_for_attributes(self, x: object, name: str, label: str) -> None:
        """Let the attributes of a dictionary wait for the name ``label``, under which its layer has
        it. Its items are a node already. ``name``: of that node."""
        self._identities.add(id(x))
        self._dictionaries[label].append((x, name))

    def has_items_of(self, x: object) -> bool:
        """Return whether ``x`` is a dictionary whose attributes wait, or have waited."""
        return id(x) in self._identities

    def dictionaries_of(self, labels: Iterable[str]) -> list[tuple[Any, str]]:
        """Return the dictionaries that have waited for these names, with the names of their
        nodes. They wait no longer."""
        return [found for label in labels for found in self._dictionaries.pop(label, ())]

    def all_dictionaries(self) -> list[tuple[Any, str]]:
        """Return all dictionaries that wait. They wait no longer."""
        return self.dictionaries_of(list(self._dictionaries))

    def clear(self) -> None:
        self._nodes.clear()
        self._dictionaries.clear()
        self._identities.clear()


def _below(node: Node) -> list[object]:
    return [x for x, _ in node.below()]


def computes(names: Iterable[str]) -> bool:
    """Return whether one of ``names`` is of what looks attributes up whose names are in no code."""
    return not COMPUTED.isdisjoint(names)


def is_of_user(cls: type) -> bool:
    """Return whether a class is followed. ``cls.__module__`` might run the code of its
    metaclass."""
    module = module_of(cls)
    if type(module) is not str:
        return False
    if module in _MAKERS:
        return vars(sys.modules[module]).get(class_name(cls)) is not cls
    return is_followed_module(module)


# modules whose functions make classes for their callers: `make_dataclass`, `new_class`, `ABCMeta`
_MAKERS = frozenset(("abc", "types"))


def is_of_ours(cls: type) -> bool:
    """Return whether a class is this package's."""
    return is_own_module(str(module_of(cls)))
