"""Cut a joint graph into a forward and a backward module: decide which values are saved between the
two, and which are computed again.

A forward module maps primals to (forward results, saved values); a backward module maps (saved
values, tangents) to gradients. Before the cut, calls that undo each other leave the joint graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import fx

from ...torch_private.dispatcher import OpOverload, OpOverloadPacket
from ...trace.graph_edits import without_unused
from ..capture.pullback import DERIVATIVE, OF_THE_OP
from .budget import within
from .halves import Parts
from .network import AGAIN, Network
from .recompute import again, call_of, policy_of, recomputable

Partition = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]
Op = OpOverload | OpOverloadPacket
_COMPILERS = ("inductor", "nvfuser")  # as torch spells them


def default_partition(
    joint_module: fx.GraphModule,
    joint_inputs: object = None,
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    static_lifetime_input_nodes: Collection[fx.Node] | None = None,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Save every value that the forward computes anyway and the backward uses.

    Values that only the backward needs are computed there. Return the forward and the backward.

    ``joint_inputs``: the (primals, tangents) of the joint graph, for one that is not of
    this package. The inputs that stay alive in any case are saved like any other, so the
    two ``static_lifetime`` arguments change nothing. Values inside of checkpoint regions
    are computed again.
    """
    parts = Parts(joint_module, num_fwd_outputs, joint_inputs)
    # a checkpoint region saves nothing inside, and the network finds from what it is computed again
    if any(policy_of(node) in AGAIN for node in parts.forward):
        network = Network(
            parts, (), lambda node: node not in parts.forward_set or policy_of(node) in AGAIN
        )
        return parts.cut(network.cut())
    return parts.cut(node for node in parts.forward if not parts.backward.isdisjoint(node.users))


def min_cut_rematerialization_partition(
    joint_module: fx.GraphModule,
    joint_inputs: object = None,
    compiler: str = "inductor",
    recomputable_ops: Collection[Op] | None = None,
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    memory_budget: float = 1.0,
    may_recompute: Callable[[fx.Node], bool] | None = None,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Save the fewest bytes from which cheap ops can compute what the backward needs.

    Return the forward and the backward.

    >>> from functools import partial
    >>> cut = partial(min_cut_rematerialization_partition, memory_budget=0.5)
    >>> f = aot_function(lambda x: x.sin().exp(), nop, partition_fn=cut)
    >>> f(runtime.tensor([0.0], requires_grad=True)).tolist()
    [1.0]

    Ops are cheap or not by their records. Random draws, ops that write, and ops without a record
    run in the forward only. In a checkpoint region (:func:`runtime.checkpoint.checkpoint`)
    expensive ops run again as well, and no value inside is saved.

    ``memory_budget``: 1 runs no expensive op again. 0 takes the least memory that running any
    pure op again can reach. In between, as few operations as possible run again such that the
    peak memory of forward and backward is at most that share of the way from the least peak to
    that of 1. A smaller budget never has a larger peak, nor more saved bytes. ``ValueError``
    for other numbers.

    ``static_lifetime_input_indices``: inputs that stay alive in any case (parameters) and so cost
    nothing to save. ``recomputable_ops``: the only ops that run again. ``may_recompute``: overrides
    which calls run again. ``joint_inputs``: as in :func:`default_partition`. ``compiler``:
    ``"inductor"`` or ``"nvfuser"``; it changes nothing.
    """
    if compiler not in _COMPILERS:
        raise ValueError(
            f"compiler={compiler!r}; it is one of {', '.join(_COMPILERS)}. "
            "Choose ops by recomputable_ops or may_recompute"
        )
    if not 0 <= memory_budget <= 1:
        raise ValueError(f"memory_budget={memory_budget}; it is a number from 0 to 1")
    if recomputable_ops is not None:
        if may_recompute is not None:
            raise ValueError("recomputable_ops and may_recompute exclude each other")
        may_recompute = _one_of(recomputable_ops)
    # without a budget one cut is enough; with one, several are compared
    parts = Parts(joint_module, num_fwd_outputs, joint_inputs)
    static = {parts.primals[index] for index in static_lifetime_input_indices or ()}
    network = Network(parts, static, may_recompute or recomputable)
    if memory_budget == 1:
        return parts.cut(network.cut())
    return parts.cut(within(memory_budget, network, anything=may_recompute is None))


def _one_of(ops: Collection[Op]) -> Callable[[fx.Node], bool]:
    """Return the question whether a call is of one of ``ops``.

    The question is a ``ValueError`` if that op must not run again.
    """

    def is_allowed(node: fx.Node) -> bool:
        """Return whether ``node`` calls one of ``ops``, or is a cheap call of no op."""
        func = call_of(node).target
        if func not in ops and getattr(func, "overloadpacket", None) not in ops:
            return not isinstance(func, OpOverload) and recomputable(node)
        if not again(node).pure:
            raise ValueError(
                f"recomputable_ops has {func}, "
                f"which the backward cannot run again: {again(node).value}"
            )
        return True

    return is_allowed


# --- before the cut: calls that undo each other ---------------------------------------------------
#
# Example: the two transpositions on a weight's way through ``linear`` and back.

aten = torch.ops.aten


def without_round_trips(graph: fx.Graph, kept: Collection[fx.Node] = ()) -> None:
    """Replace a transposition of a transposition by its source, in place.

    Those in ``kept`` stay, and those whose derivative is not that of the op. A forward result that
    is such a view stays one: a program's results are tensors of their own, not its arguments or one
    another.
    """
    output = graph.output_node()
    results = set(output.all_input_nodes)
    for node in graph.nodes:
        if node in kept:
            continue
        source = _start_of_round_trip(node)
        if source is None:
            continue
        # two results would be one tensor, or an argument would be a result
        stays = source.op != "call_function" or source in results
        if output in node.users and not stays:
            results.add(source)
        node.replace_all_uses_with(
            source, lambda user, stays=stays: not (stays and user.op == "output")
        )
    without_unused(graph, kept)


def _start_of_round_trip(node: fx.Node) -> fx.Node | None:
    """Return the value that ``node`` and the call before it transpose forth and back, or None."""
    if not node.args:
        return None
    first = node.args[0]
    if not isinstance(first, fx.Node) or not first.args:
        return None
    # the same two dimensions twice
    swapped = _swapped_dimensions(node)
    if swapped is None or swapped != _swapped_dimensions(first):
        return None
    if not _has_derivative_of_op(node) or not _has_derivative_of_op(first):
        return None
    source = first.args[0]
    if not isinstance(source, fx.Node):
        return None
    return source


def _has_derivative_of_op(node: fx.Node) -> bool:
    """Return whether ``node`` has the derivative of its op. Under ``no_grad`` it has none."""
    derivative: str = node.meta.get(DERIVATIVE, OF_THE_OP)
    return derivative == OF_THE_OP


def _swapped_dimensions(node: fx.Node) -> tuple[int, int] | None:
    """Return the dimensions that a transposition swaps; None for any other call.

    Of the views in a graph of derivatives only these two ops come in pairs. So they are named here,
    and no record has to say which views undo each other.
    """
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    if node.target is aten.t.default:
        return (0, 1) if value.dim() == 2 else None
    if node.target is aten.transpose.int and value.dim():
        # a negative number counts from the last dimension
        a, b = (int(dim) % value.dim() for dim in node.args[1:3])  # type: ignore[arg-type]
        return min(a, b), max(a, b)
    return None
