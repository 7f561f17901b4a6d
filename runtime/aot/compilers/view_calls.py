"""Shorten chains of views to one call, and leave views out where a pointwise call can compute in
the other geometry.

    y = x.view(8, 1, 64) + bias; z = y.view(8, 64).tanh()
    # becomes z = (x + bias).tanh(), for x of 8 × 64

The key of a view is the value whose memory it shows, and its place there. Two views of one key are
one. Batching rules take many views, each of which costs as much as a small kernel.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from ...torch_private.dispatcher import OpOverload
from ...trace.graph_edits import add_call, replace_each
from ..capture.aliasing import fresh, functional_pointwise
from .overloads import aten, calls_of, static
from .replacing import is_result, replace_alias, returned, shown, times_returned

Geometry = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]
_VIEW = aten.view.default


def shorter_views(graph: fx.Graph) -> None:
    """Replace views of views by views of the value that these show, or by that value.

    Pointwise calls of reshaped values compute in the shape of the values themselves.
    """
    known = _Views(graph)
    for node in calls_of(graph):
        if _source(node) is not None:
            known.shorten(node)
        elif functional_pointwise(node.target) and static(node):
            known.reshape(node)
    known.finish()


class _Views:
    """The views of a graph that the pass has come to.

    ``views``: by what they show, the first view that shows it. ``roots``: the value whose memory a
    view shows. ``moved``: results that are to be another value, at the end and at once. A graph may
    have thousands, and each exchange would look at all.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.views: dict[tuple[fx.Node, Geometry], fx.Node] = {}
        self.roots: dict[fx.Node, fx.Node] = {}
        self.moved: dict[fx.Node, fx.Node] = {}
        self._times = times_returned(graph)

    def shorten(self, node: fx.Node) -> None:
        """Replace view ``node`` by its root, by an equal view, or by one call on its root."""
        source: Any = _source(node)
        root = self.roots[node] = self.roots.get(source, source)
        geometry = _geometry(node, root)
        if geometry == _geometry(root, root):
            if self._may_return(root, node):
                self.moved[node] = root
            _replace_by(node, root)
            return
        # an equal view comes before it; else it becomes the first one, by one call if that is
        # shorter
        first = self.views.setdefault((root, geometry), node)
        if first is not node:
            _replace_by(node, first)
            return
        # a view of the root itself is one call already, and an item shares its call with others
        if source is root or node.target is operator.getitem:
            return
        if _is_view_of(root, geometry):
            node.target, node.args, node.kwargs = _VIEW, (root, list(geometry[0])), {}

    def _may_return(self, root: fx.Node, node: fx.Node) -> bool:
        """Return whether ``root`` may be the result of the graph that its view ``node`` is: no
        other result shows it."""
        if self._times[node] != 1 or not fresh(root):
            return False
        return all(value is node or not is_result(value) for value in shown(root))

    def finish(self) -> None:
        """Let the results be what they are to be."""
        replace_each(self.moved)
        for node in self.moved:
            self.graph.erase_node(node)

    def reshape(self, node: fx.Node) -> None:
        """Let pointwise call ``node`` take the roots of its operands, and view the result.

        That is right if each operand has a counterpart that meets the same elements.
        """
        value = node.meta["val"]
        # the sizes in which the call can be computed without the views before it
        sizes = _sizes_of_views(node, self.roots)
        if sizes is None or not value.is_contiguous() or not value.numel() or returned(node):
            return
        if sizes == tuple(value.shape) or not _can_be_viewed_as(value, sizes):
            return
        # one operand has the layout of the result, which so is known without a trace
        operands = _operands_for(node, sizes, self.roots)
        others = operands.values()
        like = next((other for other in others if _is_like(other, sizes, value.dtype)), None)
        if like is None:
            return
        computed = _compute_from(self.graph, node, operands)
        computed.meta = {**node.meta, "val": like.meta["val"]}
        node.target, node.args, node.kwargs = _VIEW, (computed, list(value.shape)), {}
        self.roots[node] = computed
        self.views[computed, _geometry_of(value)] = node


def _source(node: fx.Node) -> fx.Node | None:
    """Return the value of which ``node`` is a view with the same dtype and lazy bits; None if
    ``node`` is no such view."""
    if node.op != "call_function" or not static(node):
        return None
    call = _call_of(node)
    if not call.args or not static(call.args[0]) or not _shows_first_argument(call.target):
        return None
    source: Any = call.args[0]
    a, b = node.meta["val"], source.meta["val"]
    if not _read_alike(a, b):
        return None
    # the source has a history that the result must not have
    if call.target is aten.detach.default and (a.requires_grad or b.requires_grad):
        return None
    return source  # type: ignore[no-any-return]


def _call_of(node: fx.Node) -> fx.Node:
    """Return the call whose item ``node`` is, or ``node``.

    An item of a call with several results shows the argument of the call.
    """
    if node.target is not operator.getitem:
        return node
    call: Any = node.args[0]
    return call  # type: ignore[no-any-return]


def _shows_first_argument(func: object) -> bool:
    """Return whether ``func`` is an op of ATen whose one result shares memory with its first
    argument."""
    if type(func) is not OpOverload or func.namespace != "aten":
        return False
    # its schema says nothing of the memory that it shares
    if func is aten._unsafe_view.default:
        return True
    returns = func._schema.returns
    if len(returns) != 1:
        return False
    alias = returns[0].alias_info
    if alias is None or alias.is_write:
        return False
    return func._schema.arguments[0].alias_info is not None


