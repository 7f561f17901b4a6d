"""Decide which calls of a joint graph the backward may run again, and what that costs.

    again(sin)       # Again.LOW: the backward computes it anew, and saves its argument alone
    again(mm)        # Again.HIGH: it may, but the memory of the result is cheaper
    again(rand)      # Again.DRAW: it may not

The records of the ops decide. A checkpoint region may ask for more (:func:`policy_of`).
"""

from __future__ import annotations

import math
import operator
from enum import Enum
from typing import Any

import torch
from torch import fx

from ...checkpoint.selective import CheckpointPolicy
from ...rules.ops import OUT, VIEW, op_of
from ...rules.record import Record, parameters
from ...torch_private.dispatcher import OpOverload
from ..capture.aliasing import may_alias

OPS_PER_BYTE = 8  # floating-point operations that take as long as one byte from or to memory
UNKNOWN_SIZE = 4096  # what a size that depends on values counts as
# floating-point operations per element of the result, if a call of high cost has no formula
_OPS_PER_ELEMENT = 32
_BYTES_PER_ELEMENT = 4  # as that estimate counts elements: those of float32
_NEVER_TAGS = frozenset(
    (
        torch.Tag.nondeterministic_seeded,  # a second call would draw other numbers
        torch.Tag.data_dependent_output,  # its result is read by Python
        torch.Tag.dynamic_output_shape,  # the forward measured the size of its result
    )
)


class Again(Enum):
    """Say why a value has to be saved, or that it may be computed again."""

    INPUT = "an argument"
    CONSTANT = "a constant of the program"
    DRAW = "a random draw: a second one would differ"
    UNKNOWN = "no record says that its op is pure"
    EFFECT = "its call writes to something"
    MEMORY = "it shows memory beside its argument, which a tensor that was packed does not have"
    HIGH = "its op costs more than the memory"
    POLICY = "a checkpoint policy asks for it"
    BOUNDARY = "the boundary of a checkpoint region"
    SIZE = "a size"
    LOW = "its op is cheap"

    @property
    def pure(self) -> bool:
        """Return whether the value may be computed again, at whatever cost."""
        return self in (Again.LOW, Again.HIGH, Again.SIZE)


_OF_COST = {"low": Again.LOW, "high": Again.HIGH}


def again(n: fx.Node) -> Again:
    """Return whether node ``n`` of a graph may run again, as a reason.

    An item of a call with several results has the reason of the call.
    """
    n = call_of(n)
    if n.op == "placeholder":
        return Again.INPUT
    if n.op == "get_attr":
        return Again.CONSTANT
    if is_size(n):
        return Again.SIZE
    func = n.target
    if n.op != "call_function" or not isinstance(func, OpOverload):
        return Again.UNKNOWN
    if func is torch.ops.aten.as_strided.default:
        # If its argument is a view, it may show elements of the base that the view has not. A
        # saved tensor that pack hooks have restored has the elements of the view alone.
        inputs = [node for node in n.all_input_nodes if node.op == "call_function"]
        if any(map(may_alias, inputs)):
            return Again.MEMORY
    return _again_by_record(func)


def _again_by_record(func: OpOverload) -> Again:
    """Return the facts of a second call in the record, the schema and the tags of ``func``."""
    record = op_of(func).record
    if _draws(func, record):
        return Again.DRAW
    if _is_run_for_effect(func):
        return Again.EFFECT
    if record is None or not _NEVER_TAGS.isdisjoint(func.tags):
        return Again.UNKNOWN
    if record.hidden_writes is not None:
        return Again.EFFECT
    if record.cost is not None:
        return _OF_COST[record.cost]
    # a record of ATen that says nothing is of a cheap op; the author of another library's op has
    # to say what it costs
    if func.namespace == "aten":
        return Again.LOW
    return Again.UNKNOWN


def _draws(func: OpOverload, record: Record | None) -> bool:
    """Return whether a call of ``func`` draws random numbers, by its tags or its record."""
    if torch.Tag.nondeterministic_seeded in func.tags:
        return True
    return record is not None and bool(record.draws)


def _is_run_for_effect(func: OpOverload) -> bool:
    """Return whether ``func`` writes to an argument or returns nothing, as its schema says."""
    return func._schema.is_mutable or op_of(func).kind == OUT or not func._schema.returns


