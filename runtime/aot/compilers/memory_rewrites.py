"""Rewrite a graph so that results lie in better memory: the same bits, sooner.

The pieces of a concatenation are put in their places as soon as they are computed. Large results
lie in huge pages. Images are pooled with channels last.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from ...huge_pages import LARGE, empty_in_huge_pages
from ...torch_private.dispatcher import OpOverload
from ...torch_private.native_functions import max_pool2d_with_indices
from ...torch_private.pytrees import pytree
from ...trace.graph_edits import add_call
from ..capture.aliasing import may_alias
from .overloads import calls_of, on_cpu, static, with_out

aten = torch.ops.aten

# --- concatenations -------------------------------------------------------------------------------
#
#     cat([f(x1), f(x2), …])      # becomes y = empty(…); y[:n].copy_(f(x1)); y[n:m].copy_(f(x2)); …
#
# The gradients of the samples of a convolution are computed some samples at a time and then
# concatenated. A piece that is copied at once is still in the cache, and its memory is free for the
# next one. Otherwise all pieces live until the last one is done, together with their copy.

_BYTES = 1 << 16  # of a piece on average, below which a call takes longer than it saves


def fill(graph: fx.Graph) -> None:
    """Take apart the concatenations of large pieces that nothing else uses."""
    for node in calls_of(graph):
        if node.target is aten.cat.default and not node.kwargs and static(node):
            pieces: Any = node.args[0]
            if not _pays(node, pieces) or not all(_fits(piece, node) for piece in pieces):
                continue
            # the whole lives from the first piece on, so these should not be far apart
            if _are_near(node, sorted(pieces)):
                _take_apart(graph, node, pieces, min(pieces))


def _pays(node: fx.Node, pieces: Sequence[object]) -> bool:
    """Return whether the pieces are different ones, and large enough."""
    value = node.meta["val"]
    several = len({*pieces}) == len(pieces) > 1
    return several and value.nbytes >= _BYTES * len(pieces) and bool(value.is_contiguous())


def _are_near(whole: fx.Node, pieces: Sequence[fx.Node]) -> bool:
    """Return whether what is computed between two pieces is no larger than ``whole``.

    Between them the rest of ``whole`` is memory that is not used yet. In exchange no copy of all
    pieces is needed, so the peak does not rise.
    """
    size, node = 0, pieces[0].next
    while node is not whole:
        # each piece begins a new stretch
        size = 0 if node in pieces else size + _bytes_of(node)
        if size > whole.meta["val"].nbytes:
            return False
        node = node.next
    return True


def _bytes_of(node: fx.Node) -> int:
    """Return the most bytes of new memory that the call ``node`` returns."""
    if node.op != "call_function" or node.target is operator.getitem:
        return 0
    # of several results only some may be views
    if may_alias(node) and not isinstance(node.meta.get("val"), (list, tuple)):
        return 0
    return sum(
        tensor.nbytes
        for tensor in pytree.tree_leaves(node.meta.get("val"))
        if isinstance(tensor, torch.Tensor)
    )


def _fits(piece: fx.Node, whole: fx.Node) -> bool:
    """Return whether ``piece`` is computed for this concatenation alone, which leaves its bits."""
    if not static(piece) or piece.op != "call_function" or len(piece.users) > 1:
        return False
    mine, its = piece.meta["val"], whole.meta["val"]
    return mine.dtype is its.dtype and mine.device == its.device and mine.dim() == its.dim()


def _take_apart(graph: fx.Graph, node: fx.Node, pieces: Sequence[fx.Node], first: fx.Node) -> None:
    """Replace concatenation ``node`` by a copy of each piece, as soon as it is computed.

    ``first``: the first piece in program order.
    """
    value = node.meta["val"]
    dim = (node.args[1] if len(node.args) > 1 else 0) % value.dim()
    with graph.inserting_before(first):
        whole = add_call(
            graph,
            aten.empty.memory_format,
            (list(value.shape),),
            {"dtype": value.dtype, "device": value.device},
        )
    whole.meta = dict(node.meta)
    # each piece is free as soon as it is copied
    for piece, start in zip(pieces, _starts(pieces, dim), strict=True):
        with graph.inserting_after(piece):
            place = add_call(
                graph, aten.slice.Tensor, (whole, dim, start, start + piece.meta["val"].shape[dim])
            )
        place.meta = dict(piece.meta)
        with graph.inserting_after(place):
            copied = add_call(graph, aten.copy_.default, (place, piece))
        copied.meta = dict(piece.meta)
    node.replace_all_uses_with(whole)
    graph.erase_node(node)


def _starts(pieces: Sequence[fx.Node], dim: int) -> Iterator[int]:
    """Yield the start of each piece along ``dim``."""
    start = 0
    for piece in pieces:
        yield start
        start += piece.meta["val"].shape[dim]


# --- large results --------------------------------------------------------------------------------
#
#     y = relu(x)      # of 16 MB becomes y = empty_in_huge_pages(…); relu(x, out=y)
#
# Memory that is new comes in huge pages, see :mod:`runtime.huge_pages`. The kernel is the same, as
# it writes to a tensor that its caller made.

_PRODUCTS: dict[object, tuple[Callable[..., object], str]] = {
    aten.mm.default: (aten.mm.out, "out"),
    aten.bmm.default: (aten.bmm.out, "out"),
    aten.addmm.default: (aten.addmm.out, "out"),
}


def use_huge_pages(graph: fx.Graph) -> None:
    """Let kernels that can do so write their large results to memory in huge pages."""
    for node in calls_of(graph):
        if not on_cpu(node):
            continue
        value = node.meta["val"]
        if value.nbytes < LARGE or not value.is_contiguous():
            continue
        layout = (list(value.shape), value.dtype, value.device)
        # other options, such as pinned memory, have no counterpart
        if node.target is aten.empty.memory_format and node.kwargs.keys() <= {"dtype", "device"}:
            node.target, node.args, node.kwargs = empty_in_huge_pages, layout, {}
        elif (product := _PRODUCTS.get(node.target) or _with_out(node.target)) is not None:
            func, out = product
            with graph.inserting_before(node):
                memory = add_call(graph, empty_in_huge_pages, layout)
            memory.meta = dict(node.meta)
            node.target, node.kwargs = func, {**node.kwargs, out: memory}


def _with_out(func: object) -> tuple[Callable[..., object], str] | None:
    return with_out(func) if isinstance(func, OpOverload) else None


# --- maximum pooling ------------------------------------------------------------------------------
#
# Each image gets the memory format in which the kernel is fast.
#
# ATen has two kernels for it on the CPU. The one for contiguous images compares one element after
# the other, with branches that a processor cannot predict. The one for images whose channels lie
# side by side compares vectors of channels. Both choose the same elements, also among equal ones
# and NaNs, so the bits are the same. For 8 images of 16 channels, 32 × 32, the second takes 40 % of
# the time of the first, transpositions included.

_with_indices: Any = torch.ops.aten.max_pool2d_with_indices.default
_last = torch.channels_last
_CHANNELS = 16  # a vector of AVX-512
_COMPARED = 1 << 15  # elements compared, below which the transpositions take longer than they save
# elements of an input, beyond which its transposed copy is too large for the caches
_ELEMENTS = 1 << 22


def poolings(graph: fx.Graph) -> None:
    """Replace maximum pooling of images by :func:`max_pool2d`, unless their sizes are known and it
    would take longer."""
    for node in graph.nodes:
        if node.op != "call_function" or node.target is not _with_indices or node.kwargs:
            continue
        value: Any = node.args[0].meta.get("val")
        if not _are_images(value):
            continue
        # with symbols for sizes, each call decides
        if not all(type(size) is int for size in value.shape) or pays(value, *node.args[1:3]):
            node.target = max_pool2d


def _are_images(value: object) -> bool:
    """Return whether ``value`` is a batch of images for which both kernels exist."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return value.is_cpu and value.dtype is torch.float32 and value.dim() == 4


