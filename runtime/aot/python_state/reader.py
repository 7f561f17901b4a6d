"""What a program reads of Python's state: numbers, tensors, functions that it finds by a name, an
attribute or an item.

    scale = 2.0
    f = aot_function(lambda x: x * scale, …)
    f(x)
    scale = 3.0
    f(x)                # another program

A graph keeps what the program has found. So each call asks whether it would find the same. That is
asked of the function, of the functions of the user's and the modules that it calls by such names,
and so on. What the program finds in another way stays as it was: by ``getattr`` with a computed
name, in an object that it is given by a call.
"""

from __future__ import annotations

import copy
import functools
import itertools
import warnings
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import FunctionType, MappingProxyType, MemberDescriptorType, MethodType, ModuleType
from typing import Any
from weakref import ReferenceType, WeakValueDictionary

import numpy as np
import torch
from torch import fx

from ...seam.levels import Value
from ...session.tensor import unwrap
from ...trace.provenance import is_of_user
from .closed_over import at_hand, attributes_of
from .paths import Root, Step, paths_of
from .reads import FACTS, MANY, MISSING, OF_MEMORY, SIMPLE, WHOLE, Read, Slots, facts, look_up

_LIMIT = 4096  # reads of one program
_MOST = 2**14  # items of a list or dictionary that are compared
# what is compared with all its items
_WHOLES = (list, dict, OrderedDict, defaultdict, Counter, set, frozenset, deque)
# what finds items in dictionaries
_MAPPINGS = (ChainMap, UserDict, MappingProxyType, WeakValueDictionary)
# attributes of an array that its elements do not change
_OF_SHAPES = frozenset(("shape", "ndim", "size", "dtype", "nbytes"))
_LARGE = 2**24  # bytes of an array that are compared
# methods of these
_ASKING = frozenset(
    (
        "get",
        "items",
        "keys",
        "values",
        "count",
        "index",
        "copy",
        "union",
        "intersection",
        "issubset",
    )
)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_HOOKS_OF_ALL = [vars(torch.nn.modules.module)[f"_global{name}"] for name in _HOOKS]
_UNASKED = frozenset(
    (
        "__init__",
        "__new__",
        "__del__",
        "__repr__",
        "__str__",
        "__format__",
        "__reduce__",
        "__getstate__",
        "__setstate__",
    )
)
"""The special methods of an object that no operator or statement of a program calls."""
_CONTAINERS = (
    torch.nn.Sequential,
    torch.nn.ModuleList,
    torch.nn.ModuleDict,
    torch.nn.ParameterList,
    torch.nn.ParameterDict,
)


@dataclass(frozen=True, eq=False)
class _Referent:
    """What a weak reference refers to, by number: a read does not keep it alive."""

    reference: ReferenceType[Any]

    @property
    def number(self) -> int:
        return id(self.reference())


class Container:
    """The items of a list or dictionary of a class of the user's, of which there may be no copy."""

    def __init__(self, of: Any) -> None:
        self._of = of
        self._kind: Any = next(kind for kind in _WHOLES if isinstance(of, kind))

    @property
    def items(self) -> tuple[Any, ...]:
        return tuple(
            self._kind.items(self._of)
            if issubclass(self._kind, dict)
            else self._kind.__iter__(self._of)
        )

    @items.setter
    def items(self, before: tuple[Any, ...]) -> None:
        self._kind.clear(self._of)
        (self._kind.extend if issubclass(self._kind, (list, deque)) else self._kind.update)(
            self._of, before
        )


def reads_of(
    f: Any, args: Sequence[Any], kwargs: Mapping[str, Any], modules: Sequence[torch.nn.Module]
) -> list[Read]:
    """What the call ``f(*args, **kwargs)`` reads. ``modules``: those whose ``training`` flags are
    known to be the same."""
    reader = _Reader(modules)
    reader.reach(f)
    for x in (*args, *kwargs.values()):
        if isinstance(x, torch.nn.Module):
            reader.reach(x)
        reader.hand_on(x)
    while isinstance(f, functools.partial):
        f, args, kwargs = f.func, (*f.args, *args), {**f.keywords, **kwargs}
    if isinstance(f, MethodType):
        f, args = f.__func__, (f.__self__, *args)
    if isinstance(f, FunctionType):
        names = dict(
            zip(f.__code__.co_varnames[: f.__code__.co_argcount], args, strict=False)
        ) | dict(kwargs)
        # which a call makes anew
        reader.scan(
            f, {name: x for name, x in names.items() if not isinstance(x, (list, tuple, dict))}
        )
    reader.follow_arguments()
    return [*reader.found.values(), *reader.tensors.values()]


