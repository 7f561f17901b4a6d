"""The graph of the objects that a program can come to.

    graph = ObjectGraph([f])            # f, its closure, its defaults
    graph.enter(f.__code__, f.__globals__)
    graph.holds()                       # whether all is as it was
    graph.changes()                     # what a run has changed

Only code that runs widens it: when a function is entered (:mod:`.entry_hook`), before its first
line, the graph learns the names in its code. Each name is asked of each object, class and module
that is known, and what is there is reached in turn. So a snapshot is older than the write of the
function that is entered, since that function has the name in its code.

A name counts wherever it may lead, so that the graph is too large rather than too small. Where
code looks attributes up by a name that it computes (``getattr``, ``vars``, …), all attributes of
all objects count."""

from __future__ import annotations

import decimal
import functools
import gc
import random
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler

from ...seam.levels import Value
from ...torch_private.mode_stacks import unseen_by_handlers
from ...trace.graph_module import GraphModule, LateGraphModule
from ...trace.provenance import is_of_package
from ...trace.symbols import SYMBOLIC
from .code_names import LOOKUPS_OF_GLOBALS, first_code, is_lookup
from .contents import DefaultFactory, Draws, Fact, Parts, Position, Positions
from .dictionary_items import DictItems
from .library_names import LibraryNames
from .nodes import (
    Attributes,
    Cell,
    ClassParts,
    FunctionParts,
    Globals,
    Named,
    Node,
    Place,
    path_of,
)
from .object_kinds import (
    GENERATORS_OF_ALL,
    HOOKS_OF_ALL,
    KINDS_WITH_NAMES,
    NOT_HELD,
    PLAIN,
    Registry,
    Row,
    class_names,
    has_unknown_part,
    hooks_of_all,
    is_constant,
    names_behind,
    row_of,
)
from .program_code import (
    BackwardEntries,
    Code,
    NameIndex,
    ProgramCode,
    builtins_of,
    computes,
    is_of_ours,
    is_of_user,
    names_asked_by,
)
from .reads import FACTS as FACTS_OF_TENSOR
from .reads import Read, facts
from .snapshot import PLAIN_VALUES, Snapshot
from .switches import FACTS_OF_ALL, FACTS_OF_NAMES, Facts, facts_of
from .trusted import RUNNERS, follows, is_followed, is_followed_module
from .value_attributes import ValueAttributes
from .values import (
    MISSING,
    PLAIN_TENSORS,
    attributes_of,
    module_of,
    referent_of,
    slots_of,
)

LIMIT = 200_000
"""Objects of one graph."""
LARGE = 2**24
"""Bytes of an array from which on it is not compared."""


