"""What a graph takes for the same, and how the parts of an object are found without a call of the
user's code."""

from __future__ import annotations

import dataclasses
import decimal
import operator
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from types import CellType, FunctionType, MemberDescriptorType, MethodType
from typing import Any
from weakref import KeyedRef, WeakKeyDictionary, ref

import numpy as np
import torch

MISSING: Any = object()
SIMPLE = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    range,
    slice,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
"""Classes of constants: no object of them changes, and equal ones are the same."""
module_of: Callable[[type], Any] = type.__dict__["__module__"].__get__
"""The ``__module__`` of a class, without its metaclass."""
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
"""Classes of tensors whose facts, the class among them, a call compares in C."""


def _scalars_of(kind: type) -> list[type]:
    """Return a class of NumPy's scalars and all below it. Each has a comparison of its own."""
    heirs: list[type] = kind.__subclasses__()
    return [kind, *(cls for heir in heirs for cls in _scalars_of(heir))]


def _same_text(a: object, b: object) -> bool:
    """Compare numbers of which equal ones may differ: 0.0 and -0.0, 1.0 and 1.00."""
    return repr(a) == repr(b)


def _same_bounds(a: Any, b: Any) -> bool:
    return same(a.start, b.start) and same(a.stop, b.stop) and same(a.step, b.step)


def _same_bytes(a: Any, b: Any) -> bool:
    return bool(a.dtype == b.dtype and a.tobytes() == b.tobytes())


def _same_method(a: MethodType, b: MethodType) -> bool:
    return a.__self__ is b.__self__ and a.__func__ is b.__func__


def _same_set(a: frozenset[object], b: frozenset[object]) -> bool:
    return len(a) == len(b) and marks_of(a) == marks_of(b)


def _same_reference(a: ref[Any], b: ref[Any]) -> bool:
    """Compare weak references. Each has a callback of its own, so equal ones may be two objects."""
    x = referent_of(a)
    if x is None or x is not referent_of(b) or a.__callback__ is not b.__callback__:
        return False
    return type(a) is not KeyedRef or same(a.key, b.key)  # type: ignore[attr-defined]


# how two objects of one class are compared, by the class; those of others are different
_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    **dict.fromkeys(SIMPLE, operator.eq),
    **dict.fromkeys((float, complex, decimal.Decimal), _same_text),
    **dict.fromkeys((slice, range), _same_bounds),
    **dict.fromkeys(_scalars_of(np.generic), _same_bytes),
    MethodType: _same_method,
    frozenset: _same_set,
    **dict.fromkeys((ref, KeyedRef), _same_reference),
}


def same(a: Any, b: Any) -> bool:
    """Return whether two values are the same for a graph: one object, or equal constants of one
    class."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    compare = _COMPARISONS.get(kind)
    if compare is not None:
        return compare(a, b)
    # by the methods of `tuple`, since a class of the user's may have its own
    if not issubclass(kind, tuple) or tuple.__len__(a) != tuple.__len__(b):
        return False
    return all(map(same, tuple.__iter__(a), tuple.__iter__(b)))


def are_identical(now: Collection[object], before: Collection[object]) -> bool:
    """Return whether two collections have one and the same objects, in one order. As most are, and
    C alone compares these."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


def shown(label: object) -> str:
    """Return a name or key in a message. To show an object of the user's would run the user's
    code."""
    return f"{label!r:.40}" if type(label) in SIMPLE else f"a {type(label).__name__}"


def marks_of(items: Iterable[object]) -> frozenset[Any]:
    """Return what tells the items of a set apart, without their own ``__eq__``: ``1``, ``1.0`` and
    ``True`` are different."""
    return frozenset((type(x), repr(x) if type(x) in SIMPLE else id(x)) for x in items)


def attributes_of(x: object) -> dict[str, Any] | None:
    """Return the dictionary of an object, or None. No ``__getattr__`` of the user's is called."""
    try:
        # a ``threading.local`` has one for each thread
        of_thread = issubclass(type(x), threading.local)
        found = vars(x) if of_thread else object.__getattribute__(x, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def referent_of(reference: ref[Any]) -> Any:
    """Return the object of a weak reference; None if it is gone. That of a ``WeakMethod``, which
    makes a method anew at each call, is the object of the method."""
    return ref.__call__(reference)


def slots_of(kind: type) -> tuple[MemberDescriptorType, ...]:
    """Return the descriptors of the ``__slots__`` of a class and of those that it inherits from."""
    found = _SLOTS.get(kind)
    if found is None:
        found = _SLOTS[kind] = _find_slots(kind)
    return found


# the slots of classes, those that they inherit included
_SLOTS: WeakKeyDictionary[type, tuple[MemberDescriptorType, ...]] = WeakKeyDictionary()


def _find_slots(kind: type) -> tuple[MemberDescriptorType, ...]:
    return tuple(
        member
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for member in vars(base).values()
        if isinstance(member, MemberDescriptorType)
    )


def look_into(cell: CellType) -> Any:
    """Return what a variable of a function around has, or ``MISSING``."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def parts_of_function(function: FunctionType) -> list[object]:
    """Return what a function holds that its calls share: variables of closures, and defaults."""
    held = [*map(look_into, function.__closure__ or ())]
    held += function.__defaults__ or ()
    return [*held, *(function.__kwdefaults__ or {}).values()]


def containers_in(value: Any) -> Iterator[object]:
    """Return the containers that ``value`` is and holds, but tuples, which are as good as equal
    ones."""
    pending = [value]
    while pending:
        part = pending.pop()
        if type(part) in CONTAINERS_OF_TREES:
            pending += part.values() if isinstance(part, dict) else part
            if type(part) is not tuple:
                yield part


def slot_value(slot: MemberDescriptorType, x: object) -> Any:
    """Return what ``x`` has in a slot, or ``MISSING``."""
    try:
        return slot.__get__(x)
    except AttributeError:
        return MISSING


def tensors_in(values: Iterable[object]) -> list[torch.Tensor]:
    """Return the tensors among ``values`` and in their tuples and frozen sets, at any depth."""
    found: list[torch.Tensor] = []
    pending: list[Any] = list(values)
    while pending:
        x = pending.pop()
        kind = type(x)  # `isinstance` may ask the object for its class, which runs code of its own
        if issubclass(kind, torch.Tensor):
            found.append(x)
        elif issubclass(kind, (tuple, frozenset)):
            pending += x
    return found


CONTAINERS_OF_TREES = frozenset((list, dict, tuple, defaultdict, OrderedDict, deque))
"""The classes of containers that a call takes apart, in arguments, results and state."""


def is_tree(x: Any) -> bool:
    """Return whether ``x`` is no container of Python's, or object of a data class, that holds
    itself."""
    around: set[int] = set()
    done: set[int] = set()
    # depth first without recursion: a second entry says that all inside of `y` is done
    pending = [(x, False)]
    while pending:
        y, ends = pending.pop()
        if ends:
            around.remove(id(y))
            done.add(id(y))
            continue
        inside = _items_of(y)
        if inside is None or id(y) in done:
            continue
        if id(y) in around:
            return False
        around.add(id(y))
        pending += [(y, True), *((z, False) for z in inside)]
    return True


def _items_of(x: Any) -> Iterable[object] | None:
    """Return what a container or an object of a data class holds; None for anything else."""
    if type(x) in CONTAINERS_OF_TREES:
        return x.values() if isinstance(x, dict) else x
    if dataclasses.is_dataclass(type(x)):
        return (attributes_of(x) or {}).values()
    return None
