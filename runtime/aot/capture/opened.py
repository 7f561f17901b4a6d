"""Arguments and results in objects of data classes, whose attributes are arguments and results
like the items of a dictionary.

    @dataclass
    class State:
        position: Tensor
        step: float

    f(State(x, 0.1))        # the program takes x and 0.1

``torch.utils._pytree`` takes an object of such a class for one leaf, unless its
class is registered. All that the object has counts, not only fields: ``__post_init__``, a cached
property and the user's code may give it further attributes.
"""

from __future__ import annotations

import dataclasses
import operator
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from ...seam.levels import Value
from ...torch_private.pytrees import pytree
from ...trace.symbol_values import KINDS
from ..python_state.values import MISSING, attributes_of, slot_value, slots_of


@dataclasses.dataclass
class _Opened:
    """An object of a data class, as a node of a tree."""

    kind: type
    attributes: dict[str, Any]


class Context(NamedTuple):
    """What a tree says of an object of a data class: the class, and the names of attributes."""

    kind: type
    names: tuple[str, ...]


def _taken_apart(x: _Opened) -> tuple[list[object], Context]:
    return list(x.attributes.values()), Context(x.kind, tuple(x.attributes))


def _made(values: Sequence[object], context: Context) -> Any:
    made: Any = object.__new__(context.kind)  # without __init__, which may compute
    set_contents(made, dict(zip(context.names, values, strict=True)))
    return made


pytree.register_pytree_node(_Opened, _taken_apart, _made)  # type: ignore[arg-type]


class _Sizes:
    """``torch.Size``, as a node of a tree. Torch's own is put together again as a tuple."""


def _parts_of_sizes(value: Any) -> tuple[list[object], None]:
    return list(value), None


def _made_sizes(values: Sequence[Any], context: None) -> object:
    found = tuple(values)
    if all(isinstance(x, (int, torch.SymInt)) for x in found):
        return torch.Size(found)
    return found


pytree.register_pytree_node(_Sizes, _parts_of_sizes, _made_sizes)  # type: ignore[arg-type]


def _open(x: object) -> object:
    if not is_object(x):
        return x
    return _Opened(type(x), {name: opened(value) for name, value in contents(x).items()})


# classes whose objects have more than attributes, or are found in another way
_HOLD_MORE = (
    torch.nn.Module,
    torch.Tensor,
    BaseException,
    *(dict, list, tuple, set, frozenset, deque, str, bytes, int, float, complex),
)


def is_object(value: object) -> bool:
    """Return whether ``value`` is an object of a data class, which is taken apart."""
    # of its class alone, as each leaf of each call is asked
    return hasattr(type(value), "__dataclass_fields__") and not isinstance(value, _HOLD_MORE)


def contents(x: object) -> dict[str, Any]:
    """Return the attributes that an object has itself, found without code of its class."""
    found = dict(attributes_of(x) or ())
    for slot in slots_of(type(x)):
        value = slot_value(slot, x)
        if value is not MISSING:
            found[slot.__name__] = value
    return found


def set_contents(x: object, attributes: dict[str, Any]) -> None:
    """Let an object have these ``attributes`` and no others, without code of its class."""
    slots = slots_of(type(x))
    for slot in slots:
        if slot.__name__ in attributes:
            slot.__set__(x, attributes[slot.__name__])
        elif slot_value(slot, x) is not MISSING:
            slot.__delete__(x)
    own = attributes_of(x)
    if own is not None:
        names = {slot.__name__ for slot in slots}
        own.clear()
        own.update({name: y for name, y in attributes.items() if name not in names})


def opened(tree: object) -> Any:
    """``tree``, in which the objects of data classes are no leaves."""
    return replaced(_open, tree)


def replaced(f: Callable[[Any], object], tree: object) -> Any:
    """``tree`` with ``f`` of its leaves in place of these."""
    leaves, spec = pytree.tree_flatten(tree)
    return unflatten(map(f, leaves), spec)


def flatten(tree: object) -> tuple[list[Any], pytree.TreeSpec]:
    """Return the leaves of ``tree`` and its structure. :func:`unflatten` makes objects of data
    classes again."""
    leaves, spec = pytree.tree_flatten(tree)
    if any(map(is_object, leaves)):
        return pytree.tree_flatten(opened(tree))
    return leaves, spec


def unflatten(leaves: Iterable[object], spec: pytree.TreeSpec) -> Any:
    """Return the reverse of :func:`flatten`."""
    return pytree.tree_unflatten(leaves, with_sizes(spec))


def with_sizes(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    """``spec``, of which ``pytree.tree_unflatten`` makes a ``torch.Size`` where there was one."""
    if spec.is_leaf():
        return spec
    below = spec.children()
    made = list(map(with_sizes, below))
    if spec.type is not torch.Size and not any(map(operator.is_not, made, below)):
        return spec
    kind = _Sizes if spec.type is torch.Size else spec.type
    return pytree.TreeSpec(kind, spec.context, made)


def beside_leaves(tree: object) -> list[Any]:
    """Return what one comes to from a tree but from its leaves: the classes of its parts, keys,
    what makes the defaults of a dictionary."""
    found: list[Any] = []

    def look_at(value: object) -> bool:
        found.append(type(value))
        if is_object(value):
            pytree.tree_flatten(contents(value), is_leaf=look_at)
        if isinstance(value, dict):
            found.extend(value)
        if isinstance(value, defaultdict):
            found.append(value.default_factory)
        return False

    pytree.tree_flatten(tree, is_leaf=look_at)
    return found


def fix_keys(results: object) -> None:
    """Let no key of the dictionaries in ``results`` be a symbol. A program that takes a size or
    number as a key has asked for its value, so the graph is for it alone. ``RuntimeError`` for a
    key that is a tensor of the trace: another one would stand there after each call."""
    pytree.tree_flatten(results, is_leaf=_fix_keys_of)


def _fix_keys_of(x: object) -> bool:
    """Return whether ``x`` is not to be taken apart: never."""
    if not isinstance(x, dict):
        return False
    _refuse_tensors_as_keys(x)
    if any(type(key) in KINDS for key in x):
        items = [(_fixed(key), value) for key, value in x.items()]
        x.clear()  # in place, since the program may return the dictionary twice
        x.update(items)
    return False


def _refuse_tensors_as_keys(x: dict[object, object]) -> None:
    if any(isinstance(part, Value) for key in x for part in pytree.tree_leaves(key)):
        raise RuntimeError(
            "the program returns or leaves a dictionary with a tensor as a key, for which a graph "
            "has a stand-in. Take a name or a number for a key, or make the dictionary outside of "
            "the compiled function."
        )


def _fixed(key: object) -> object:
    """Return the value of a symbol, which becomes a guard; any other key as it is."""
    kind = KINDS.get(type(key))
    if kind is None:
        return key
    return kind(key)
