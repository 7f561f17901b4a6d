"""What a program has found in Python's state, each with the question whether it is still there.
What it finds is known from :mod:`.reader`."""

from __future__ import annotations

import itertools
import operator
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from ...seam.memory_gate import elements_of
from ...session.tensor import unwrap

MISSING: Any = object()
WHOLE: Any = object()
FACTS: Any = object()
ELEMENTS: Any = object()
_EMPTY = CellType()
SIMPLE = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
MANY = 32  # items of a container from which on it is compared by the identity of its items first
# of a defaultdict, which may be called
_FACTORIES: tuple[Any, ...] = (int, float, complex, bool, str, list, dict, set, tuple)


@dataclass(frozen=True, eq=False)
class Slots:
    """Stands for the dictionary of an object whose class has ``__slots__``."""

    of: Any


@dataclass(frozen=True, eq=False)
class Read:
    """Where a program finds an object: as item ``name`` of a dictionary or list, or in a
    cell. With the name ``WHOLE`` it is the list or dictionary with all its items. ``value``:
    what it has found.

    With the name ``FACTS`` the owner is a tensor, and ``value`` is what it says of itself; with
    ``ELEMENTS`` its elements; with a name of ``OF_MEMORY`` where it is."""

    owner: Any
    name: Any
    value: Any

    def current(self) -> Any:
        """What is there now."""
        return look_up(self.owner, self.name)

    def holds(self) -> bool:
        return same(self.current(), self.value)

    def condition(self, constant: Callable[[Any], str]) -> str:
        """Python source of the question whether the same is still there. ``constant``: a
        name for an object."""
        if self.name is FACTS:
            return f"{constant(facts)}({constant(self.owner)}) == {constant(self.value)}"
        if self.name is ELEMENTS:
            return f"{constant(_elements)}({constant(self.owner)}) == {constant(self.value)}"
        if self.name is WHOLE and not isinstance(self.value, np.ndarray) and not self.value:
            return f"not {constant(self.owner)}"
        if self.name is WHOLE and not isinstance(self.value, np.ndarray) and len(self.value) > MANY:
            return f"{constant(_long_same)}({constant(self.owner)}, {constant(self.value)})"
        if self.name is WHOLE:
            now = constant(self.owner)
        elif isinstance(self.owner, CellType):
            # an empty cell raises an error if it is asked, and none if it is compared
            # with another one
            owner = constant(self.owner)
            now = (
                f"({owner}.cell_contents if {owner} != {constant(_EMPTY)} else {constant(MISSING)})"
            )
        elif isinstance(self.owner, Slots) and isinstance(self.owner.of, FunctionType):
            now = f"{constant(self.owner.of)}.{self.name}"
        elif isinstance(self.owner, Mapping):
            key = repr(self.name) if type(self.name) is str else constant(self.name)
            now = f"{constant(self.owner)}.get({key}, {constant(MISSING)})"
        else:
            now = f"{constant(look_up)}({constant(self.owner)}, {self.name!r})"
        value = constant(self.value)
        if (
            self.name is WHOLE
            and type(self.value) is list
            and not any(isinstance(x, (*SIMPLE, tuple, list, dict)) for x in self.value)
        ):
            return (
                f"len({now}) == {len(self.value)} "
                f"and all(map({constant(operator.is_)}, {now}, {value}))"
            )
        compared = self.name is WHOLE or isinstance(self.value, (*SIMPLE, tuple))
        return (
            f"({now} is {value} or {constant(same)}({now}, {value}))"
            if compared
            else f"{now} is {value}"
        )

    def __str__(self) -> str:
        if self.name is FACTS:
            return f"what a {type(self.owner).__name__} says of itself"
        if self.name is ELEMENTS:
            return f"the elements of a {type(self.owner).__name__}"
        name = (
            " items"
            if self.name is WHOLE
            else f" {type(self.name).__name__}"
            if isinstance(self.name, torch.Tensor)
            else f" {self.name!r}"
        )
        kind = type(self.owner.of if isinstance(self.owner, Slots) else self.owner).__name__
        return (
            f"the{name} of a {kind}"
            if not isinstance(self.owner, CellType)
            else "a variable of a function around"
        )


class Facts(NamedTuple):
    """What a tensor says of itself. ``sizes``: with the strides."""

    requires_grad: bool
    is_leaf: bool
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    sizes: tuple[Any, ...]

    def __str__(self) -> str:
        sizes = f"{list(self.sizes[0])}" if self.sizes else ""
        return (
            f"{self.dtype}{sizes}{' that requires grad' if self.requires_grad else ''}"
        ).removeprefix("torch.")


def facts(t: torch.Tensor) -> Facts:
    if is_lazy(t):
        raise RuntimeError(
            "a parameter or buffer of a lazy module, such as nn.LazyLinear, has no sizes yet. "
            "The first call of the module makes it, in place. "
            "Call the module once before the program is captured."
        )
    sizes = (
        () if t.is_nested else (tuple(t.shape), t.stride() if t.layout is torch.strided else None)
    )
    return Facts(t.requires_grad, t.is_leaf, t.dtype, t.device, t.layout, sizes)