def _read_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether the same bytes are the same numbers in both tensors."""
    lazy = any(tensor.is_conj() or tensor.is_neg() for tensor in (a, b))
    return a.dtype is b.dtype and a.device == b.device and not lazy


def _geometry(node: fx.Node, root: fx.Node) -> Geometry:
    """Return the geometry of ``node``, measured from the start of ``root``."""
    value = node.meta["val"]
    # from the start of `root`, as the tensor of a caller may begin anywhere in its storage
    return (
        tuple(value.shape),
        tuple(value.stride()),
        value.storage_offset() - root.meta["val"].storage_offset(),
        value.dtype,
    )


def _replace_by(node: fx.Node, same: fx.Node) -> None:
    """Let the users of ``node`` take ``same``, the same part of the same memory."""
    replace_alias(node, same)
    # at once: a root may have thousands of views, and each look at its views would see them all
    if not node.users:
        node.graph.erase_node(node)


def _is_view_of(root: fx.Node, geometry: Geometry) -> bool:
    """Return whether ``root.view(sizes)`` has this geometry, whose sizes are the same."""
    value = root.meta["val"]
    try:
        view = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device="meta"
        ).view(geometry[0])
    except RuntimeError:
        return False
    return geometry[2] == 0 and view.stride() == geometry[1]


def _compute_from(graph: fx.Graph, node: fx.Node, operands: dict[fx.Node, fx.Node]) -> fx.Node:
    """Add the call ``node`` once more, with the values of ``operands`` in place of their keys."""
    with graph.inserting_before(node):
        computed = add_call(graph, node.target, node.args, node.kwargs)  # type: ignore[arg-type]
    for operand, other in operands.items():
        computed.replace_input_with(operand, other)
    return computed


def _sizes_of_views(node: fx.Node, roots: dict[fx.Node, fx.Node]) -> tuple[int, ...] | None:
    """Return the sizes of the root of the first operand that shows all of its root; None if no
    operand does."""
    views = (operand for operand in node.all_input_nodes if _is_whole_view(operand, roots))
    view = next(views, None)
    if view is None:
        return None
    return tuple(roots[view].meta["val"].shape)


def _operands_for(
    node: fx.Node, sizes: tuple[int, ...], roots: dict[fx.Node, fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Return for each operand of call ``node`` its counterpart if the result has ``sizes``.

    Empty, if one of them has none.
    """
    # a constant tensor has the present shape
    arguments = (*node.args, *node.kwargs.values())
    if any(isinstance(argument, torch.Tensor) and argument.dim() for argument in arguments):
        return {}
    shape = tuple(node.meta["val"].shape)
    operands: dict[fx.Node, fx.Node] = {}
    for operand in node.all_input_nodes:
        other = _counterpart(operand, shape, sizes, roots)
        if other is None:
            return {}
        operands[operand] = other
    return operands


def _geometry_of(value: torch.Tensor) -> Geometry:
    return tuple(value.shape), tuple(value.stride()), 0, value.dtype


def _is_whole_view(node: fx.Node, roots: dict[fx.Node, fx.Node]) -> bool:
    return node in roots and _shows_all_of(node, roots[node])


def _shows_all_of(view: fx.Node, root: fx.Node) -> bool:
    """Return whether ``view`` shows all elements of ``root`` in their order, both without gaps."""
    a, b = view.meta["val"], root.meta["val"]
    if not a.is_contiguous() or not b.is_contiguous() or a.numel() != b.numel():
        return False
    return _has_new_strides(a) and _has_new_strides(b)


def _has_new_strides(value: torch.Tensor) -> bool:
    """Return whether the strides are those of a new tensor, also of dimensions of size one."""
    expected, strides = 1, []
    for size in reversed(value.shape):
        strides.append(expected)
        expected *= max(size, 1)
    return value.stride() == tuple(reversed(strides))


def _can_be_viewed_as(value: torch.Tensor, sizes: tuple[int, ...]) -> bool:
    """Return whether ``value.view(sizes)`` has the elements in the order of a new tensor."""
    elements = 1
    for size in sizes:
        elements *= size
    return elements == value.numel() and _has_new_strides(value)


def _is_like(node: fx.Node, sizes: tuple[int, ...], dtype: torch.dtype) -> bool:
    value = node.meta["val"]
    return tuple(value.shape) == sizes and value.dtype is dtype and _has_new_strides(value)


def _counterpart(
    node: fx.Node, shape: tuple[int, ...], sizes: tuple[int, ...], roots: dict[fx.Node, fx.Node]
) -> fx.Node | None:
    """Return the operand that a call takes in place of ``node`` if its result has ``sizes`` instead
    of ``shape``; None if there is none."""
    if not static(node):
        return None
    value = node.meta["val"]
    # it meets every element in any shape
    if value.dim() == 0:
        return node
    if tuple(value.shape) == shape and _is_whole_view(node, roots):
        root = roots[node]
        if tuple(root.meta["val"].shape) == sizes:
            return root
    if _meets_same_elements(value.dim(), shape, sizes):
        return node
    return None


def _meets_same_elements(dim: int, shape: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Return whether an operand of ``dim`` dimensions, say a bias, meets the same elements in a
    result of ``sizes`` as in one of ``shape``. It does if the last dimensions are the same."""
    if dim >= len(shape) or dim > len(sizes) or shape == sizes:
        return False
    return shape[-dim:] == sizes[-dim:]
