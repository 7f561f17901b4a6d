"""Replace one value of a graph by another one of the same elements, where nobody sees a difference.

    y = x.clone(); z = y + 1        # becomes z = x + 1

The results of a program are tensors of their own: two of them are not one object, and share memory
only where they did before.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import fx

from ...seam.containers import tensors_of
from ...seam.graph_walks import results_of, walk
from ...torch_private.dispatcher import OpOverload
from ...trace.graph_edits import has_effect
from ..capture.aliasing import LINEAR, aliased_inputs, fresh, may_alias
from .overloads import aten, calls_of, is_deterministic, kind, same_layout, static

_ELEMENTS = 1 << 14  # of a tensor that may live longer than it did, as it is small
_PRODUCTS = frozenset((aten.mm.default, aten.addmm.default))
_COPIES = frozenset(
    (aten.clone.default, aten._to_copy.default, aten.copy.default, aten.lift_fresh_copy.default)
)


def shown(node: fx.Node) -> list[fx.Node]:
    """List ``node`` and the values computed from it that may share its memory."""
    return list(walk([node], _views_of, breadth_first=True))


def _views_of(node: fx.Node) -> list[fx.Node]:
    """List the calls that take ``node`` and may return a view of it."""
    return [user for user in node.users if user.op == "call_function" and may_alias(user)]


def is_result(node: fx.Node) -> bool:
    """Return whether a result of the graph is ``node``."""
    return node.graph.output_node() in node.users


def returned(node: fx.Node) -> bool:
    """Return whether a result of the graph is ``node``, or may share memory with it.

    This walks the graph for one value. :class:`Returned` walks once for all values.
    """
    return any(map(is_result, shown(node)))


def times_returned(graph: fx.Graph) -> Counter[fx.Node]:
    """Count how many results of the graph each value is. None of a graph that returns something
    else than a list."""
    results = results_of(graph)
    if not isinstance(results, (list, tuple)):
        return Counter()
    return Counter(result for result in results if isinstance(result, fx.Node))


class Returned:
    """Hold the values of a graph with which a result may share memory, while a pass replaces some.

    For ``y = x.t(); return y`` these are ``y`` and ``x``.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._nodes: set[fx.Node] = set()
        self._add(graph.output_node().all_input_nodes)

    def __contains__(self, node: fx.Node) -> bool:
        return node in self._nodes

    def _add(self, nodes: list[fx.Node]) -> None:
        """Note ``nodes`` and whatever they may be views of."""
        self._nodes |= set(walk(nodes, self._unknown_sources))

    def _unknown_sources(self, node: fx.Node) -> list[fx.Node]:
        """Return what ``node`` may be a view of, unless that has been noted before."""
        if node in self._nodes:
            return []
        return aliased_inputs(node)

    def replace(self, node: fx.Node, by: fx.Node) -> None:
        """Let the users of ``node`` take ``by``, which has the same elements and layout.

        A result of the graph takes ``by`` only if that is new memory of no other result. Views of
        ``node`` take it only if it begins at the same place of its memory, as the geometry of a
        view counts from there.
        """
        # nobody else can see this memory
        if isinstance(by, fx.Node) and fresh(by) and by not in self:
            node.replace_all_uses_with(by)
            if node in self:
                self._add([by])
            return
        viewable = not isinstance(by, fx.Node) or _offset(by) == _offset(node)
        for user in list(node.users):
            if self._may_take_other(user, viewable):
                user.replace_input_with(node, by)

    def _may_take_other(self, user: fx.Node, viewable: bool) -> bool:
        """Return whether ``user`` of a value may take another one of the same elements.

        ``viewable``: whether a view of the other one is at the same place of its memory.
        """
        if user.op == "output":
            return False
        if not may_alias(user):
            return True
        return viewable and user not in self

    def replace_alias(self, node: fx.Node, by: fx.Node) -> None:
        """Let the users of ``node`` take ``by``, another name of the same memory. A result stays
        the tensor that it is."""
        replace_alias(node, by)
        if node in self:
            self._add([by])


def _offset(node: fx.Node) -> object:
    """Return the storage offset of ``node``, or None if it is no tensor of known sizes."""
    return node.meta["val"].storage_offset() if static(node) else None


def replace_alias(node: fx.Node, by: fx.Node) -> None:
    """Do :meth:`Returned.replace_alias` in a pass that does not ask what is returned."""
    for user in list(node.users):
        if user.op != "output":
            user.replace_input_with(node, by)


def without_copies(graph: fx.Graph) -> None:
    """Replace copies by their source, and ``neg(neg(x))`` by ``x``, in a graph without writes."""
    results = Returned(graph)
    for node in calls_of(graph):
        source = _source_of_copy(node)
        if static(node) and static(source) and _stands_for(source, node):
            results.replace(node, source)