def recomputable(node: fx.Node) -> bool:
    """Return whether the backward may run a call again for nothing.

    The call has no effect, draws no random numbers, and is cheap as far as its record knows.
    """
    return again(node) in (Again.LOW, Again.SIZE)


def policy_of(node: fx.Node) -> CheckpointPolicy | None:
    """Return the policy of the checkpoint region in which ``node`` was traced, None without one."""
    # by name: a graph from elsewhere has torch's own enum
    policy_name = getattr(call_of(node).meta.get("recompute"), "name", "")
    return CheckpointPolicy.__members__.get(policy_name)


def call_of(n: fx.Node) -> fx.Node:
    """Return the call of which ``n`` is an item, or ``n`` itself."""
    while is_item(n) and isinstance(n.args[0], fx.Node):
        n = n.args[0]
    return n


def is_item(node: fx.Node) -> bool:
    """Return whether ``node`` takes one of the results of a call, by ``operator.getitem``."""
    return node.op == "call_function" and node.target is operator.getitem


def is_size(node: fx.Node) -> bool:
    """Return whether ``node`` is a number computed from sizes."""
    value = node.meta.get("val")
    return value is not None and not isinstance(value, (torch.Tensor, list, tuple))


def hint(size: Any) -> int:
    """Return ``size``, a number or a symbol, as it was in the trace.

    A size that depends on values was not known there. It counts as :data:`UNKNOWN_SIZE`.
    """
    if isinstance(size, int):
        return size
    if size.node.hint is None:
        return UNKNOWN_SIZE
    return int(size.node.hint)


def n_bytes(value: object) -> int:
    """Return the bytes of the elements of ``value``, a tensor or a list of tensors.

    Any other value counts as a number of eight bytes.
    """
    if isinstance(value, torch.Tensor):
        # these have no shape whose product is the number of elements in memory
        if value.layout is not torch.strided or value.is_nested:
            return max(1, value.element_size() * hint(value.numel()))
        return math.prod(map(hint, value.shape)) * value.element_size()
    if isinstance(value, (list, tuple)):
        return sum(map(n_bytes, value))
    return 8


def is_view(node: fx.Node) -> bool:
    """Return whether ``node`` is an item of a call, or a call of a view op."""
    if is_item(node):
        return True
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return False
    return op_of(node.target).kind == VIEW


def viewed(n: fx.Node) -> fx.Node:
    """Return the node of which ``n`` is a view, through all views between, or ``n`` itself."""
    while is_view(n) and isinstance(n.args[0], fx.Node):
        n = n.args[0]
    return n


def work(n: fx.Node) -> int:
    """Return the cost of a call, in bytes.

    These are the bytes of its arguments and results, and those that could be moved in the time of
    its floating-point operations. A view or a size costs nothing.
    """
    if is_view(n) or is_size(n) or n.op != "call_function":
        return 0
    moved = n_bytes(n.meta.get("val"))
    for node in n.all_input_nodes:
        if not is_size(node):
            moved += n_bytes(node.meta.get("val"))
    return moved + flops(n) // OPS_PER_BYTE


def flops(n: fx.Node) -> int:
    """Return the number of floating-point operations of a call, 0 if its op is cheap.

    The record of the op has a formula, whose parameters are named as the operands that it needs.
    Without a formula the number is estimated from the size of the result.
    """
    func = n.target
    if not isinstance(func, OpOverload):
        return 0
    op = op_of(func)
    if op.record is None or op.record.cost != "high":
        return 0
    if op.record.flops is None:
        return _OPS_PER_ELEMENT * n_bytes(n.meta.get("val")) // _BYTES_PER_ELEMENT
    # the values that the trace saw in place of the nodes
    args, kwargs = fx.map_arg((n.args, n.kwargs), lambda node: node.meta["val"])
    operands = op.operands(args, kwargs, n.meta["val"], len(op.arg_names))
    formula_args = []
    for name in parameters(op.record.flops):
        # where the operand stands, and how the parameter is read from it (None: as it is)
        position, reader = op.locate(name)
        operand = operands[position]
        formula_args.append(operand if reader is None else reader(operand))
    return hint(op.record.flops(*formula_args))
