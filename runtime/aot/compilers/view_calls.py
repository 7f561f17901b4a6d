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
    for n in calls_of(graph):
        if _source(n) is not None:
            _shorten(n, known, roots)
        elif functional_pointwise(n.target) and static(n):
            _reshape(graph, n, known, roots)


def _source(n: fx.Node) -> fx.Node | None:
    """Return what ``n`` is a view of, if that is known: the memory, dtype and lazy bits are those
    of the result."""
    if n.op != "call_function" or not static(n):
        return None
    call = _call_of(n)
    if not call.args or not static(call.args[0]) or not _shows_first_argument(call.target):
        return None
    source: Any = call.args[0]
    a, b = n.meta["val"], source.meta["val"]
    if not _read_alike(a, b):
        return None
    # the source has a history that the result must not have
    if call.target is aten.detach.default and (a.requires_grad or b.requires_grad):
        return None
    return source  # type: ignore[no-any-return]


def _call_of(n: fx.Node) -> fx.Node:
    """Return the call whose item ``n`` is, or ``n``. An item of a call with several results shows
    what the call takes."""
    if n.target is not operator.getitem:
        return n
    call: Any = n.args[0]
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


def _geometry(n: fx.Node, root: fx.Node) -> Geometry:
    """Where ``n`` lies in ``root``. The caller's tensor may begin anywhere in its storage."""
    value = n.meta["val"]
    return (
        tuple(value.shape),
        tuple(value.stride()),
        value.storage_offset() - root.meta["val"].storage_offset(),
        value.dtype,
    )


def _shorten(
    n: fx.Node, known: dict[tuple[fx.Node, Geometry], fx.Node], roots: dict[fx.Node, fx.Node]
) -> None:
    source: Any = _source(n)
    root = roots[n] = roots.get(source, source)
    geometry = _geometry(n, root)
    if geometry == _geometry(root, root):
        if (
            is_result(n) and fresh(root) and results_in(root) == [n]
        ):  # then the result may be the value itself
            n.replace_all_uses_with(root)
        _leave_for(n, root)
        return
    first = known.setdefault((root, geometry), n)
    if first is not n:
        _leave_for(n, first)
    elif source is not root and n.target is not operator.getitem and _viewable(root, geometry):
        n.target, n.args, n.kwargs = _VIEW, (root, list(geometry[0])), {}


def _leave_for(n: fx.Node, same: fx.Node) -> None:
    """Let the users of ``n`` take ``same``, the same part of the same memory. An unused view goes
    at once: a root may have thousands of them, and each look at its views would see them all."""
    replace_alias(n, same)
    if not n.users:
        n.graph.erase_node(n)


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
    n: fx.Node,
    known: dict[tuple[fx.Node, Geometry], fx.Node],
    roots: dict[fx.Node, fx.Node],
) -> None:
    """Let the pointwise call ``n`` take the values whose views it takes, where that gives a view of
    the same elements."""
    value = n.meta["val"]
    sizes = _sizes_of_views(n, roots)
    if sizes is None or not value.is_contiguous() or not value.numel() or returned(n):
        return
    if sizes == tuple(value.shape) or not _viewable_as(value, sizes):
        return
    operands = _operands_for(n, sizes, roots)
    like = next((a for a in operands.values() if _is_like(a, sizes, value.dtype)), None)
    if like is None:
        return
    computed = _compute_from(graph, n, operands)
    computed.meta = {**n.meta, "val": like.meta["val"]}
    n.target, n.args, n.kwargs = _VIEW, (computed, list(value.shape)), {}
    roots[n] = computed
    known[computed, _geometry_of(value)] = n


def _compute_from(graph: fx.Graph, n: fx.Node, operands: dict[fx.Node, fx.Node]) -> fx.Node:
    """Add the call ``n`` once more, with others in place of its ``operands``."""
    with graph.inserting_before(n):
        computed = add_call(graph, n.target, n.args, n.kwargs)  # type: ignore[arg-type]
    for operand, other in operands.items():
        computed.replace_input_with(operand, other)
    return computed


def _sizes_of_views(n: fx.Node, roots: dict[fx.Node, fx.Node]) -> tuple[int, ...] | None:
    """Return the sizes of the value that the first operand of ``n`` shows as a whole; None if no
    operand is such a view."""
    views = (a for a in n.all_input_nodes if _is_whole_view(a, roots))
    view = next(views, None)
    if view is None:
        return None
    return tuple(roots[view].meta["val"].shape)


def _operands_for(
    n: fx.Node, sizes: tuple[int, ...], roots: dict[fx.Node, fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Return for each operand of call ``n`` what stands for it if the result has ``sizes``.

    Empty, if there is nothing at hand for one of them.
    """
    if any(isinstance(a, torch.Tensor) and a.dim() for a in (*n.args, *n.kwargs.values())):
        return {}  # a constant of the present shape
    shape = tuple(n.meta["val"].shape)
    operands: dict[fx.Node, fx.Node] = {}
    for a in n.all_input_nodes:
        other = _reshaped(a, shape, sizes, roots)
        if other is None:
            return {}
        operands[a] = other
    return operands


def _geometry_of(value: torch.Tensor) -> Geometry:
    return tuple(value.shape), tuple(value.stride()), 0, value.dtype


def _is_whole_view(n: fx.Node, roots: dict[fx.Node, fx.Node]) -> bool:
    return n in roots and _whole(n, roots[n])


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


def _is_like(n: fx.Node, sizes: tuple[int, ...], dtype: torch.dtype) -> bool:
    value = n.meta["val"]
    return tuple(value.shape) == sizes and value.dtype is dtype and _canonical(value)


def _reshaped(
    a: fx.Node, shape: tuple[int, ...], sizes: tuple[int, ...], roots: dict[fx.Node, fx.Node]
) -> fx.Node | None:
    """Return what stands for the operand ``a`` of a call if its result has ``sizes`` instead of
    ``shape``; None if there is nothing at hand."""
    if not static(a):
        return None
    value = a.meta["val"]
    if value.dim() == 0:
        return a
    if tuple(value.shape) == shape and _is_whole_view(a, roots):
        root = roots[a]
        if tuple(root.meta["val"].shape) == sizes:
            return root
    if _meets_same_elements(value.dim(), shape, sizes):
        return a
    return None


def _meets_same_elements(dim: int, shape: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Return whether an operand of ``dim`` dimensions, say a bias, meets the same elements in a
    result of ``sizes`` as in one of ``shape``. It does if the last dimensions are the same."""
    if dim >= len(shape) or dim > len(sizes) or shape == sizes:
        return False
    return shape[-dim:] == sizes[-dim:]
