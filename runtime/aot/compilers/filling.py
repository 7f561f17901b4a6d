"""Concatenations whose pieces are put in their places as soon as they are computed.

    cat([f(x1), f(x2), …])      # becomes y = empty(…); y[:n].copy_(f(x1)); y[n:m].copy_(f(x2)); …

The gradients of the samples of a convolution are computed some samples at a time and then concatenated. A piece that is copied at once is
still in the cache, and its memory is free for the next one. Otherwise all pieces live until the last one is done, beside their copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from ...func.graph_edits import add_call
from .overloads import calls_of, static

aten = torch.ops.aten
_BYTES = 1 << 16  # of a piece on average, below which a call takes longer than it saves


def fill(graph: fx.Graph) -> None:
    """Take apart the concatenations of large pieces that nothing else uses."""
    for n in calls_of(graph):
        pieces = _pieces(n)
        if pieces:
            _take_apart(graph, n, pieces)


def _pieces(n: fx.Node) -> list[fx.Node]:
    """What the call ``n`` concatenates; nothing if it stays as it is."""
    if n.target is not aten.cat.default or n.kwargs or not static(n):
        return []
    pieces: Any = n.args[0]
    value = n.meta["val"]
    worth = len(pieces) > 1 and value.nbytes >= _BYTES * len(pieces)
    return list(pieces) if worth and value.is_contiguous() and len({*pieces}) == len(pieces) and all(_fits(p, n) for p in pieces) else []


def _fits(piece: Any, whole: fx.Node) -> bool:
    """Whether ``piece`` is computed for this concatenation alone, and a copy of it has the same bits."""
    if not static(piece) or piece.op != "call_function" or len(piece.users) > 1:
        return False
    mine, its = piece.meta["val"], whole.meta["val"]
    return mine.dtype is its.dtype and mine.device == its.device and mine.dim() == its.dim()


def _take_apart(graph: fx.Graph, n: fx.Node, pieces: list[fx.Node]) -> None:
    value = n.meta["val"]
    dim = (n.args[1] if len(n.args) > 1 else 0) % value.dim()
    order = {node: i for i, node in enumerate(graph.nodes)}
    with graph.inserting_before(min(pieces, key=order.__getitem__)):
        whole = add_call(graph, aten.empty.memory_format, (list(value.shape),), {"dtype": value.dtype, "device": value.device})
    whole.meta = dict(n.meta)
    for piece, start in zip(pieces, _starts(pieces, dim), strict=True):
        with graph.inserting_after(piece):
            place = add_call(graph, aten.slice.Tensor, (whole, dim, start, start + piece.meta["val"].shape[dim]))
        place.meta = dict(piece.meta)
        with graph.inserting_after(place):
            copied = add_call(graph, aten.copy_.default, (place, piece))
        copied.meta = dict(piece.meta)
    n.replace_all_uses_with(whole)
    graph.erase_node(n)


def _starts(pieces: list[fx.Node], dim: int) -> Iterator[int]:
    start = 0
    for piece in pieces:
        yield start
        start += piece.meta["val"].shape[dim]
