"""Views: one call instead of a chain, and none where the values that a view was taken for are
computed in its geometry anyway.

    y = x.view(8, 1, 64) + bias; z = y.view(8, 64).tanh()
    # becomes z = (x + bias).tanh(), for x of 8 × 64

A view is told by the value whose memory it shows, and by where it lies in it. Two that agree are
one. Batching rules take many views, each of which costs as much as a small kernel.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from ...torch_private.dispatcher import OpOverload
from ...trace.graph_edits import add_call
from ..capture.aliasing import fresh, functional_pointwise
from .overloads import aten, calls_of, static
from .replacing import is_result, replace_alias, results_in, returned

Geometry = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]
_VIEW = aten.view.default


def shorter_views(graph: fx.Graph) -> None:
    """Views of views become views of what these show, or that itself; pointwise calls of reshaped
    values compute the values' own shape."""
    known: dict[tuple[fx.Node, Geometry], fx.Node] = {}
    roots: dict[fx.Node, fx.Node] = {}
    for node in calls_of(graph):
        if _source(node) is not None:
            _shorten(node, known, roots)
        elif functional_pointwise(node.target) and static(node):
            _reshape(graph, node, known, roots)


def _source(node: fx.Node) -> fx.Node | None:
    """Return what ``node`` is a view of, if that is known: the memory, dtype and lazy bits are
    those of the result."""
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
    """Return the call whose item ``node`` is, or ``node``. An item of a call with several results
    shows what the call takes."""
    if node.target is not operator.getitem:
        return node
    call: Any = node.args[0]
    return call  # type: ignore[no-any-return]


def _shows_first_argument(func: object) -> bool:
    """Return whether ``func`` is an op of ATen whose one result lies in the memory of its first
    argument."""
    if type(func) is not OpOverload or func.namespace != "aten":
        return False
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
    lazy = any(t.is_conj() or t.is_neg() for t in (a, b))
    return a.dtype is b.dtype and a.device == b.device and not lazy


def _geometry(node: fx.Node, root: fx.Node) -> Geometry:
    """Where ``node`` lies in ``root``. The caller's tensor may begin anywhere in its storage."""
    value = node.meta["val"]
    return (
        tuple(value.shape),
        tuple(value.stride()),
        value.storage_offset() - root.meta["val"].storage_offset(),
        value.dtype,
    )


def _shorten(
    node: fx.Node, known: dict[tuple[fx.Node, Geometry], fx.Node], roots: dict[fx.Node, fx.Node]
) -> None:
    source: Any = _source(node)
    root = roots[node] = roots.get(source, source)
    geometry = _geometry(node, root)
    if geometry == _geometry(root, root):
        if (
            is_result(node) and fresh(root) and results_in(root) == [node]
        ):  # then the result may be the value itself
            node.replace_all_uses_with(root)
        _leave_for(node, root)
        return
    first = known.setdefault((root, geometry), node)
    if first is not node:
        _leave_for(node, first)
    elif source is not root and node.target is not operator.getitem and _viewable(root, geometry):
        node.target, node.args, node.kwargs = _VIEW, (root, list(geometry[0])), {}


def _leave_for(node: fx.Node, same: fx.Node) -> None:
    """Let the users of ``node`` take ``same``, the same part of the same memory. An unused view
    goes at once: a root may have thousands of them, and each look at its views would see them
    all."""
    replace_alias(node, same)
    if not node.users:
        node.graph.erase_node(node)


def _viewable(root: fx.Node, geometry: Geometry) -> bool:
    """Return whether ``root.view(sizes)`` has this geometry."""
    value = root.meta["val"]
    try:
        found = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device="meta"
        ).view(geometry[0])
    except RuntimeError:
        return False
    return geometry[2] == 0 and found.stride() == geometry[1]


