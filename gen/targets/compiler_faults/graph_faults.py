"""Mistakes in a graph that AOTAutograd has made: a cast or a write is lost, a stride is another.

    edit_graph(module.graph, "cast")        # True: the graph had a cast, and has none now

Each mistake is made at every call of the graph that fits, as a pass of a compiler would make it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

__all__ = ["EDITS", "edit_graph"]

aten = torch.ops.aten
_FACTOR = 1.001


def edit_graph(graph: fx.Graph, kind: str) -> bool:
    """Make the mistake ``kind`` of :data:`EDITS` in ``graph``. Return whether it has a place."""
    edited = False
    for node in list(graph.nodes):  # a list, since edits add and erase nodes
        if node.op == "call_function" and EDITS[kind](node):
            edited = True
    # A malformed graph is a mistake of this file, and none for cells to catch.
    if edited:
        graph.lint()
    return edited


def _packet(node: fx.Node) -> object:
    """Return the op that a node calls, without its overload."""
    return getattr(node.target, "overloadpacket", None)


def _value(node: object) -> Any:
    """Return the fake value of a node, or None."""
    if not isinstance(node, fx.Node):
        return None
    return node.meta.get("val")


def _replace(node: fx.Node, other: fx.Node) -> bool:
    """Let the users of a node take another one."""
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)
    return True


def _of_same_shape(node: fx.Node, other: object) -> bool:
    """Return whether two nodes are tensors of one shape and dtype."""
    a, b = _value(node), _value(other)
    both = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    return both and a.shape == b.shape and a.dtype is b.dtype


def _uncast(node: fx.Node) -> bool:
    """Leave out a change of dtype."""
    if _packet(node) not in _CASTS or not isinstance(node.args[0], fx.Node):
        return False
    if _of_same_shape(node, node.args[0]):
        return False
    return _replace(node, node.args[0])


def _share(node: fx.Node) -> bool:
    """Leave out a copy, so that two tensors share memory."""
    if _packet(node) is not aten.clone or not _of_same_shape(node, node.args[0]):
        return False
    assert isinstance(node.args[0], fx.Node)
    return _replace(node, node.args[0])


def _restride(node: fx.Node) -> bool:
    """Give a result the strides of another order of dimensions."""
    value = _value(node)
    if not isinstance(value, torch.Tensor) or not _is_result_alone(node) or value.ndim < 2:
        return False
    # Along a dimension of size 1 any stride is right.
    if not value.is_contiguous() or min(value.shape) < 2:
        return False
    graph = node.graph
    with graph.inserting_after(node):
        turned = graph.call_function(aten.transpose.int, (node, 0, 1))
    with graph.inserting_after(turned):
        copy = graph.call_function(
            aten.clone.default, (turned,), {"memory_format": torch.contiguous_format}
        )
    with graph.inserting_after(copy):
        back = graph.call_function(aten.transpose.int, (copy, 0, 1))
    # All users take `back`, but for `turned`, of which `back` is made.
    node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not turned)
    return True


def _is_view(node: fx.Node) -> bool:
    """Return whether a node shares the memory of another one."""
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)


def _forget_write(node: fx.Node) -> bool:
    """Leave out the write to an argument at the end of a graph."""
    if node.target is not aten.copy_.default:
        return False
    assert isinstance(node.args[0], fx.Node)
    return _replace(node, node.args[0])


def _write_early(node: fx.Node) -> bool:
    """Write to an argument before a result is computed of what it had."""
    if node.target is not aten.copy_.default:
        return False
    written = node.args[0]
    assert isinstance(written, fx.Node)
    late = [one for one in written.users if one is not node and _is_result_alone(one)]
    for one in late:
        node.append(one)
    return bool(late)


def _is_result_alone(node: fx.Node) -> bool:
    """Return whether a node is a fresh result of the graph, of which nothing else is computed."""
    return not _is_view(node) and all(user.op == "output" for user in node.users)


def _shift(node: fx.Node) -> bool:
    """Take the element before the one that is asked for."""
    if _packet(node) is not aten.select or not isinstance(node.args[2], int):
        return False
    args: Any = node.args
    source, dim, index = args
    value = _value(source)
    if value is None or value.shape[dim] < 2:
        return False
    node.args = (source, dim, (index - 1) % int(value.shape[dim]))
    return True


def _untranspose(node: fx.Node) -> bool:
    """Leave out an exchange of dimensions of one size."""
    if _packet(node) not in _TRANSPOSED or not _of_same_shape(node, node.args[0]):
        return False
    value = _value(node)
    if value.ndim < 2 or value.numel() < 2:
        return False
    assert isinstance(node.args[0], fx.Node)
    return _replace(node, node.args[0])


def _swap(node: fx.Node) -> bool:
    """Exchange the two operands of a call that tells them apart."""
    if _packet(node) not in _ORDERED or len(node.args) < 2:
        return False
    a, b, *others = node.args
    if not isinstance(a, fx.Node) or not _of_same_shape(a, b):
        return False
    node.args = (b, a, *others)
    return True


def _unselect(node: fx.Node) -> bool:
    """Exchange the two values of a choice by a mask."""
    if _packet(node) is not aten.where or len(node.args) != 3:
        return False
    mask, a, b = node.args
    node.args = (mask, b, a)
    return True


def _scale(node: fx.Node) -> bool:
    """Round a number of the program."""
    args: list[Any] = list(node.args)
    changes = False
    for place, argument in enumerate(node.args):
        # an integer may be a dimension or a size
        if type(argument) is float and argument not in (0.0, 1.0):
            args[place] = argument * _FACTOR
            changes = True
    node.args = tuple(args)
    return changes


def _unnegate(node: fx.Node) -> bool:
    """Leave out a sign."""
    if _packet(node) is not aten.neg or not isinstance(node.args[0], fx.Node):
        return False
    return _replace(node, node.args[0])


def _unconjugate(node: fx.Node) -> bool:
    """Leave out a conjugate."""
    if _packet(node) not in _CONJUGATES or not isinstance(node.args[0], fx.Node):
        return False
    return _replace(node, node.args[0])


def _fill(node: fx.Node) -> bool:
    """Fill with ones what should be zeros."""
    if _packet(node) in (aten.full, aten.full_like, aten.new_full) and node.args[-1] == 0:
        node.args = (*node.args[:-1], 1)
        return True
    ones = _ONES.get(node.target)
    if ones is None:
        return False
    node.target = ones
    return True


def _overwrite(node: fx.Node) -> bool:
    """Write where a call should add to what is there."""
    if _packet(node) is aten.scatter_add and len(node.args) == 4:
        node.target = aten.scatter.src
        return True
    if _packet(node) is aten.index_put and node.args[3:4] == (True,):
        node.args = (*node.args[:3], False)
        return True
    return False


def _narrow(node: fx.Node) -> bool:
    """Compute in single precision what is asked for in double precision."""
    value = _value(node)
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float64 or _is_view(node):
        return False
    graph = node.graph
    with graph.inserting_after(node):
        coarse = graph.call_function(aten._to_copy.default, (node,), {"dtype": torch.float32})
    with graph.inserting_after(coarse):
        fine = graph.call_function(aten._to_copy.default, (coarse,), {"dtype": torch.float64})
    # All users take `fine`, but for `coarse`, of which `fine` is made.
    node.replace_all_uses_with(fine, delete_user_cb=lambda user: user is not coarse)
    return True


def _draw_once(node: fx.Node) -> bool:
    """Take for a draw of random numbers one that was drawn before."""
    for earlier in _draws_before(node):
        if earlier.target is node.target and _of_same_shape(node, earlier):
            return _replace(node, earlier)
    return False


def _draws_before(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the draws of random numbers before a node that is one itself."""
    if not _is_draw(node):
        return
    for earlier in node.graph.nodes:
        if earlier is node:
            return
        if _is_draw(earlier):
            yield earlier