OF_MEMORY: dict[str, Callable[[Any], Any]] = {
    "data_ptr": lambda t: unwrap(t).data_ptr(),
    "storage_offset": lambda t: unwrap(t).storage_offset(),
    "_version": lambda t: t._version,
}
"""What the elements or the place of a tensor change, by the name that a program asks for."""


def _elements(t: torch.Tensor) -> bytes:
    return elements_of(unwrap(t))


_OF_TENSORS: dict[Any, Callable[[Any], Any]] = {FACTS: facts, ELEMENTS: _elements}


def same(a: Any, b: Any) -> bool:
    """Whether two objects are the same for a graph: one object, or numbers of one
    type that are equal."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        alike = a.dtype == b.dtype and a.shape == b.shape
        return alike and (
            same([*a.flat], [*b.flat]) if a.dtype == object else a.tobytes() == b.tobytes()
        )
    if isinstance(a, (tuple, list, deque)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(same, a.values(), b.values()))
    if isinstance(a, (set, frozenset)):
        return bool(a == b)
    if isinstance(a, (float, complex)):
        return repr(a) == repr(b)  # 0.0 and -0.0 are equal, and a NaN is not
    return isinstance(a, SIMPLE) and bool(a == b)


def _long_same(a: Any, b: Any) -> bool:
    """As :func:`same`, of two long containers of one class. Most often they hold the same objects,
    which takes 20 ns for each."""
    if len(a) != len(b):
        return False
    if isinstance(a, (set, frozenset)):
        return bool(a == b)
    identical = all(map(operator.is_, a, b)) and (
        not isinstance(a, dict) or all(map(operator.is_, a.values(), b.values()))
    )
    return identical or same(a, b)


def look_up(owner: Any, name: Any) -> Any:
    if name is WHOLE:
        return owner
    if isinstance(owner, torch.Tensor):
        return _OF_TENSORS[name](owner) if name in _OF_TENSORS else OF_MEMORY[name](owner)
    if isinstance(owner, CellType):
        try:
            return owner.cell_contents
        except ValueError:
            return MISSING
    if isinstance(owner, Mapping):
        return owner.get(name, MISSING)
    if isinstance(owner, ContextVar):
        return owner.get(MISSING)
    if isinstance(owner, Slots):
        return getattr(owner.of, name, MISSING)
    return owner[name] if -len(owner) <= name < len(owner) else MISSING


def asked_for(
    reads: Sequence[Read], known: Iterable[torch.Tensor], carried: frozenset[tuple[int, Any]]
) -> list[Read]:
    """Those of ``reads`` that a call asks for: none of ``carried``, and nothing that a tensor says
    of itself which is ``known``, or which is found at a place of ``carried``."""
    others = [read for read in reads if (id(read.owner), read.name) not in carried]
    gone = {id(read.value) for read in reads if (id(read.owner), read.name) in carried} | {
        id(t) for t in known
    }
    return [read for read in others if read.name is not FACTS or id(read.owner) not in gone]


def generators_in(reads: Iterable[Read]) -> list[torch.Generator]:
    """The random generators that a program has found, also as items of a container."""
    found: list[Any] = []
    for value in (read.value for read in reads):
        if isinstance(value, dict):
            found += value.values()
        elif isinstance(value, (tuple, list, set, frozenset, deque)):
            found += value
        else:
            found.append(value)
    return [x for x in found if isinstance(x, torch.Generator)]


def once(reads: Iterable[Read]) -> list[Read]:
    """``reads``, of each place one."""
    return list({(id(r.owner), r.name): r for r in reads}.values())


def unchanged(reads: Sequence[Read]) -> list[Read]:
    """Those of ``reads`` that the program has not changed while it was captured. A warning
    tells of the others."""
    reads = [_filled(read) for read in reads]
    holding = [read.holds() for read in reads]
    changed = dict.fromkeys(
        str(read) for read, holds in zip(reads, holding, strict=True) if not holds
    )
    if changed:
        warnings.warn(
            (
                f"the program reads and changes {', '.join(changed)}. A compiled program changes "
                "it when it is captured, and in no later call, and its graph keeps what it has "
                "found then. Do that outside of it, or hold the number in a tensor."
            ),
            UserWarning,
            stacklevel=2,
        )
    return list(itertools.compress(reads, holding))


def _filled(read: Read) -> Read:
    """``read``, or that of what a defaultdict has made for a key that was not there."""
    owner = read.owner
    make = (
        owner.default_factory
        if isinstance(owner, defaultdict) and read.value is MISSING and read.name in owner
        else None
    )
    if make is None or make not in _FACTORIES or not same(owner[read.name], make()):
        return read
    return Read(owner, read.name, owner[read.name])
