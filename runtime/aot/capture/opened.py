"""Open objects of data classes: their attributes are arguments and results, as the items of a
dictionary are.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ...seam.levels import Value
from ...torch_private.pytrees import pytree
from ...trace.symbol_values import KINDS
from ..python_state.values import MISSING, attributes_of, slot_value, slots_of


@dataclasses.dataclass
class _Opened:
    """Stand for an object of a data class, as a node of a tree."""

    kind: type
    attributes: dict[str, object]


class Context(NamedTuple):
    """Name, in the structure of a tree, a data class and the attributes of its object."""

    kind: type
    names: tuple[str, ...]


def _take_apart(x: _Opened) -> tuple[list[object], Context]:
    """Return the children of a node and its context, as a pytree node has to."""
    return list(x.attributes.values()), Context(x.kind, tuple(x.attributes))


def _put_together(values: Sequence[object], context: Context) -> object:
    """Return an object with these attributes."""
    # without __init__, which may compute
    result: object = object.__new__(context.kind)
    set_contents(result, dict(zip(context.names, values, strict=True)))
    return result


pytree.register_pytree_node(_Opened, _take_apart, _put_together)  # type: ignore[arg-type]


class _Sizes:
    """Stand for ``torch.Size``, as a node of a tree.

    The node of torch itself becomes a tuple when a tree is put together.
    """


def _parts_of_sizes(value: Iterable[object]) -> tuple[list[object], None]:
    return list(value), None


def _put_sizes_together(values: Sequence[Any], context: None) -> object:
    """Return a ``torch.Size``; a tuple if not all of ``values`` are numbers."""
    sizes = tuple(values)
    if all(isinstance(size, (int, torch.SymInt)) for size in sizes):
        return torch.Size(sizes)
    return sizes


pytree.register_pytree_node(_Sizes, _parts_of_sizes, _put_sizes_together)  # type: ignore[arg-type]


def _open(x: object) -> object:
    """Return ``x`` as a node of a tree if it is an object of a data class."""
    if not is_object(x):
        return x
    return _Opened(type(x), {name: opened(value) for name, value in contents(x).items()})


# classes whose objects have more than attributes, or which a tree handles already
_HOLD_MORE = (
    torch.nn.Module,
    torch.Tensor,
    BaseException,
    *(dict, list, tuple, set, frozenset, deque, str, bytes, int, float, complex),
)


def is_object(value: object) -> bool:
    """Return whether ``value`` is an object of a data class, which is taken apart."""
    # only the class is asked, as each leaf of each call passes here
    return hasattr(type(value), "__dataclass_fields__") and not isinstance(value, _HOLD_MORE)


def contents(x: object) -> dict[str, object]:
    """Return the attributes that an object has itself, without running code of its class."""
    # a class with slots may also have a dictionary, by a class that it inherits from
    attributes = dict(attributes_of(x) or ())
    for slot in slots_of(type(x)):
        value = slot_value(slot, x)
        if value is not MISSING:
            attributes[slot.__name__] = value
    return attributes


def set_contents(x: object, attributes: Mapping[str, object]) -> None:
    """Let an object have these ``attributes`` and no others, without code of its class."""
    # each slot gets its new value, or loses the one that it has
    slots = slots_of(type(x))
    for slot in slots:
        if slot.__name__ in attributes:
            slot.__set__(x, attributes[slot.__name__])
        elif slot_value(slot, x) is not MISSING:
            slot.__delete__(x)
    # what has no slot lies in the dictionary of the object
    own = attributes_of(x)
    if own is not None:
        names = {slot.__name__ for slot in slots}
        own.clear()
        own.update({name: y for name, y in attributes.items() if name not in names})


def opened(tree: object) -> Any:
    """Return ``tree`` with the objects of data classes as nodes, not as leaves."""
    return replaced(_open, tree)


def replaced(f: Callable[[Any], object], tree: object) -> Any:
    """Return ``tree`` with ``f`` of its leaves in place of these."""
    leaves, spec = pytree.tree_flatten(tree)
    return unflatten(map(f, leaves), spec)


def flatten(tree: object) -> tuple[list[Any], pytree.TreeSpec]:
    """Return the leaves of ``tree`` and its structure.

    :func:`unflatten` builds the tree again, with its objects of data classes.
    """
    leaves, spec = pytree.tree_flatten(tree)
    if any(map(is_object, leaves)):
        return pytree.tree_flatten(opened(tree))
    return leaves, spec


def unflatten(leaves: Iterable[object], spec: pytree.TreeSpec) -> Any:
    """Build a tree of ``leaves`` and the structure that :func:`flatten` returns."""
    return pytree.tree_unflatten(leaves, with_sizes(spec))


def with_sizes(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    """Return ``spec``, changed so that ``pytree.tree_unflatten`` builds a ``torch.Size`` where one
    was."""
    if spec.is_leaf():
        return spec
    below = spec.children()
    children = list(map(with_sizes, below))
    if spec.type is not torch.Size and not any(map(operator.is_not, children, below)):
        return spec
    # torch.Size is a tuple for pytree, which would build a tuple
    kind = spec.type
    if spec.type is torch.Size:
        kind = _Sizes
    return pytree.TreeSpec(kind, spec.context, children)


def beside_leaves(tree: object) -> list[object]:
    """List the objects in a tree other than its leaves: the classes of its parts, keys, and the
    default factories of dictionaries."""
    objects: list[object] = []

    def look_at(value: object) -> bool:
        """Add what ``value`` holds. Return that it is no leaf, so that its parts come too."""
        objects.append(type(value))
        if is_object(value):
            pytree.tree_flatten(contents(value), is_leaf=look_at)
        if isinstance(value, dict):
            objects.extend(value)
        if isinstance(value, defaultdict):
            objects.append(value.default_factory)
        return False

    pytree.tree_flatten(tree, is_leaf=look_at)
    return objects


def fix_keys(results: object) -> None:
    """Replace the symbols among the keys of dictionaries in ``results`` by their values.

    A program that uses a size or a number as a key has asked for its value, so the graph is right
    for this value alone. ``RuntimeError`` for a key that is a tensor of the trace: another one
    would stand there after each call.
    """
    pytree.tree_flatten(results, is_leaf=_fix_keys_of)


def _fix_keys_of(x: object) -> bool:
    """Fix the keys of ``x`` if it is a dictionary. Return that it is no leaf."""
    if not isinstance(x, dict):
        return False
    _refuse_tensors_as_keys(x)
    if any(type(key) in KINDS for key in x):
        items = [(_fix(key), value) for key, value in x.items()]
        # in place, since the program may return the dictionary twice
        x.clear()
        x.update(items)
    return False


def _refuse_tensors_as_keys(x: dict[object, object]) -> None:
    """Raise ``RuntimeError`` if a key is a tensor of the trace, or holds one."""
    if any(isinstance(part, Value) for key in x for part in pytree.tree_leaves(key)):
        raise RuntimeError(
            "the program returns or leaves a dictionary with a tensor as a key, for which a graph "
            "has a stand-in. Take a name or a number for a key, or make the dictionary outside of "
            "the compiled function."
        )


def _fix(key: object) -> object:
    """Return the value of a symbol, which becomes a guard; any other key as it is."""
    kind = KINDS.get(type(key))
    if kind is None:
        return key
    return kind(key)