def _reshape(
    graph: fx.Graph,
    node: fx.Node,
    known: dict[tuple[fx.Node, Geometry], fx.Node],
    roots: dict[fx.Node, fx.Node],
) -> None:
    """Let the pointwise call ``node`` take the values whose views it takes, where that gives a view
    of the same elements."""
    value = node.meta["val"]
    sizes = _sizes_of_views(node, roots)
    if sizes is None or not value.is_contiguous() or not value.numel() or returned(node):
        return
    if sizes == tuple(value.shape) or not _viewable_as(value, sizes):
        return
    operands = _operands_for(node, sizes, roots)
    like = next((a for a in operands.values() if _is_like(a, sizes, value.dtype)), None)
    if like is None:
        return
    computed = _compute_from(graph, node, operands)
    computed.meta = {**node.meta, "val": like.meta["val"]}
    node.target, node.args, node.kwargs = _VIEW, (computed, list(value.shape)), {}
    roots[node] = computed
    known[computed, _geometry_of(value)] = node


def _compute_from(graph: fx.Graph, node: fx.Node, operands: dict[fx.Node, fx.Node]) -> fx.Node:
    """Add the call ``node`` once more, with others in place of its ``operands``."""
    with graph.inserting_before(node):
        computed = add_call(graph, node.target, node.args, node.kwargs)  # type: ignore[arg-type]
    for operand, other in operands.items():
        computed.replace_input_with(operand, other)
    return computed


def _sizes_of_views(node: fx.Node, roots: dict[fx.Node, fx.Node]) -> tuple[int, ...] | None:
    """Return the sizes of the value that the first operand of ``node`` shows as a whole; None if no
    operand is such a view."""
    views = (a for a in node.all_input_nodes if _is_whole_view(a, roots))
    view = next(views, None)
    if view is None:
        return None
    return tuple(roots[view].meta["val"].shape)


def _operands_for(
    node: fx.Node, sizes: tuple[int, ...], roots: dict[fx.Node, fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Return for each operand of call ``node`` what stands for it if the result has ``sizes``.

    Empty, if there is nothing at hand for one of them.
    """
    if any(
        isinstance(argument, torch.Tensor) and argument.dim()
        for argument in (*node.args, *node.kwargs.values())
    ):
        return {}  # a constant of the present shape
    shape = tuple(node.meta["val"].shape)
    operands: dict[fx.Node, fx.Node] = {}
    for a in node.all_input_nodes:
        other = _reshaped(a, shape, sizes, roots)
        if other is None:
            return {}
        operands[a] = other
    return operands


def _geometry_of(value: torch.Tensor) -> Geometry:
    return tuple(value.shape), tuple(value.stride()), 0, value.dtype


def _is_whole_view(node: fx.Node, roots: dict[fx.Node, fx.Node]) -> bool:
    return node in roots and _whole(node, roots[node])


def _whole(view: fx.Node, root: fx.Node) -> bool:
    """Return whether ``view`` shows all elements of ``root`` in their order, both without gaps."""
    a, b = view.meta["val"], root.meta["val"]
    return bool(
        a.is_contiguous()
        and b.is_contiguous()
        and a.numel() == b.numel()
        and _canonical(a)
        and _canonical(b)
    )


def _canonical(value: torch.Tensor) -> bool:
    """Return whether the strides are those of a new tensor, also of dimensions of size one."""
    expected, strides = 1, []
    for size in reversed(value.shape):
        strides.append(expected)
        expected *= max(size, 1)
    return value.stride() == tuple(reversed(strides))


def _viewable_as(value: torch.Tensor, sizes: tuple[int, ...]) -> bool:
    elements = 1
    for size in sizes:
        elements *= size
    return elements == value.numel() and _canonical(value)


def _is_like(node: fx.Node, sizes: tuple[int, ...], dtype: torch.dtype) -> bool:
    value = node.meta["val"]
    return tuple(value.shape) == sizes and value.dtype is dtype and _canonical(value)


def _reshaped(
    node: fx.Node, shape: tuple[int, ...], sizes: tuple[int, ...], roots: dict[fx.Node, fx.Node]
) -> fx.Node | None:
    """Return what stands for the operand ``node`` of a call if its result has ``sizes`` instead of
    ``shape``; None if there is nothing at hand."""
    if not static(node):
        return None
    value = node.meta["val"]
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
