"""Compute new values of arguments in the tensors of the caller.

    def step(p, g):
        p.sub_(0.1 * g)

The graph of ``step`` writes to nothing and returns the new value of ``p``, which is then copied to
the caller's ``p``. Where nothing reads the former value any more, the replay computes the new one
in the caller's memory. Then there is no second buffer, and no copy.

A compiler learns of this from ``module.meta["destinations"]``, and may ignore it. One that makes
use of it says so on the function that it returns: ``function.placed``.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from ...seam.graph_walks import results_of
from ...trace.graph_edits import refuses
from ..capture.boundary import Input
from ..capture.joint import Joint
from .overloads import SETS, in_place, same_layout, static, with_out
from .replacing import shown

DESTINATIONS = "destinations"


@dataclass(frozen=True)
class Destination:
    """Say that result ``result`` of a graph is the new value of its argument ``argument``.

    ``counted``: by how much the program advances the version of the argument.
    """

    result: int
    argument: int
    counted: int


def destinations(joint: Joint) -> tuple[Destination, ...]:
    """Return the inputs of a program without a backward that may be written while its graph runs.

    They are plain tensors that share memory with no other argument. Their geometry does not change,
    and their versions count the write.
    """
    if joint.layouts is not None:
        return ()
    # a write to one would show in another before the graph has read that
    shared = set(itertools.chain.from_iterable(group.members for group in joint.groups))
    placeable = []
    for result, argument in enumerate(joint.boundary.written):
        written = joint.boundary.inputs[argument]
        if argument not in shared and _counts_plain_write(written):
            placeable.append(Destination(result, argument, written.counted))
    return tuple(placeable)


def _counts_plain_write(written: Input) -> bool:
    """Return whether an argument only gets new elements and a new version."""
    if written.reshaped or written.begins or written.overwritten:
        return False
    return written.tangent is None and written.replaced is None and bool(written.counted)


@dataclass(frozen=True)
class _Chain:
    """List calls that may all write to ``target``, the last one first.

    Each takes the result of the next one, and nothing else does.
    """

    destination: Destination
    target: fx.Node
    calls: list[fx.Node]


def place(graph: fx.Graph, wanted: Sequence[Destination]) -> Mapping[int, int]:
    """Let pointwise calls write to the arguments that take their results, in place.

    Return for each such argument by how much its version is behind that of the program then, as one
    call may stand for several writes.
    """
    if not wanted:
        return {}
    # find all chains before the first write, as `shown` takes a call that writes for a view
    chains = _find_chains(graph, wanted)
    behind: dict[int, int] = {}
    for chain in chains:
        for call in chain.calls:
            _write(call, chain.target, chain.calls)
        if chain.calls:
            behind[chain.destination.argument] = chain.destination.counted - len(chain.calls)
    return behind


def _find_chains(graph: fx.Graph, wanted: Sequence[Destination]) -> list[_Chain]:
    """Find for each of ``wanted`` the calls that may write to its argument."""
    inputs = graph.find_nodes(op="placeholder")
    output = graph.output_node()
    results = results_of(graph)
    # a value that is returned twice has to become two tensors
    times = Counter(results)
    order = {node: index for index, node in enumerate(graph.nodes)}
    # up to here the graph may raise, as the call is for another program, and must write nothing
    refusal = max((index for node, index in order.items() if refuses(node)), default=-1)
    chains = []
    for destination in wanted:
        value, target = results[destination.result], inputs[destination.argument]
        if isinstance(value, fx.Node) and times[value] == 1 and _is_placeable(target):
            calls = _calls_into(target, value, output, order, refusal)
            chains.append(_Chain(destination, target, calls[: destination.counted]))
    return chains


def _is_placeable(target: fx.Node) -> bool:
    """Return whether a kernel may write to ``target``: it is no lazy conjugate or negative."""
    return static(target) and not target.meta["val"].is_conj() and not target.meta["val"].is_neg()


def _calls_into(
    target: fx.Node, value: fx.Node, output: fx.Node, order: Mapping[fx.Node, int], refusal: int
) -> list[fx.Node]:
    """Return the calls behind place ``refusal`` that may write to ``target``, the last one first.

    They are ``value``, the operand of ``value`` if nothing else needs that, and so on.
    """
    views = shown(target)
    # a call that writes earlier would change what another one still reads
    first = max(_last_read(views, order), refusal + 1)
    calls: list[fx.Node] = []
    call: fx.Node | None = value if _may_write_to(value, target, views) else None
    later: fx.Node | None = None
    # from the new value back: a call may write there if the one that takes its result does
    while call is not None and first <= order[call] and _is_spent(call, later, output, order):
        calls.append(call)
        later = call
        operands = (node for node in call.all_input_nodes if node is not target)
        call = next((node for node in operands if _may_write_to(node, target, views)), None)
    return calls


def _last_read(memory: Sequence[fx.Node], order: Mapping[fx.Node, int]) -> int:
    """Return the place of the last node that uses one of ``memory``; -1 if none does.

    The output is such a node too, and behind all others.
    """
    readers = itertools.chain.from_iterable(node.users for node in memory)
    return max(map(order.__getitem__, readers), default=-1)


def _is_spent(
    node: fx.Node, later: fx.Node | None, output: fx.Node, order: Mapping[fx.Node, int]
) -> bool:
    """Return whether ``later`` may write over the memory of ``node``.

    Nothing reads this memory afterwards, and ``later`` reads it as ``node`` alone, not by a view.
    None for ``later``: ``node`` is the new value itself, of which no view may be returned.
    """
    memory = shown(node)
    views = [value for value in memory if value is not node]
    if later is None:
        return not any(output in view.users for view in views)
    last_use = _last_read(memory, order)
    return last_use == order[later] and not any(view in later.all_input_nodes for view in views)


def _may_write_to(node: fx.Node, target: fx.Node, views: Sequence[fx.Node]) -> bool:
    """Return whether the call ``node`` may write its result to ``target``.

    It may read ``target`` itself, as each element is read before it is written, and no view of it.
    """
    if node.op != "call_function" or not static(node) or not same_layout(node, target):
        return False
    if node.target not in SETS and with_out(node.target) is None:
        return False
    return not any(view in node.all_input_nodes for view in views if view is not target)


def _write(node: fx.Node, target: fx.Node, calls: Sequence[fx.Node]) -> None:
    """Let ``node`` write to ``target``, in which the results of ``calls`` lie."""
    func, out = in_place(node.target), with_out(node.target)
    # such an op reads no element of its first argument, so ``target`` may stand there
    if node.target in SETS:
        node.target, node.args = func, (target, *node.args[1:])  # type: ignore[assignment]
    elif func is not None and (node.args[0] is target or node.args[0] in calls):
        node.target = func
    else:
        assert out is not None, (
            "every op with an in-place form has one that writes to a given tensor"
        )
        node.target, node.kwargs = out[0], {**node.kwargs, out[1]: target}