def pays(x: torch.Tensor, window: Sequence[int], stride: Sequence[int] = ()) -> bool:
    """Return whether it takes less time to transpose images ``x`` than that saves."""
    if x.shape[1] < _CHANNELS or min(x.shape[2:]) == 1 or not x.is_contiguous():
        return False
    elements = x.numel()
    return elements <= _ELEMENTS and elements * _area(window) >= _COMPARED * _area(stride or window)


def _area(sides: Sequence[int]) -> int:
    """Return the number of elements in a window. One side is that of a square."""
    return math.prod(sides) if len(sides) == 2 else sides[0] ** 2


def max_pool2d(
    x: torch.Tensor, window: Sequence[int], stride: Sequence[int] = (), *rest: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``aten.max_pool2d_with_indices`` of the same arguments."""
    if not pays(x, window, stride):
        result: tuple[torch.Tensor, torch.Tensor] = max_pool2d_with_indices(
            x, window, stride, *rest
        )
        return result
    pooled, indices = max_pool2d_with_indices(
        x.contiguous(memory_format=_last), window, stride, *rest
    )
    # `contiguous` would return an image of one element as it is, whose strides are those of
    # the other format
    return pooled.clone(memory_format=torch.contiguous_format), indices.clone(
        memory_format=torch.contiguous_format
    )