class ObjectGraph(Snapshot):
    """See above. ``roots``: what is known before the program runs. ``ignore``: objects that are
    left out. ``ahead``: code that is known to run, from captures before. ``budget``: of a graph
    that is made without a run, in which all code counts that is reached: how many nodes it may
    have. It ends there, with the objects that are nearest. ``opaque``: objects that say nothing of
    themselves, with their names."""

    def __init__(
        self,
        roots: Iterable[object],
        ignore: Iterable[Any] = (),
        ahead: Iterable[Code] = (),
        budget: int | None = None,
    ) -> None:
        super().__init__(ignore)
        self.budget = budget
        self.generators: list[torch.Generator] = []
        self.opaque: list[tuple[Any, str]] = []
        self.roots: list[Any] = list(roots)
        self.code = ProgramCode()
        self.backward: BackwardEntries | None = None  # while such a pass is traced
        self.large: list[str] = []
        self.moving: set[int] = set()  # identities of what the program may not move
        self.iterators = Positions()
        self.made: set[int] = set()  # identities of optimizers that the program has made
        self._named: dict[int, Named] = {}  # by identity of an object, class or globals
        self._modules: dict[int, Globals] = {}
        self._visits: dict[type, Visit] = {}
        self._facts: set[str] = set()
        self.caches: list[tuple[Any, str]] = []  # functions that keep their results
        self.on_miss: Callable[[], object] | None = None  # called before one of them runs
        self._index = NameIndex()
        self._libraries = LibraryNames(self.code, self.nodes)
        self._pending: deque[tuple[Any, str]] = deque()
        self._pending += [(x, getattr(x, "__name__", type(x).__name__)) for x in self.roots]
        for x, name in GENERATORS_OF_ALL if budget is None else ():
            self._add(Draws(x, name))  # of its attributes, if the program comes to it
        self.ask(FACTS_OF_ALL if budget is None else {})
        self._drain()
        for code, names in (*map(first_code, self.roots), *ahead):
            if code is not None:
                self._learn_code(code, names)
        self._drain()

    # --- what the program enters ------------------------------------------------------------------

    def enter(self, code: CodeType, names: dict[str, Any]) -> None:
        """Learn that a function is about to run. ``names``: its globals."""
        if not self.code.has(code):
            self._learn_code(code, names)
            self._drain()

    def reach(self, places: Iterable[Place]) -> None:
        """Come to the objects at whose places a run will find other values than there are now."""
        for node, label in places:
            if isinstance(node, Cell):
                self._variable(node.owner, node.name, node.variable)
            elif isinstance(node, Globals):
                self._ask(self._globals(node.owner, node.name), (label,))
            else:
                self._pending.append((node.owner, node.name))
        self._drain()

    def enter_module(self, m: ModuleType) -> None:
        """Learn that the program has found a module by a name that it computes."""
        self._ask_loaded(m.__name__)
        self.reach_object(m, m.__name__)

    def enter_closure(self, code: CodeType, variables: Mapping[str, object]) -> None:
        """Come to what the variables around a function hold, unless the program has made the
        function: a registry of a library's may have it. ``code``: that of the function."""
        if not self.code.defines(code):
            for name in code.co_freevars:
                self.reach_object(variables.get(name), name)

    def enter_library(self, code: CodeType, m: ModuleType) -> None:
        """Learn that a function of a library's module is about to run."""
        self._pending += self._libraries.enter(code, m)
        for label, hooks in HOOKS_OF_ALL.get(m.__name__, ()):
            self._dictionary_of_layer(label, hooks, label)
        self._drain()

    def enter_imports(self, names: Iterable[str]) -> None:
        """Learn that the program has asked for modules that were not loaded. Some are by now, and
        others are missing."""
        self._ask_modules(filter(is_followed_module, names))

    def reach_object(self, x: object, name: str) -> None:
        """Come to an object that a library reads for the program."""
        self._pending.append((x, name))
        self._drain()

    def enter_generator(self, x: types.GeneratorType[Any, Any, Any], name: str) -> None:
        """Learn that a generator from outside is about to go on. What its variables hold is put
        back when the program is refused."""
        self._reach_held(x, name)
        self._drain()

    def enter_scheduler(self, code: CodeType) -> None:
        """Learn that a function of torch's learning-rate schedulers is about to run. Most programs
        only hold a scheduler, which another part of the loop steps."""
        new = self.code.learn_scheduler(code)
        for node in list(self._named.values()):
            if issubclass(type(node.owner), LRScheduler):
                self._ask(node, [name for name in new if name in node.names])
        self._drain()

    def _learn_code(self, code: CodeType, names: dict[str, object]) -> None:
        if self.code.has(code):
            return
        found = self.code.add(code, names)
        self._ask(self._globals(names, str(names.get("__name__"))), found.globals)
        of_python = [name for name in found.globals if name not in names]
        self._ask(self._globals(builtins_of(names), "builtins"), of_python)

    # --- objects ----------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Reach what is pending, and ask for new names, until there is nothing new. A graph with a
        budget ends with the objects that are nearest. No mode over torch's functions sees it."""
        with unseen_by_handlers():
            while self._pending or self.code.fresh:
                while self._pending:
                    self._reach(*self._pending.popleft())
                    if self.budget is not None and len(self.nodes) > self.budget:
                        self._pending.clear()
                        self.code.fresh.clear()
                        return
                self._spread()

    def _reach(self, x: object, name: str) -> None:
        """Come to ``x``, once. ``name``: how one comes to it, for messages."""
        kind = type(x)
        if kind in KINDS_WITH_NAMES:
            self.code.learn(names_behind(x), ())
        if kind in PLAIN_VALUES or x is MISSING or id(x) in self._reached:
            return
        self._reached[id(x)] = x  # the object, which keeps its identity from being another one's
        settings = facts_of(x)
        if settings:
            self.ask(settings)
        if is_lookup(x):
            self._lookup(x, name)
            return
        visit = self._visits.get(kind)
        if visit is None:  # once for each class, of which there are far fewer than objects
            visit = self._visits[kind] = _visit_of(x)
        visit(self, x, name)

    def _by_row(self, row: Row, x: Any, name: str) -> None:
        """Add an object whose class has a row: its node, what is below it, and its attributes."""
        kind = type(x)
        if row.node is not None and id(x) not in self.moving and not self._index.has_items_of(x):
            self._add(self._made(row.node, x, name))
        if issubclass(kind, defaultdict):  # beside its items
            self._add(DefaultFactory(x, f"{name}.default_factory"))
        self._pending += [(part, f"{name}.{type(part).__name__}") for part in row.below(x)]
        if kind.__dictoffset__ or slots_of(kind):
            self._object(x, name)  # it may have attributes beside its items, and get some later
        elif is_of_user(kind):
            self._pending.append((kind, kind.__qualname__))

    def _node_of_row(self, x: object, name: str) -> None:
        row = row_of(x)
        assert row is not None and row.node is not None
        self._add(self._made(row.node, x, name))

    def _made(self, make: Callable[[Any, str], Node], x: object, name: str) -> Node | None:
        """Return the node for ``x``; None if that cannot be compared, and is an object of C."""
        try:
            return make(x, name)
        except TypeError:  # an iterator of C that does not say how far it is
            self._object_of_c(x, name)
            return None

    def _add(self, node: Node | None) -> None:
        """Add a node, and come to what is below it. ``RuntimeError`` if there are too many."""
        if node is None:
            return
        self.nodes.append(node)
        if not node.watched:
            self.moving.add(id(node.owner))
        if isinstance(node, Position):
            self.iterators.add(node)
        if len(self.nodes) > LIMIT:
            raise RuntimeError(
                f"the program can come to more than {LIMIT:,} objects, such as {node.name}. "
                "Name what it does not depend on in jit(f, ignore=(…,))."
            )
        self._pending += node.below()

    def _function(self, function: FunctionType, name: str) -> None:
        """Add a function: its code and defaults, the variables around it, what it wraps, its
        attributes."""
        file, wrapped = function.__code__.co_filename, function.__dict__.get("__wrapped__")
        self._pending.append((wrapped, name))
        self._pending += [(x, name) for x in function.__dict__.get("static_values", ())]
        if is_of_package(file):
            return  # what our own functions close over is no state of the program
        self._add(FunctionParts(function, function.__qualname__))
        if self.budget is not None and is_followed(file):
            self._learn_code(function.__code__, function.__globals__)
        for variable, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self._variable(cell, f"{variable!r} around {function.__qualname__}", variable)
        self._object(function, function.__qualname__)

    def _variable(self, cell: object, name: str, variable: str) -> None:
        if id(cell) not in self._reached:
            self._reached[id(cell)] = cell
            self._add(Cell(cell, name, variable))

    def _module(self, m: ModuleType, name: str) -> None:
        if follows(m):
            self._imported(m)
        else:
            self._pending += self._libraries.of_module(m)

    def _imported(self, m: ModuleType) -> None:
        node = self._globals(vars(m), m.__name__)
        if id(node.owner) not in self._modules:
            self._modules[id(node.owner)] = node
            node.counts = self.code.counts_in_modules
            self._ask_module(node)

    def _ask_module(self, node: Globals) -> None:
        """Let the names of a module count that code has, also in texts."""
        self._ask(node, list(filter(self.code.counts_in_modules, node.owner)))

    def _globals(self, names: dict[str, Any], name: str) -> Globals:
        found = self._named.get(id(names))
        if found is None:
            found = self._named[id(names)] = Globals(names, name)
            self.nodes.append(found)
        assert isinstance(found, Globals)
        return found

    def _ask(self, node: Named, names: Iterable[str]) -> None:
        """Let ``names`` of ``node`` count, and reach what is there."""
        new = [
            name
            for name in dict.fromkeys(names)
            if name not in node.had and self.code.may_ask(name)
        ]
        for name, x in zip(new, node.pick(new), strict=True):
            path = path_of(node.name, name)
            if type(x) is OrderedDict and issubclass(type(node.owner), torch.nn.Module):
                self._dictionary_of_layer(name, x, path)
            else:
                self._pending.append((x, path))

    def _dictionary_of_layer(self, label: str, x: OrderedDict[Any, Any], name: str) -> None:
        """Reach a dictionary such as the hooks of a layer, which has a dozen. Where no code of the
        program's has its name, only torch's code asks for it, and for no attribute of it."""
        if self.code.computed or self.code.has_name(label):
            self._pending.append((x, name))
        elif id(x) not in self._reached and not self._index.has_items_of(x):
            self._index.wait_for_attributes(x, name, label)
            self._add(DictItems(x, name))

    def _class(self, cls: type, name: str) -> None:
        """Add a class of the user's: what it inherits from, and the names that it defines. Of one
        of a library what code has names for."""
        if is_of_user(cls):
            self._add(ClassParts(cls, cls.__qualname__))
            if "_abc_impl" in vars(cls):
                self._add(Registry(cls, cls.__qualname__))
            self.code.learn((), names_asked_by(cls))
            self._names_of(class_names(cls, self.code.counts), cls)
        else:
            self._pending += self._libraries.of_class(cls)

    def _object(self, x: object, name: str) -> None:
        """Add the attributes and slots of an object, and come to its class."""
        own, kind = attributes_of(x), type(x)
        if str(module_of(kind)).partition(".")[0] in RUNNERS:
            return
        if is_of_ours(kind) and not issubclass(kind, torch.nn.Module):
            self._pending.append((None if own is None else own.get("__wrapped__"), name))
            return
        if own is None and not slots_of(kind):
            self._object_of_c(x, name)
            return
        node = Attributes(x, name, {} if own is None else own, self.code.counts)
        self._names_of(node, x)
        self._pending.append((kind, kind.__qualname__))
        for label, hooks in hooks_of_all(kind):
            self._dictionary_of_layer(label, hooks, label)

    def _attributes(self, x: object, name: str) -> None:
        """Reach the attributes of an object, if its class lets it have any."""
        if attributes_of(x) is not None:
            self._object(x, name)

    def _object_of_c(self, x: object, name: str) -> None:
        """Come to what an object of C holds. It says nothing of itself but what it tells Python's
        collector."""
        if not is_constant(x):
            self.opaque.append((x, name))
        if is_of_user(type(x)):
            self._pending.append((type(x), type(x).__qualname__))
        self._reach_held(x, name)

    def _reach_held(self, x: object, name: str) -> None:
        held = [part for part in gc.get_referents(x) if part is not type(x)]
        self._pending += [(part, name) for part in held if not issubclass(type(part), NOT_HELD)]

    def _object_with_part_in_c(self, x: object, name: str) -> None:
        self._object(x, name)
        self._object_of_c(x, name)

    def _lookup(self, x: Any, name: str) -> None:
        """Come to a function that looks names up that are in no code."""
        self.code.finds_globals |= x in LOOKUPS_OF_GLOBALS
        self._look_through_all()
        if issubclass(type(x), types.BuiltinMethodType):
            self._pending.append((x.__self__, name))

    def _names_of(self, node: Named, x: object) -> None:
        """Add a node of names, and let those count that do. It waits for the others."""
        self._named[id(x)] = node
        self._add(node)
        counting: list[str] = []
        for name in node.names:
            if self.code.counts(x, name) and self.code.may_ask(name):
                counting.append(name)
            else:
                self._index.wait(node, name)
        self._ask(node, counting)

    def _tensor(self, tensor: torch.Tensor, name: str) -> None:
        """Add what a tensor from outside says of itself, and its attributes."""
        if isinstance(tensor, Value) and tensor._level.number > 0:
            return
        self.tensors[id(tensor)] = Read(tensor, FACTS_OF_TENSOR, facts(tensor))
        # most have no attribute yet, and are asked for the first one
        if isinstance(tensor, Value):
            self._names_of(ValueAttributes(tensor, name, self.code.counts), tensor)
        elif type(tensor) in PLAIN_TENSORS or is_of_user(type(tensor)):
            self._object(tensor, name)

    def _array(self, x: np.ndarray[Any, Any], name: str) -> None:
        if x.nbytes > LARGE:
            self.large.append(f"{name}, a NumPy array of {x.nbytes} bytes")
            return
        self._node_of_row(x, name)
        self._attributes(x, name)

    def _proxy(self, x: Any, name: str) -> None:
        self._pending.append((x.__reduce_ex__.__self__, name))

    def _cached(self, x: Any, name: str) -> None:
        """Add a function behind a cache. What it has computed is found without a call of it, so
        that it counts as one that runs."""
        function = x.__wrapped__
        if type(function) is FunctionType and is_followed(function.__code__.co_filename):
            self._learn_code(function.__code__, function.__globals__)
        self._node_of_row(x, name)
        self._pending.append((function, name))
        self._object(x, name)
        self.caches.append((x, name))
        if self.code.has_name("cache_info"):
            self._count_hits((x, name))

    def _count_hits(self, *caches: tuple[object, str]) -> None:
        """Let it count how often each cache was asked."""
        for x, name in caches:
            self._add(Parts(x, f"{name}.cache_info()", lambda cache: cache.cache_info()))

    def _reference(self, x: weakref.ref[object], name: str) -> None:
        """Add a weak reference. What it refers to may go when the capture has ended."""
        self._add(Parts(x, name, lambda r: (id(referent_of(r)),)))
        self._attributes(x, name)
        target = referent_of(x)
        if target is not None and id(target) not in self._reached:
            self.weak.append(id(target))
            self._pending.append((target, name))

    def _generator(self, x: torch.Generator, name: str) -> None:
        self.generators.append(x)
        self._attributes(x, name)

    def _passed_over(self, x: object, name: str) -> None:
        """Nothing is asked of a constant, nor of a graph that this package has made."""

    # --- names ------------------------------------------------------------------------------------

    def _spread(self) -> None:
        """Ask all that is known for the new names."""
        new = self.code.take_fresh()
        self._pending += self._libraries.ask(new)
        self.ask({name: FACTS_OF_NAMES[name] for name in new if name in FACTS_OF_NAMES})
        for name in new:
            self._ask_loaded(name)
        if "cache_info" in new:
            self._count_hits(*self.caches)
        self._ask_modules(self.code.texts_of_modules(new))
        # first, since no node waits for a name any more after that
        if computes(new):
            self._look_through_all()
        self._ask_waiting(new)
        self._pending += self._index.dictionaries_of(new)
        if new:
            for of_module in list(self._modules.values()):
                self._ask_module(of_module)
        if self.code.asks_all_globals:
            self._ask_all_globals()

    def _look_through_all(self) -> None:
        """Let all attributes of all objects count."""
        if self.code.computed:
            return
        self.code.computed = True
        self._module(random, "random")  # nobody knows which modules it finds
        self._pending += [*self._index.all_dictionaries(), *self._libraries.ask_all()]
        for node in list(self._named.values()):
            if not isinstance(node, Globals):
                self._ask(node, [name for name in node.names if self.code.counts(node.owner, name)])
        self._index.forget_nodes()

    def _ask_waiting(self, names: Iterable[str]) -> None:
        for name, node in self._index.nodes_of(names):
            if self.code.counts(node.owner, name):
                self._ask(node, (name,))

    def _ask_loaded(self, name: str) -> None:
        """Reach the module of this name, if there is one. Another may take its place."""
        module = sys.modules.get(name)
        if not isinstance(module, ModuleType):
            return
        if is_followed_module(name):
            self._ask_modules((name,))
        self._module(module, name)

    def _ask_modules(self, names: Iterable[str]) -> None:
        self._ask(self._globals(sys.modules, "sys.modules"), names)

    def ask(self, facts: Facts) -> None:
        """Let calls ask the questions ``facts``, of what no object of the graph has."""
        for name in [name for name in facts if name not in self._facts]:
            self._facts.add(name)
            self._add(Fact(facts[name], name))

    def _ask_all_globals(self) -> None:
        """Let globals count that are found by a computed name: all values, and the functions and
        classes that a text names."""
        for module, names in self.code.own_globals():
            self._ask(self._globals(names, module), self.code.globals_found(names))

    def settle(self) -> None:
        """Forget what only a capture needs, and what is not the graph's to keep alive."""
        super().settle()
        for table in (
            self._named,
            self._index,
            self._libraries,
            self._modules,
            self._visits,
            self.caches,
            self.opaque,
            self.roots,
        ):
            table.clear()


