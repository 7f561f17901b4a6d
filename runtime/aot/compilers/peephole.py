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


def _writes(n: fx.Node) -> bool:
    return isinstance(n.target, OpOverload) and n.target._schema.is_mutable


def layers(graph: fx.Graph) -> None:
    """The transposition of a weight and ``addmm`` with it become one call of torch's ``linear``,
    which does just these two below Python."""
    for n in calls_of(graph):
        if n.target is not aten.addmm.default or n.kwargs:
            continue
        bias, x, transposed = n.args
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
            for func, *_ in Witness(n.meta.get("val")).watch(_steps_of_linear, example(args), {})
        ] == [aten.t.default, n.target]:
            n.target, n.args = LINEAR, args
            graph.erase_node(transposed)


def squares(graph: fx.Graph) -> None:
    """``x ** 2`` becomes ``x * x``, which is how the kernels compute it."""
    for n in calls_of(graph):
        if (
            n.target is aten.pow.Tensor_Scalar
            and n.args[1] == 2
            and static(n)
            and n.meta["val"].dtype in _WIDE
        ):
            n.target, n.args = aten.mul.Tensor, (n.args[0], n.args[0])


def means(graph: fx.Graph) -> None:
    """The mean of all elements becomes their sum and a division, which is how the
    kernel computes it."""
    for n in calls_of(graph):
        if n.target is not aten.mean.default or n.kwargs:
            continue
        x: Any
        (x,) = n.args
        if not static(n) or not static(x):
            continue
        value = x.meta["val"]
        if value.device.type == "cpu" and value.dtype in _WIDE and 0 < value.numel() <= _EXACT:
            with graph.inserting_before(n):
                total = add_call(graph, aten.sum.default, (x,))
            total.meta = dict(n.meta)
            n.target, n.args = aten.div.Tensor, (total, value.numel())


def broadcasts(graph: fx.Graph) -> None:
    """What was expanded only for the sake of arithmetic with a tensor of that shape is left for the
    arithmetic to expand."""
    for n in calls_of(graph):
        if n.target is not aten.expand.default or not static(n) or not static(n.args[0]):
            continue
        source: Any = n.args[0]
        for user in list(n.users):
            if _has_shape_without(user, n):
                user.replace_input_with(n, source)
        if not n.users:
            graph.erase_node(n)


def _has_shape_without(user: fx.Node, n: fx.Node) -> bool:
    """Return whether ``user`` is arithmetic of ``n`` and a tensor that has the shape and the dtype
    of the result by itself."""
    if not _is_plain_arithmetic(user):
        return False
    others = [a for a in user.args if a is not n]
    if len(others) != 1:
        return False
    (other,) = others
    return static(other) and static(user) and kind(other) == kind(user) == kind(n)


def numbers(graph: fx.Graph) -> None:
    """A number in arithmetic with floating point tensors becomes a tensor now instead
    of at each call."""
    made: dict[tuple[str, torch.dtype], torch.Tensor] = {}
    for n in calls_of(graph):
        if not _is_plain_arithmetic(n) or not static(n) or not static(n.args[0]):
            continue
        x, number = n.args
        dtype = n.meta["val"].dtype
        if dtype not in _WIDE or x.meta["val"].dtype is not dtype:  # type: ignore[union-attr]
            continue  # of narrower types the kernels read numbers in a wider one
        if _is_exact_number(number):
            key = repr(number), dtype
            if key not in made:
                made[key] = factories.tensor(number, dtype=dtype, device="cpu")
            n.args = (x, made[key])


def _is_plain_arithmetic(n: fx.Node) -> bool:
    """Return whether ``n`` is arithmetic of two operands without options."""
    return n.target in _ARITHMETIC and len(n.args) == 2 and not n.kwargs


def _is_exact_number(a: object) -> bool:
    """Return whether ``a`` is a number of Python that float32 has, or that kernels round."""
    return type(a) is float or (type(a) is int and abs(a) <= _EXACT)


def overwrites(graph: fx.Graph) -> None:
    """A pointwise call writes its result over its first argument, or either of two that commute,
    where that is a buffer that the graph made itself, to which no view refers and which nothing
    uses later: neither a call nor the caller, since the output uses what is returned."""
    last_use = _last_uses_of_buffers(graph)
    for n in calls_of(graph):
        if not static(n) or (in_place(n.target) is None and with_out(n.target) is None):
            continue
        candidates = n.args[:2] if _commutes(n) else n.args[:1]
        for first in candidates:
            if not isinstance(first, fx.Node) or last_use.get(first) is not n:
                continue
            if same_layout(first, n):
                _write_over(n, first)
                break


def _last_uses_of_buffers(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Return what the graph makes itself and no view shows, each with the node that uses it
    last."""
    last_use = {a: n for n in graph.nodes for a in n.all_input_nodes}
    views = set(filter(may_alias, graph.nodes))
    return {
        a: n for a, n in last_use.items() if fresh(a) and static(a) and views.isdisjoint(a.users)
    }


def _write_over(n: fx.Node, first: fx.Node) -> None:
    """Let the pointwise call ``n`` write its result to ``first``, one of its operands."""
    others = n.args[1:] if first is n.args[0] else n.args[:1]
    func, out = in_place(n.target), with_out(n.target)
    n.args = (first, *others)
    if func is not None:
        n.target = func
    elif out is not None:
        n.target, n.kwargs = out[0], {**n.kwargs, out[1]: first}


def _commutes(n: fx.Node) -> bool:
    record = op_of(n.target).record
    return record is not None and record.commutes and len(n.args) == 2 and not n.kwargs
