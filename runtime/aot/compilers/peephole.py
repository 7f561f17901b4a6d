"""Rewrite a graph that is about to run as Python: the same bits from fewer and cheaper calls.

The rewrites are for :mod:`.replay` alone and work on a copy of the graph, which no compiler sees.
They name ops, as each relies on the exact bits of kernels, and these are no fact of an op.
:func:`layers` asks ATen itself which calls ``linear`` consists of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ...rules.ops import op_of
from ...seam import factories
from ...seam.graph_walks import last_users
from ...trace.call_facts import writes
from ...trace.graph_edits import add_call, copy_of, without_unused
from ..capture.aliasing import LINEAR, fresh, may_alias
from .batching import batch, gather
from .constants import fold, without_neutral
from .memory_rewrites import fill, poolings, use_huge_pages
from .ordering import refuse_first
from .overloads import calls_of, in_place, kind, same_layout, static, with_out
from .placing import Destination, place
from .replacing import without_copies, without_gaps, without_repetitions
from .sums import sums
from .view_calls import shorter_views
from .witness import Witness, example

aten = torch.ops.aten
_steps_of_linear = aten.linear.default.decompose
# Here and in no record: that a kernel gives the same bits for a number and for a tensor of it, and
# expands what it is given, is a fact of kernels that only a replay makes use of.
# `tests/runtime/aot/compilers/test_peephole.py` holds it for these four.
_ARITHMETIC = frozenset((aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor))
_WIDE = (torch.float32, torch.float64)
_EXACT = 1 << 24  # integers up to here are numbers of float32


def rewritten(
    graph: fx.Graph, destinations: Sequence[Destination] = ()
) -> tuple[fx.Graph, Mapping[int, int]]:
    """Return a copy of ``graph`` with every rewrite of this module, and the result of
    :func:`.placing.place`.

    A graph that writes to a value of its own, as for a write through ``unfold``, gets only the
    rewrites that look at single calls. The others rely on values that never change.
    """
    copied = copy_of(graph)
    if any(map(writes, calls_of(copied))):
        for rewrite in (layers, means, squares, broadcasts, numbers, overwrites, poolings):
            rewrite(copied)
        return copied, {}
    for rewrite in (
        fold,
        without_repetitions,
        without_copies,
        without_gaps,
        shorter_views,
        without_neutral,
        without_unused,
    ):
        rewrite(copied)
    # the cheaper calls may be repetitions too
    for rewrite in (
        layers,
        means,
        squares,
        broadcasts,
        numbers,
        without_repetitions,
        without_unused,
    ):
        rewrite(copied)
    refuse_first(copied)
    # order the calls, then decide where results lie, and only then merge the calls of a batch
    sums(copied)
    batches = gather(copied)
    placed = place(copied, destinations)
    overwrites(copied)
    batch(copied, batches)
    poolings(copied)
    fill(copied)
    use_huge_pages(copied)
    return copied, placed


def layers(graph: fx.Graph) -> None:
    """Replace the transposition of a weight and ``addmm`` with it by a call of torch's ``linear``.

    It does just these two below Python.
    """
    for node in calls_of(graph):
        if node.target is not aten.addmm.default or node.kwargs:
            continue
        bias, x, transposed = node.args
        if not isinstance(transposed, fx.Node) or transposed.target is not aten.t.default:
            continue
        # with another user the transposition would still run
        if len(transposed.users) > 1:
            continue
        # linear may choose another kernel for some sizes: only these two calls give the same bits
        (weight,) = transposed.args
        args = (x, weight, bias)
        witness = Witness(node.meta.get("val"))
        steps = [func for func, *_ in witness.watch(_steps_of_linear, example(args), {})]
        if steps == [aten.t.default, node.target]:
            node.target, node.args = LINEAR, args
            graph.erase_node(transposed)


def squares(graph: fx.Graph) -> None:
    """Replace ``x ** 2`` by ``x * x``, which is how the kernels compute it."""
    for node in calls_of(graph):
        if node.target is not aten.pow.Tensor_Scalar or node.args[1] != 2:
            continue
        if static(node) and node.meta["val"].dtype in _WIDE:
            node.target, node.args = aten.mul.Tensor, (node.args[0], node.args[0])


def means(graph: fx.Graph) -> None:
    """Replace the mean of all elements by their sum and a division, as the kernel computes it."""
    for node in calls_of(graph):
        if node.target is not aten.mean.default or node.kwargs:
            continue
        x: Any
        (x,) = node.args
        if not static(node) or not static(x):
            continue
        value = x.meta["val"]
        # so many elements are a number that the dtype has exactly
        if value.device.type == "cpu" and value.dtype in _WIDE and 0 < value.numel() <= _EXACT:
            with graph.inserting_before(node):
                total = add_call(graph, aten.sum.default, (x,))
            total.meta = dict(node.meta)
            node.target, node.args = aten.div.Tensor, (total, value.numel())


def broadcasts(graph: fx.Graph) -> None:
    """Leave out an expansion for arithmetic with a tensor of that shape: the arithmetic expands."""
    for node in calls_of(graph):
        if node.target is not aten.expand.default or not static(node) or not static(node.args[0]):
            continue
        source: Any = node.args[0]
        for user in list(node.users):
            if _has_shape_without(user, node):
                user.replace_input_with(node, source)
        if not node.users:
            graph.erase_node(node)


def _has_shape_without(user: fx.Node, node: fx.Node) -> bool:
    """Return whether ``user`` is arithmetic of ``node`` and a tensor of the shape and dtype of the
    result."""
    if not _is_plain_arithmetic(user):
        return False
    others = [argument for argument in user.args if argument is not node]
    if len(others) != 1:
        return False
    (other,) = others
    return static(other) and static(user) and kind(other) == kind(user) == kind(node)


def numbers(graph: fx.Graph) -> None:
    """Replace a number in arithmetic with floating point tensors by a tensor.

    A call would create this tensor each time.
    """
    tensors: dict[tuple[str, torch.dtype], torch.Tensor] = {}
    for node in calls_of(graph):
        if not _is_plain_arithmetic(node) or not static(node) or not static(node.args[0]):
            continue
        x, number = node.args
        dtype = node.meta["val"].dtype
        # for narrower types the kernels read numbers in a wider one
        if dtype not in _WIDE or x.meta["val"].dtype is not dtype:  # type: ignore[union-attr]
            continue
        if _is_exact_number(number):
            key = repr(number), dtype
            if key not in tensors:
                tensors[key] = factories.tensor(number, dtype=dtype, device="cpu")
            node.args = (x, tensors[key])


def _is_plain_arithmetic(node: fx.Node) -> bool:
    """Return whether ``node`` is arithmetic of two operands without options."""
    return node.target in _ARITHMETIC and len(node.args) == 2 and not node.kwargs


def _is_exact_number(argument: object) -> bool:
    """Return whether ``argument`` is a number of Python that float32 has, or that kernels round."""
    return type(argument) is float or (type(argument) is int and abs(argument) <= _EXACT)


def overwrites(graph: fx.Graph) -> None:
    """Let pointwise calls write their results over an argument.

    It is the first argument, or either of two that commute. It must be a buffer of the graph itself
    which no view shows, and which nothing uses later. The output is a use too, so a result of the
    graph is never written over.
    """
    last_use = _last_uses_of_buffers(graph)
    for node in calls_of(graph):
        if not static(node) or (in_place(node.target) is None and with_out(node.target) is None):
            continue
        candidates = node.args[:2] if _commutes(node) else node.args[:1]
        for first in candidates:
            if not isinstance(first, fx.Node) or last_use.get(first) is not node:
                continue
            # the result would have the strides of the buffer
            if same_layout(first, node):
                _write_over(node, first)
                break


def _last_uses_of_buffers(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Return the buffers of the graph itself that no view shows, each with its last user."""
    views = set(filter(may_alias, graph.nodes))
    return {
        buffer: user
        for buffer, user in last_users(graph).items()
        if fresh(buffer) and static(buffer) and views.isdisjoint(buffer.users)
    }


def _write_over(node: fx.Node, first: fx.Node) -> None:
    """Let the pointwise call ``node`` write its result to ``first``, one of its operands."""
    # if the operands commute, the one that is written over comes first
    others = node.args[1:] if first is node.args[0] else node.args[:1]
    func, out = in_place(node.target), with_out(node.target)
    node.args = (first, *others)
    if func is not None:
        node.target = func
    elif out is not None:
        node.target, node.kwargs = out[0], {**node.kwargs, out[1]: first}


def _commutes(node: fx.Node) -> bool:
    record = op_of(node.target).record
    return record is not None and record.commutes and len(node.args) == 2 and not node.kwargs