def tensors_read(
    tensors: Sequence[torch.Tensor], f: Any, modules: Sequence[torch.nn.Module]
) -> list[Read]:
    """Where ``f`` finds those of ``tensors`` that have a name: in its modules, its
    closure or its globals."""
    wanted = {id(t) for t in tensors}
    found: list[Read] = []
    for names in (names for m in modules for names in (m._parameters, m._buffers, vars(m))):
        found += [Read(names, name, v) for name, v in names.items() if id(v) in wanted]
    for x in at_hand(f, 3):
        if isinstance(x, FunctionType):
            cells = [(c, look_up(c, None)) for c in x.__closure__ or ()]
            found += [Read(c, None, t) for c, t in cells if id(t) in wanted]
            names = x.__globals__
            found += [
                Read(names, n, names[n]) for n in x.__code__.co_names if id(names.get(n)) in wanted
            ]
    return found


class _Reader:
    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self.flags_known = {id(vars(m)) for m in modules}
        self.classes: dict[type, Mapping[str, Any]] = {}
        self.slots: dict[int, Slots] = {}
        self.found: dict[tuple[int, Any], Read] = {}
        self.tensors: dict[int, Read] = {}  # by id of a tensor, what it says of itself
        self.seen: set[tuple[Any, ...]] = set()
        self.reached: set[int] = set()
        self.warned: dict[int, Any] = {}  # by id
        self.guessing = False  # whether what is read from now on may be more than the program reads
        self.handed: dict[int, Any] = {}  # objects that a function may get as an argument
        # what functions read of arguments that are not known
        self.unbound: dict[tuple[tuple[Step, Any], ...], bool] = {}
        # so that no id in `reached` and `seen` is given to another object
        self.held: list[Any] = []

    def reach(self, x: Any) -> None:
        """Read what ``x`` reads if the program calls it."""
        self.held.append(x)
        if isinstance(x, torch.Tensor):
            self._note_facts(x)
        elif isinstance(x, functools.partial):
            for part in (x.func, *x.args, *x.keywords.values()):
                self.reach(part)
                self._follow(part, (), True)
        elif isinstance(x, MethodType):
            if isinstance(x.__func__, FunctionType):
                self._scan_method(x.__func__, x.__self__)
        elif isinstance(x, FunctionType):
            self.scan(x, {})
            wrapped = getattr(x, "__wrapped__", None)
            if wrapped is not None:
                self.reach(wrapped)
        elif (
            isinstance(x, torch.nn.Module)
            and not isinstance(x, fx.GraphModule)
            and id(x) not in self.reached
        ):
            self.reached.add(id(x))
            forward: Any = getattr(x, "forward", None)
            if forward is not None:
                self.reach(forward)
                self._defined(type(x), "forward")
            self._note(vars(x), "forward", vars(x).get("forward", MISSING))
            for hooks in (*(vars(x)[name] for name in _HOOKS if name in vars(x)), *_HOOKS_OF_ALL):
                self._read_whole(hooks)
            if isinstance(x, _CONTAINERS):  # which find their children by loops over themselves
                for items in (x._modules, vars(x).get("_keys", x._modules)):
                    self._read_whole(items)
                self._read(vars(x), "_size")  # of a list of parameters

    def _scan_method(self, f: FunctionType, owner: Any) -> None:
        names = f.__code__.co_varnames[: min(1, f.__code__.co_argcount)]
        self.scan(f, dict.fromkeys(names, owner), of_module=isinstance(owner, torch.nn.Module))

    def scan(self, f: FunctionType, arguments: Mapping[str, Any], of_module: bool = False) -> None:
        """Follow the paths of ``f``, whose ``arguments`` are known as far as named. Of torch's
        functions only the methods of modules."""
        code = f.__code__
        key = code, *(id(x) for x in arguments.values())
        if key in self.seen or not (is_of_user(code.co_filename) or of_module):
            return
        self.seen.add(key)
        self.held += arguments.values()
        cells = dict(zip(code.co_freevars, f.__closure__ or (), strict=True))
        values = f.__defaults__ or ()
        defaults = dict(
            zip(
                code.co_varnames[code.co_argcount - len(values) : code.co_argcount],
                values,
                strict=True,
            )
        )
        defaults |= f.__kwdefaults__ or {}
        self._note_defaults(f)
        users = is_of_user(code.co_filename)
        for path in paths_of(code):
            if len(self.found) >= _LIMIT:
                return
            if path.root is Root.GLOBAL:
                found = (
                    self._read(f.__globals__, path.name)
                    if users and path.name in f.__globals__
                    else None
                )
            elif path.name in cells:
                found = self._read(cells[path.name], None)
            elif path.root is Root.LOCAL and path.name in arguments:
                found = arguments[path.name]
            else:
                self.unbound[path.steps] = path.ends or self.unbound.get(path.steps, False)
                found = defaults.get(path.name)
            self._follow(found, path.steps, path.ends)

    def _note_defaults(self, f: FunctionType) -> None:
        owner = self.slots.setdefault(id(f), Slots(f))
        if f.__defaults__:
            self._note(owner, "__defaults__", f.__defaults__)
        if f.__kwdefaults__:
            self._note(owner, "__kwdefaults__", f.__kwdefaults__)
            self._read_whole(f.__kwdefaults__)

    def _follow(self, found: Any, steps: Sequence[tuple[Step, Any]], ends: bool) -> None:
        if isinstance(found, torch.Tensor):  # a default of an argument
            self._note_facts(found)
        for step, name in steps:
            found = self._step(found, step, name)
        if ends and isinstance(found, (tuple, *_WHOLES)):
            self._read_whole(found)
            self.handed[id(found)] = found
        if ends and type(found) not in _WHOLES:
            self.hand_on(found)

    def hand_on(self, x: Any) -> None:
        """Note that the program uses ``x`` as a whole: calls it, or loops over it. It may be an
        argument of a function that it calls."""
        if (
            isinstance(x, (torch.Tensor, FunctionType, MethodType, ModuleType, type, *SIMPLE))
            or id(x) in self.handed
        ):
            return
        if isinstance(x, (np.ndarray, ReferenceType, *_MAPPINGS)):
            self._read_through(x)
            if isinstance(x, _MAPPINGS):
                self.handed[id(x)] = x
            return
        if attributes_of(x) is None and not hasattr(type(x), "__slots__"):
            return
        self.handed[id(x)] = x
        for kind in type(x).__mro__:
            for name, f in vars(kind).items():
                special = name.startswith("__") and name.endswith("__") and name not in _UNASKED
                if special and isinstance(f, FunctionType) and is_of_user(f.__code__.co_filename):
                    self._defined(type(x), name)
                    self._scan_method(f, x)

    def _read_through(self, x: Any) -> None:
        """Note the elements of an array, or what a weak reference or a mapping refers to."""
        if isinstance(x, np.ndarray):
            if x.nbytes <= _LARGE:
                self._note(x, WHOLE, x.copy())
            else:
                self._warn(x, f"a NumPy array of {x.nbytes} bytes, whose elements")
        elif isinstance(x, ReferenceType):
            target = x()
            self._note(self.slots.setdefault(id(x), Slots(_Referent(x))), "number", id(target))
            self.reach(target)
            self.hand_on(target)
        elif isinstance(x, (ChainMap, UserDict)):
            if isinstance(x, ChainMap):
                self._note(x.maps, WHOLE, list(x.maps))
            for items in x.maps if isinstance(x, ChainMap) else (x.data,):
                (self._read_whole if isinstance(items, dict) else self.hand_on)(items)

    def follow_arguments(self) -> None:
        """Read of each object that is handed on what any function reads of an argument. That may be
        more than the program reads."""
        done: set[tuple[int, Any]] = set()
        self.guessing = True
        while len(self.found) < _LIMIT:
            pairs = [
                (x, steps)
                for x in self.handed.values()
                for steps in self.unbound
                if steps and (id(x), steps) not in done
            ]
            if not pairs:
                break
            for x, steps in pairs:
                done.add((id(x), steps))
                self._follow(x, steps, self.unbound[steps])
        names = {name for (step, name), *_ in filter(None, self.unbound) if step is not Step.ITEM}
        # which steps of training change, also where it is not asked for
        for name in names & (OF_MEMORY.keys() - {"_version"}):
            for read in self.tensors.values():
                self._note_memory(read.owner, name)

    def _step(self, owner: Any, step: Step, name: Any) -> Any:
        """What ``owner`` has under ``name``, noted if a dictionary or list holds it. None if there
        is nothing, or nothing to follow. Nothing is called to find it."""
        if step is Step.ITEM:
            if (
                type(owner) in (list, tuple, deque)
                and isinstance(name, int)
                and -len(owner) <= name < len(owner)
            ):
                return self._read(owner, name)
            if isinstance(owner, (dict, *_MAPPINGS)) and name in owner:
                return self._read(owner, name)
            if isinstance(owner, (dict, *_MAPPINGS)):
                self._note(owner, name, MISSING)
            self.hand_on(owner)
            return None
        if isinstance(owner, ContextVar) and name == "get":
            self._note(owner, name, owner.get(MISSING))
            try:
                value = owner.get()
            except LookupError:
                return None
            self.reach(value)
            self.hand_on(value)
            return None
        if isinstance(owner, np.ndarray):
            if name not in _OF_SHAPES:
                self._read_through(owner)
            return None
        if isinstance(owner, (ChainMap, UserDict, *_WHOLES)) and name in _ASKING:
            (self._read_whole if isinstance(owner, _WHOLES) else self._read_through)(owner)
            return None
        if isinstance(owner, torch.Tensor) and name in OF_MEMORY:
            self._note_memory(owner, name)
        if isinstance(owner, (torch.Tensor, *SIMPLE)):
            return None
        if isinstance(owner, ModuleType):  # of Python: its functions are not the program's state
            users = is_of_user(getattr(owner, "__file__", None) or "<built in>")
            return self._read(vars(owner), name) if users else vars(owner).get(name)
        own = attributes_of(owner) or {}
        places = (
            (own, own.get("_parameters"), own.get("_buffers"), own.get("_modules"))
            if isinstance(owner, torch.nn.Module)
            else (own,)
        )
        for names in places:
            if (
                isinstance(names, Mapping)
                and name in names
                and not isinstance(names[name], (staticmethod, classmethod))
            ):
                return self._read(
                    self.classes.setdefault(owner, names) if isinstance(owner, type) else names,
                    name,
                )
        for names in places if step is Step.NAMED else ():
            if isinstance(names, dict):  # the namespace of a class is none
                self._note(names, name, MISSING)
        if isinstance(owner, dict) and name in owner and hasattr(type(owner), "__getattr__"):
            return self._read(owner, name)
        return self._of_class(owner, name)

    def _of_class(self, owner: Any, name: str) -> Any:
        kind = owner if isinstance(owner, type) else type(owner)
        defining = next((c for c in kind.__mro__ if name in vars(c)), None)
        if defining is None:
            return None
        value = vars(defining)[name]
        if isinstance(value, (FunctionType, property, staticmethod, classmethod)):
            self._defined(kind, name)
        if isinstance(value, MemberDescriptorType) and not isinstance(owner, type):
            return self._read(self.slots.setdefault(id(owner), Slots(owner)), name)
        if isinstance(value, property):
            if isinstance(value.fget, FunctionType):
                self._scan_method(value.fget, owner)
            return None
        if isinstance(value, FunctionType):
            if isinstance(owner, type):
                self.scan(value, {})
            else:
                self._overridden(owner, name)
                self._scan_method(value, owner)
                self._read_attributes(value, owner)
            return None
        if isinstance(value, (staticmethod, classmethod)):
            if isinstance(value.__func__, FunctionType) and isinstance(value, classmethod):
                self._scan_method(value.__func__, kind)
            elif isinstance(value.__func__, FunctionType):
                self.scan(value.__func__, {})
            return None
        if hasattr(type(value), "__get__"):
            return None
        if not isinstance(owner, type):
            self._overridden(owner, name)
        for c in itertools.takewhile(lambda c: c is not defining, kind.__mro__):
            self._note(self.classes.setdefault(c, vars(c)), name, MISSING)
        return self._read(self.classes.setdefault(defining, vars(defining)), name)

    def _defined(self, kind: type, name: str) -> None:
        """Note which function ``name`` of the class ``kind`` is. Not of Python's and torch's own
        classes, but for a ``forward``."""
        for c in kind.__mro__:
            if c.__module__.startswith(("torch.", "builtins")) and name != "forward":
                return
            value = vars(c).get(name, MISSING)
            self._note(self.classes.setdefault(c, vars(c)), name, value)
            if value is not MISSING:
                return

    def _read_attributes(self, f: FunctionType, owner: Any) -> None:
        """Note the numbers and tensors of an object of torch's, such as a gradient scaler or a
        distribution, whose method ``f`` the program calls. The code of the method is not looked
        through. A step of a scheduler changes what it reads, and is refused elsewhere."""
        if isinstance(owner, torch.optim.lr_scheduler.LRScheduler) and f.__name__ == "step":
            return
        if (
            is_of_user(f.__code__.co_filename)
            or isinstance(owner, (torch.nn.Module, torch.optim.Optimizer, type))
            or (own := attributes_of(owner)) is None
        ):
            return
        for name, value in own.items():
            flat = (
                all(isinstance(x, SIMPLE) for x in value) if type(value) in (list, tuple) else False
            )
            if flat or isinstance(value, (*SIMPLE, torch.Tensor)):
                self._note(own, name, value)
            if flat and type(value) is list:
                self._read_whole(value)

    def _overridden(self, owner: Any, name: str) -> None:
        """Note that ``owner`` has no attribute ``name`` of its own, which would come before
        that of its class."""
        own = attributes_of(owner)
        if own is not None:
            self._note(own, name, MISSING)

    def _read(self, owner: Any, name: Any) -> Any:
        value = look_up(owner, name)
        if value is MISSING:
            return None
        if (id(owner), name) not in self.found:
            self._note(owner, name, value)
        self.reach(value)
        return value

    def _read_whole(self, items: Any) -> None:
        """Note a list or dictionary with all its items, and reach these. One of many items
        only if it is data."""
        values = list(items.values()) if isinstance(items, dict) else list(items)
        if len(items) > MANY and not any(isinstance(value, torch.nn.Module) for value in values):
            if not self._is_data(items, values):
                return
            if len(items) > _MOST:
                self._warn(items, f"a {type(items).__name__} of {len(items)} items, which")
                return
        if type(items) in _WHOLES:
            self._note(items, WHOLE, copy.copy(items))
        elif not isinstance(items, tuple):  # a copy need not be of that class
            owner = self.slots.setdefault(id(items), Slots(Container(items)))
            self._note(owner, "items", owner.of.items)
        for value in values:
            self.reach(value)
            # the copy holds the same object, whatever is in it
            if isinstance(value, (tuple, *_WHOLES)) and id(value) not in self.reached:
                self.reached.add(id(value))
                self._read_whole(value)
            self.hand_on(value)

    def _is_data(self, items: Any, values: Sequence[Any]) -> bool:
        """Whether a container holds no functions and objects: a registry of these is much more than
        the program reads. Where it is not sure that the program reads it: whether it is a list of
        numbers or tensors, and no table of names either."""
        if not self.guessing:
            return all(
                isinstance(value, (*SIMPLE, torch.Tensor, tuple, *_WHOLES)) for value in values
            )
        return type(items) in (list, deque) and all(
            isinstance(value, (int, float, complex, torch.Tensor)) for value in values
        )

    def _warn(self, x: Any, what: str) -> None:
        """Warn once of ``x``, which is too large to be compared by each call."""
        if id(x) not in self.warned:
            self.warned[id(x)] = x
            warnings.warn(
                f"the program may read {what} a call does not compare. Pass it as a tensor.",
                UserWarning,
                stacklevel=2,
            )

    def _note_facts(self, t: torch.Tensor) -> None:
        """Note what ``t`` says of itself. The program may ask it without a call that the
        graph would have."""
        if id(t) not in self.tensors and not (isinstance(t, Value) and t._level.number > 0):
            self.tensors[id(t)] = Read(t, FACTS, facts(t))

    def _note_memory(self, t: torch.Tensor, name: str) -> None:
        if (
            t.layout is torch.strided
            and type(unwrap(t)) in (torch.Tensor, torch.nn.Parameter)
            and not t.is_inference()
        ):
            self._note(t, name, look_up(t, name))

    def _note(self, owner: Any, name: Any, value: Any) -> None:
        if not isinstance(value, (ModuleType, type)) and not (
            name == "training" and id(owner) in self.flags_known
        ):
            self.found[id(owner), name] = Read(owner, name, value)
