"""Concatenations whose pieces are put in their places as soon as they are computed.

    cat([f(x1), f(x2), …])      # becomes y = empty(…); y[:n].copy_(f(x1)); y[n:m].copy_(f(x2)); …

The gradients of the samples of a convolution are computed some samples at a time and then
concatenated. A piece that is copied at once is still in the cache, and its memory is free for the
next one. Otherwise all pieces live until the last one is done, beside their copy."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ...trace.graph_edits import add_call
from ..capture.aliasing import may_alias
from .overloads import calls_of, static

aten = torch.ops.aten
_BYTES = 1 << 16  # of a piece on average, below which a call takes longer than it saves


def fill(graph: fx.Graph) -> None:
    """Take apart the concatenations of large pieces that nothing else uses."""
    for n in calls_of(graph):
        if n.target is aten.cat.default and not n.kwargs and static(n):
            pieces: Any = n.args[0]
            if (
                _pays(n, pieces)
                and all(_fits(p, n) for p in pieces)
                and _are_near(n, sorted(pieces))
            ):
                _take_apart(graph, n, pieces, min(pieces))


def _pays(n: fx.Node, pieces: Sequence[Any]) -> bool:
    value = n.meta["val"]
    several = len({*pieces}) == len(pieces) > 1
    return several and value.nbytes >= _BYTES * len(pieces) and bool(value.is_contiguous())


def _are_near(n: fx.Node, pieces: Sequence[fx.Node]) -> bool:
    """Whether what is computed between two pieces is no larger than ``n``. For so long the rest
    of ``n`` is memory that is not used yet, and a copy of all pieces is what it saves: so the
    peak does not rise."""
    size, node = 0, pieces[0].next
    while node is not n:
        size = 0 if node in pieces else size + _bytes_of(node)
        if size > n.meta["val"].nbytes:
            return False
        node = node.next
    return True


def _bytes_of(n: fx.Node) -> int:
    """Of the new memory that the call ``n`` returns, at most."""
    if (
        n.op != "call_function"
        or n.target is operator.getitem
        or (may_alias(n) and not isinstance(n.meta.get("val"), (list, tuple)))
    ):
        return 0
    return sum(
        t.nbytes for t in pytree.tree_leaves(n.meta.get("val")) if isinstance(t, torch.Tensor)
    )


def _fits(piece: Any, whole: fx.Node) -> bool:
    """Whether ``piece`` is computed for this concatenation alone, and a copy of it
    has the same bits."""
    if not static(piece) or piece.op != "call_function" or len(piece.users) > 1:
        return False
    mine, its = piece.meta["val"], whole.meta["val"]
    return mine.dtype is its.dtype and mine.device == its.device and mine.dim() == its.dim()


def _take_apart(graph: fx.Graph, n: fx.Node, pieces: Sequence[fx.Node], first: fx.Node) -> None:
    value = n.meta["val"]
    dim = (n.args[1] if len(n.args) > 1 else 0) % value.dim()
    with graph.inserting_before(first):
        whole = add_call(
            graph,
            aten.empty.memory_format,
            (list(value.shape),),
            {"dtype": value.dtype, "device": value.device},
        )
    whole.meta = dict(n.meta)
    for piece, start in zip(pieces, _starts(pieces, dim), strict=True):
        with graph.inserting_after(piece):
            place = add_call(
                graph, aten.slice.Tensor, (whole, dim, start, start + piece.meta["val"].shape[dim])
            )
        place.meta = dict(piece.meta)
        with graph.inserting_after(place):
            copied = add_call(graph, aten.copy_.default, (place, piece))
        copied.meta = dict(piece.meta)
    n.replace_all_uses_with(whole)
    graph.erase_node(n)


def _starts(pieces: Sequence[fx.Node], dim: int) -> Iterator[int]:
    start = 0
    for piece in pieces:
        yield start
        start += piece.meta["val"].shape[dim]