def _is_draw(node: fx.Node) -> bool:
    """Return whether a node draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


_CASTS = frozenset((aten._to_copy, torch.ops.prims.convert_element_type))
_CONJUGATES = frozenset((aten._conj, aten._conj_physical, aten.conj_physical))
_TRANSPOSED = frozenset((aten.t, aten.transpose, aten.permute))
_ORDERED = frozenset(
    (aten.sub, aten.div, aten.pow, aten.mm, aten.gt, aten.lt, aten.ge, aten.le, aten.atan2)
)
_ONES: dict[object, Any] = {
    aten.zeros.default: aten.ones.default,
    aten.zeros_like.default: aten.ones_like.default,
    aten.new_zeros.default: aten.new_ones.default,
}
EDITS: dict[str, Callable[[fx.Node], bool]] = {
    "cast": _uncast,
    "alias": _share,
    "stride": _restride,
    "write": _forget_write,
    "order": _write_early,
    "index": _shift,
    "transpose": _untranspose,
    "operands": _swap,
    "mask": _unselect,
    "number": _scale,
    "sign": _unnegate,
    "conjugate": _unconjugate,
    "zeros": _fill,
    "accumulate": _overwrite,
    "precision": _narrow,
    "draw": _draw_once,
}
"""The mistakes by what is wrong then. Each gets a call of a graph, changes it, and tells whether it
has."""
