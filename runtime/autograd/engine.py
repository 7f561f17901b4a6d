"""The backward pass: iterative, newest node first, each node once and only when all its cotangents have arrived."""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import torch

from ..levels import Value
from .nodes import LAST, AccumulateGrad, Edge, Input, Node, OpNode


def sum_to(g: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Undo broadcasting: sum ``g`` over the dimensions that a tensor of ``shape`` was expanded along."""
    lead = g.dim() - len(shape)
    dims = [*range(lead), *(i + lead for i, n in enumerate(shape) if n == 1 and g.shape[i + lead] != 1)]
    if dims:
        g = g.sum(dims, keepdim=True)
    return g.reshape(shape) if lead else g


def conform(g: torch.Tensor, meta: Any, node: Node, index: int) -> torch.Tensor:
    """Bring a cotangent to the shape and dtype of what it belongs to; a cotangent that cannot be is an error of ``node``'s rule."""
    shape, dtype = meta
    if g.shape != shape:
        lead = g.dim() - len(shape)
        if lead < 0 or any(n != m and n != 1 for n, m in zip(shape, g.shape[lead:], strict=True)):
            raise RuntimeError(
                f"Function {node.name()} returned an invalid gradient at index {index} - got {list(g.shape)} "
                f"but expected shape compatible with {list(shape)}"
            )
        g = sum_to(g, shape)
    if g.dtype is not dtype:
        if g.dtype.is_complex and not dtype.is_complex:
            g = torch.real(g)
        if g.dtype is not dtype:
            g = g.to(dtype)
    return g


def execute(
    level: Any,
    roots: Sequence[tuple[Edge, Any]],
    captures: Sequence[Edge | None] | None,
    *,
    create_graph: bool,
    keep_graph: bool,
    accumulate: bool,
) -> list[Any]:
    """Run the tape of ``level`` from ``roots`` (edge, cotangent) and return the cotangents at ``captures``.

    Cotangents are values of the level when ``create_graph``, else inner tensors. With ``captures`` only the nodes on a path to
    them run; ``accumulate`` adds what reaches leaves into their ``.grad``.
    """
    wanted: dict[Edge, list[int]] = {}
    for position, edge in enumerate(captures or ()):
        if edge is not None:
            wanted.setdefault(edge, []).append(position)
    results: list[Any] = [None] * len(captures or ())
    start = {node for (node, _), _ in roots}
    count = _dependencies(start)
    needed = None if captures is None else _needed(count, {node for node, _ in wanted})
    buffers: dict[Node, list[Any]] = {}
    ticket = itertools.count()
    heap: list[tuple[int, int, Node]] = []
    for (node, index), g in roots:
        _add(buffers, node, index, g)
    for node in start:
        if count[node] == 0 and (needed is None or node in needed):
            heapq.heappush(heap, (-node.seq, next(ticket), node))
    inside = {node for node, _ in wanted}
    while heap:
        node = heapq.heappop(heap)[2]
        grads = buffers.pop(node, None) or [None] * len(node.metas)
        if node.tensor_hooks or node.retained or node.pre_hooks:
            grads = _before(level, node, grads, create_graph)
        if node in inside:
            for i in range(len(node.metas)):
                for position in wanted.get((node, i), ()):
                    results[position] = grads[i]
        if isinstance(node, AccumulateGrad):
            # take it out of the list, so that the tensor may be kept without a copy if nobody else holds it
            if grads[0] is not None and accumulate and (captures is None or node in inside):
                _accumulate(level, node, grads, create_graph)
            continue
        if isinstance(node, Input):
            continue
        edges = node.edges
        mask: list[bool] | None = None
        if needed is not None:
            for e in edges:
                if e is not None and e[0] not in needed:
                    mask = [e is not None and e[0] in needed for e in edges]
                    break
        outs: tuple[Any, ...]
        if mask is not None and not any(mask):
            outs = ()
        elif isinstance(node, OpNode) and not any(g is not None for g in grads):
            outs = (None,) * len(edges)
        else:
            outs = node.apply(grads, mask, create_graph)
            if not keep_graph:
                node.release()
        if node.post_hooks:
            outs = _after(level, node, outs, grads, create_graph)
        del grads
        for i, g in enumerate(outs):
            edge = edges[i]
            if edge is None:
                continue
            following, index = edge
            if needed is not None and following not in needed:
                continue
            if g is not None:
                meta = following.metas[index]
                if g.shape != meta[0] or g.dtype is not meta[1]:
                    g = conform(g, meta, node, i)
                buffer = buffers.get(following)
                if buffer is None:
                    buffer = buffers[following] = [None] * len(following.metas)
                buffer[index] = g if buffer[index] is None else buffer[index] + g
            count[following] -= 1
            if count[following] == 0:
                heapq.heappush(heap, (-following.seq, next(ticket), following))
        g = None
        del outs
    return results


def _add(buffers: dict[Node, list[Any]], node: Node, index: int, g: Any) -> None:
    buffer = buffers.setdefault(node, [None] * len(node.metas))
    buffer[index] = g if buffer[index] is None else buffer[index] + g


def _dependencies(start: set[Node]) -> dict[Node, int]:
    """How many edges lead to each node that can be reached."""
    count = dict.fromkeys(start, 0)
    stack = list(start)
    while stack:
        for edge in stack.pop().edges:
            if edge is not None:
                node = edge[0]
                if node in count:
                    count[node] += 1
                else:
                    count[node] = 1
                    stack.append(node)
    return count


def _needed(count: dict[Node, int], ends: set[Node]) -> set[Node]:
    """The nodes from which some node of ``ends`` can be reached; edges always lead to older nodes, or to leaves."""
    needed: set[Node] = set()
    for node in sorted(count, key=lambda n: -1 if n.seq == LAST else n.seq):
        if node in ends or any(e is not None and e[0] in needed for e in node.edges):
            needed.add(node)
    return needed


def _accumulate(level: Any, node: AccumulateGrad, grads: list[Any], create_graph: bool) -> None:
    variable = node.variable
    g = grads[0]
    grads[0] = None
    old = variable._grad
    if create_graph and not torch.is_grad_enabled():  # ran on values for the sake of tangents, of which .grad keeps none
        create_graph, g = False, g._inner.detach()
    if create_graph:
        variable._grad = g if old is None else old + g
    elif old is None:
        # keep the buffer itself when nobody else can see it: two references are ours (the name here, getrefcount's argument)
        shared = sys.getrefcount(g) > 2 or g._base is not None or isinstance(g, Value)
        if shared or (g.layout is torch.strided and not g.is_contiguous()):
            g = g.clone(memory_format=torch.preserve_format) if g.layout is not torch.strided else g.clone()
        variable._grad = level.wrap(g, None)
    else:
        inner = old._inner if isinstance(old, Value) and old._level is level else old
        if old._edge is not None:
            variable._grad = level.wrap(inner + g, None)
        else:
            inner.add_(g)
    if variable._post_accumulate:
        for hook in list(variable._post_accumulate.values()):
            hook(variable)


def _show(level: Any, g: Any, create_graph: bool) -> Any:
    return g if g is None or create_graph else level.wrap(g, None)


def _hide(level: Any, g: Any, create_graph: bool) -> Any:
    return g._inner if not create_graph and isinstance(g, Value) and g._level is level else g


def _before(level: Any, node: Node, grads: list[Any], create_graph: bool) -> list[Any]:
    """Tensor hooks, then retained gradients, then node pre-hooks."""
    for i, hooks in (node.tensor_hooks or {}).items():
        for hook in list(hooks.values()):
            if grads[i] is None:
                continue
            new = hook(_show(level, grads[i], create_graph))
            if new is not None:
                grads[i] = _hide(level, new, create_graph)
    for i, ref in (node.retained or {}).items():
        variable = ref()
        if variable is not None and grads[i] is not None:
            shown = _show(level, grads[i], create_graph)
            variable._grad = shown if variable._grad is None else variable._grad + shown
    if node.pre_hooks:
        shown = tuple(_show(level, g, create_graph) for g in grads)
        for hook in list(node.pre_hooks.values()):
            new = hook(shown)
            if new is not None:
                shown = new if isinstance(new, tuple) else (new,)
        grads = [_hide(level, g, create_graph) for g in shown]
    return grads


def _after(level: Any, node: Node, outs: tuple[Any, ...], grads: list[Any], create_graph: bool) -> tuple[Any, ...]:
    shown_in = tuple(_show(level, g, create_graph) for g in outs)
    shown_out = tuple(_show(level, g, create_graph) for g in grads)
    for hook in list((node.post_hooks or {}).values()):
        new = hook(shown_in, shown_out)
        if new is not None:
            shown_in = new if isinstance(new, tuple) else (new,)
    return tuple(_hide(level, g, create_graph) for g in shown_in)