def _source_of_copy(node: fx.Node) -> Any:
    """Return the value whose elements the result of ``node`` has; None if there is none."""
    if node.target is aten.copy.default:
        return node.args[1]
    source = next(iter(node.args), None)
    if node.target in _COPIES:
        return source
    if node.target is not aten.neg.default or not isinstance(source, fx.Node):
        return None
    # two negations change no bit
    if source.target is aten.neg.default:
        return source.args[0]
    return None


def _stands_for(source: fx.Node, node: fx.Node) -> bool:
    """Return whether ``source``, whose elements ``node`` has, has its layout and history too."""
    value = source.meta["val"]
    if value.is_conj() or value.is_neg() or value.requires_grad:
        return False
    return same_layout(node, source)


def without_gaps(graph: fx.Graph) -> None:
    """Replace copies whose gaps nobody sees by their source, in a graph without writes.

        _, z = x.unsafe_split(3, 1)     # (n, 3) of (n, 6): rows with gaps between them
        z.add_(y).sigmoid_()            # copy(z, z + y), copy(z, …): a write keeps the gaps

    A pointwise call and a product lay out their results by the order of the dimensions alone."""
    for node in reversed(calls_of(graph)):  # a later copy may be laid out as an earlier one
        if node.target is not aten.copy.default:
            continue
        if not node.users:
            graph.erase_node(node)
            continue
        source: Any = node.args[1]
        if not static(node) or not static(source) or not _fills(node, source):
            continue
        if all(map(_packs, node.users)):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _fills(node: fx.Node, source: fx.Node) -> bool:
    """Return whether ``source`` is ``node`` without gaps: with its dimensions in the same order."""
    value, packed = node.meta["val"], source.meta["val"]
    if kind(node) != kind(source) or value.is_conj() or value.is_neg():
        return False
    # the stride of a dimension of one element says nothing of the order
    wide = [dim for dim in range(value.dim()) if value.shape[dim] != 1]
    order = sorted(wide, key=value.stride().__getitem__)
    if order != sorted(wide, key=packed.stride().__getitem__):
        return False
    return bool(aten.is_non_overlapping_and_dense(packed))


def _packs(user: fx.Node) -> bool:
    """Return whether a call lays out its result without regard to gaps of its arguments."""
    return user.target in _PRODUCTS or is_deterministic(user.target)


def without_repetitions(graph: fx.Graph) -> None:
    """Compute once what is computed twice.

    A large value does not live longer for that: its memory may be what a checkpoint saves.
    """
    order = {node: index for index, node in enumerate(graph.nodes)}
    first_calls: dict[Hashable, fx.Node] = {}
    results = Returned(graph)
    for node in calls_of(graph):
        if not _pure(node):
            continue
        key = (node.target, _key(node.args), _key(tuple(node.kwargs.items())))
        first = first_calls.setdefault(key, node)
        if first is node:
            continue
        # a view takes no memory, and so it may live as long as it likes
        if may_alias(node) and node.target is not operator.getitem:
            results.replace_alias(node, first)
        elif _is_small(node) or _is_used_after(first, order[node], order):
            results.replace(node, first)


def _is_used_after(node: fx.Node, place: int, order: Mapping[fx.Node, int]) -> bool:
    """Return whether a node behind ``place`` uses the memory of ``node``, which lives so long."""
    users = itertools.chain.from_iterable(value.users for value in shown(node))
    return any(order[user] > place for user in users)


def _pure(node: fx.Node) -> bool:
    """Return whether the arguments of ``node`` decide its result, and it does nothing else."""
    func = node.target
    if func in (operator.getitem, LINEAR):
        return True
    if type(func) is not OpOverload or func.namespace != "aten":
        return False
    if torch.Tag.nondeterministic_seeded in func.tags or func._schema.is_mutable:
        return False
    # each empty tensor has a memory of its own, to which a call may write
    return not has_effect(node) and not func._schema.name.startswith("aten::empty")


def _key(argument: object) -> Hashable:
    """Return an argument as a part of a key. The text of a node is its name, which is unique."""
    if isinstance(argument, (list, tuple)):
        return tuple(map(_key, argument))
    if isinstance(argument, torch.Tensor):
        return id(argument), torch.Tensor
    # by the text, in which 0.0 and -0.0 differ, and by the type, for 1, 1.0 and True
    return type(argument), repr(argument)


def _is_small(node: fx.Node) -> bool:
    """Return whether all results of ``node`` are known to have few elements."""
    for value in tensors_of((node.meta.get("val"),)):
        if any(type(size) is not int for size in value.shape) or value.numel() > _ELEMENTS:
            return False
    return True