# adds an object, with its name, to a graph
Visit = Callable[[ObjectGraph, Any, str], None]


def _visit_of(x: object) -> Visit:
    """Return how objects of the class of ``x`` are added."""
    kind = type(x)
    for kinds, visit in _VISITS:
        if issubclass(kind, kinds):  # `isinstance` may ask the object for its class
            return visit
    row = row_of(x)
    if row is None and issubclass(kind, PLAIN):
        return ObjectGraph._object if is_of_user(kind) else ObjectGraph._passed_over
    if row is None and has_unknown_part(kind):
        return ObjectGraph._object_with_part_in_c
    if row is None:
        return ObjectGraph._object
    return lambda graph, y, name: graph._by_row(row, y, name)


# makes a graph of what can be known before the program runs: of all code that it may come to, the
# nearest 1,000 nodes
early_graph = functools.partial(ObjectGraph, budget=1_000)
_VISITS: tuple[tuple[Any, Visit], ...] = (
    ((weakref.ProxyType, weakref.CallableProxyType), ObjectGraph._proxy),
    (torch.Tensor, ObjectGraph._tensor),
    (FunctionType, ObjectGraph._function),
    (type, ObjectGraph._class),
    (ModuleType, ObjectGraph._module),
    (np.ndarray, ObjectGraph._array),
    (functools._lru_cache_wrapper, ObjectGraph._cached),
    (weakref.ref, ObjectGraph._reference),
    (torch.Generator, ObjectGraph._generator),
    (decimal.Decimal, ObjectGraph._attributes),
    ((GraphModule, LateGraphModule, *SYMBOLIC), ObjectGraph._passed_over),
)
