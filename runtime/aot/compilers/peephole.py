"""Rewrites of a graph that is about to be run as Python: the same bits from fewer
and cheaper calls.

They are for :mod:`.replay` alone, which no compiler sees, and work on a copy of the graph. They
name ops, as each rests on what kernels do with numbers bit for bit, which is no fact of an op.
:func:`layers` asks ATen itself what ``linear`` is made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ...rules.ops import op_of
from ...seam import factories
from ...torch_private.dispatcher import OpOverload
from ...trace.graph_edits import add_call, copy_of, without_unused
from ..capture.aliasing import LINEAR, fresh, may_alias
from .batching import batch, gather
from .constants import fold, without_neutral
from .memory_rewrites import fill, poolings, use_huge_pages
from .overloads import calls_of, in_place, kind, same_layout, static, with_out
from .placing import Destination, place
from .replacing import without_copies, without_repetitions
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
    """Return a copy of ``graph`` with every rewrite of this module, and what :func:`.placing.place`
    says of it.

    A graph that writes to a value of its own, as for a write through ``unfold``, gets those alone
    that look at single calls. For the others a value is the same at any time.
    """
    copied = copy_of(graph)
    if any(map(_writes, calls_of(copied))):
        for rewrite in (layers, means, squares, broadcasts, numbers, overwrites, poolings):
            rewrite(copied)
        return copied, {}
    for rewrite in (
        fold,
        without_repetitions,
        without_copies,
        shorter_views,
        without_neutral,
        without_unused,
    ):
        rewrite(copied)
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
    sums(copied)
    batches = gather(copied)
    placed = place(copied, destinations)
    overwrites(copied)
    batch(copied, batches)
    poolings(copied)
    fill(copied)
    use_huge_pages(copied)
    return copied, placed


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def layers(graph: fx.Graph) -> None:
    """The transposition of a weight and ``addmm`` with it become one call of torch's ``linear``,
    which does just these two below Python."""
    for node in calls_of(graph):
        if node.target is not aten.addmm.default or node.kwargs:
            continue
        bias, x, transposed = node.args
        if (
            not isinstance(transposed, fx.Node)
            or transposed.target is not aten.t.default
            or len(transposed.users) > 1
        ):
            continue
        (weight,) = transposed.args
        args = (x, weight, bias)
        if [
            func
            for func, *_ in Witness(node.meta.get("val")).watch(_steps_of_linear, example(args), {})
        ] == [aten.t.default, node.target]:
            node.target, node.args = LINEAR, args
            graph.erase_node(transposed)


def squares(graph: fx.Graph) -> None:
    """``x ** 2`` becomes ``x * x``, which is how the kernels compute it."""
    for node in calls_of(graph):
        if (
            node.target is aten.pow.Tensor_Scalar
            and node.args[1] == 2
            and static(node)
            and node.meta["val"].dtype in _WIDE
        ):
            node.target, node.args = aten.mul.Tensor, (node.args[0], node.args[0])


def means(graph: fx.Graph) -> None:
    """The mean of all elements becomes their sum and a division, which is how the
    kernel computes it."""
    for node in calls_of(graph):
        if node.target is not aten.mean.default or node.kwargs:
            continue
        x: Any
        (x,) = node.args
        if not static(node) or not static(x):
            continue
        value = x.meta["val"]
        if value.device.type == "cpu" and value.dtype in _WIDE and 0 < value.numel() <= _EXACT:
            with graph.inserting_before(node):
                total = add_call(graph, aten.sum.default, (x,))
            total.meta = dict(node.meta)
            node.target, node.args = aten.div.Tensor, (total, value.numel())


def broadcasts(graph: fx.Graph) -> None:
    """What was expanded only for the sake of arithmetic with a tensor of that shape is left for the
    arithmetic to expand."""
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
    """Return whether ``user`` is arithmetic of ``node`` and a tensor that has the shape and the
    dtype of the result by itself."""
    if not _is_plain_arithmetic(user):
        return False
    others = [argument for argument in user.args if argument is not node]
    if len(others) != 1:
        return False
    (other,) = others
    return static(other) and static(user) and kind(other) == kind(user) == kind(node)


def numbers(graph: fx.Graph) -> None:
    """A number in arithmetic with floating point tensors becomes a tensor now instead
    of at each call."""
    made: dict[tuple[str, torch.dtype], torch.Tensor] = {}
    for node in calls_of(graph):
        if not _is_plain_arithmetic(node) or not static(node) or not static(node.args[0]):
            continue
        x, number = node.args
        dtype = node.meta["val"].dtype
        if dtype not in _WIDE or x.meta["val"].dtype is not dtype:  # type: ignore[union-attr]
            continue  # of narrower types the kernels read numbers in a wider one
        if _is_exact_number(number):
            key = repr(number), dtype
            if key not in made:
                made[key] = factories.tensor(number, dtype=dtype, device="cpu")
            node.args = (x, made[key])


def _is_plain_arithmetic(node: fx.Node) -> bool:
    """Return whether ``node`` is arithmetic of two operands without options."""
    return node.target in _ARITHMETIC and len(node.args) == 2 and not node.kwargs


def _is_exact_number(argument: object) -> bool:
    """Return whether ``argument`` is a number of Python that float32 has, or that kernels round."""
    return type(argument) is float or (type(argument) is int and abs(argument) <= _EXACT)


def overwrites(graph: fx.Graph) -> None:
    """A pointwise call writes its result over its first argument, or either of two that commute,
    where that is a buffer that the graph made itself, to which no view refers and which nothing
    uses later: neither a call nor the caller, since the output uses what is returned."""
    last_use = _last_uses_of_buffers(graph)
    for node in calls_of(graph):
        if not static(node) or (in_place(node.target) is None and with_out(node.target) is None):
            continue
        candidates = node.args[:2] if _commutes(node) else node.args[:1]
        for first in candidates:
            if not isinstance(first, fx.Node) or last_use.get(first) is not node:
                continue
            if same_layout(first, node):
                _write_over(node, first)
                break


def _last_uses_of_buffers(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Return what the graph makes itself and no view shows, each with the node that uses it
    last."""
    last_use = {a: n for n in graph.nodes for a in n.all_input_nodes}
    views = set(filter(may_alias, graph.nodes))
    return {
        a: n for a, n in last_use.items() if fresh(a) and static(a) and views.isdisjoint(a.users)
    }


def _write_over(node: fx.Node, first: fx.Node) -> None:
    """Let the pointwise call ``node`` write its result to ``first``, one of its operands."""
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
