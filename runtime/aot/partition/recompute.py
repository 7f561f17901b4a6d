"""Which calls of a joint graph the backward may run again, and what that costs. Records say it;
checkpoint regions may ask for more."""

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
_OPS_PER_ELEMENT = 32  # of a call of high cost whose record has no formula
_NEVER_TAGS = frozenset(
    (
        torch.Tag.nondeterministic_seeded,
        torch.Tag.data_dependent_output,
        torch.Tag.dynamic_output_shape,
    )
)  # another result the second time, an answer in Python, a size that the forward measured


class Again(Enum):
    """Why a value is saved or may be computed again."""

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
        """Whether the value may be computed again, at whatever cost."""
        return self in (Again.LOW, Again.HIGH, Again.SIZE)


_OF_COST = {"low": Again.LOW, "high": Again.HIGH}


def again(n: fx.Node) -> Again:
    """Return what records say of running ``n`` again. An item of a call with several results is as
    its call."""
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
        calls = [u for u in n.all_input_nodes if u.op == "call_function"]
        if any(map(may_alias, calls)):
            return Again.MEMORY
    return _again_by_record(func)


def _again_by_record(func: OpOverload) -> Again:
    """Return what the record, the schema and the tags of ``func`` say of a second call."""
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
    if torch.Tag.nondeterministic_seeded in func.tags:
        return True
    return record is not None and bool(record.draws)


def _is_run_for_effect(func: OpOverload) -> bool:
    """Return whether ``func`` writes to an argument or returns nothing, as its schema says."""
    return func._schema.is_mutable or op_of(func).kind == OUT or not func._schema.returns


def recomputable(n: fx.Node) -> bool:
    """Return whether a call may be run again in the backward: without effect, not random, and cheap
    as far as its record knows."""
    return again(n) in (Again.LOW, Again.SIZE)


def policy_of(n: fx.Node) -> CheckpointPolicy | None:
    """Return what the checkpoint region wishes in which ``n`` was traced."""
    # by name: a graph from elsewhere has torch's own enum
    wish = getattr(call_of(n).meta.get("recompute"), "name", "")
    return CheckpointPolicy.__members__.get(wish)


def call_of(n: fx.Node) -> fx.Node:
    """The call of which ``n`` is an item, or ``n``."""
    while is_item(n) and isinstance(n.args[0], fx.Node):
        n = n.args[0]
    return n


def is_item(n: fx.Node) -> bool:
    return n.op == "call_function" and n.target is operator.getitem


def is_size(n: fx.Node) -> bool:
    """Return a number computed from sizes."""
    value = n.meta.get("val")
    return value is not None and not isinstance(value, (torch.Tensor, list, tuple))


def hint(size: Any) -> int:
    """Return a size as it was in the trace. One that depends on values was not known there: it
    counts as :data:`UNKNOWN_SIZE`."""
    if isinstance(size, int):
        return size
    if size.node.hint is None:
        return UNKNOWN_SIZE
    return int(size.node.hint)


def n_bytes(value: object) -> int:
    """Return the bytes of a tensor's elements; of a list of tensors, all of theirs. A number takes
    eight."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_nested:
            return max(1, value.element_size() * hint(value.numel()))
        return math.prod(map(hint, value.shape)) * value.element_size()
    if isinstance(value, (list, tuple)):
        return sum(map(n_bytes, value))
    return 8


def is_view(n: fx.Node) -> bool:
    """Return whether ``n`` is an item of a call, or a call of a view op."""
    if is_item(n):
        return True
    if n.op != "call_function" or not isinstance(n.target, OpOverload):
        return False
    return op_of(n.target).kind == VIEW


def viewed(n: fx.Node) -> fx.Node:
    """Return what ``n`` is a view of, or ``n``."""
    while is_view(n) and isinstance(n.args[0], fx.Node):
        n = n.args[0]
    return n


def work(n: fx.Node) -> int:
    """Return the cost of a call in bytes moved: those of its arguments and results, and what its
    floating-point operations take."""
    if is_view(n) or is_size(n) or n.op != "call_function":
        return 0
    moved = n_bytes(n.meta.get("val"))
    for a in n.all_input_nodes:
        if not is_size(a):
            moved += n_bytes(a.meta.get("val"))
    return moved + flops(n) // OPS_PER_BYTE


def flops(n: fx.Node) -> int:
    """Return the floating-point operations of a call, by the formula of its record if there is
    one."""
    func = n.target
    if not isinstance(func, OpOverload):
        return 0
    op = op_of(func)
    if op.record is None or op.record.cost != "high":
        return 0
    if op.record.flops is None:
        return _OPS_PER_ELEMENT * n_bytes(n.meta.get("val")) // 4
    args, kwargs = fx.map_arg((n.args, n.kwargs), lambda a: a.meta["val"])
    operands = op.operands(args, kwargs, n.meta["val"], len(op.arg_names))
    given = []
    for name in parameters(op.record.flops):
        at, reader = op.locate(name)
        given.append(operands[at] if reader is None else reader(operands[at]))
    return hint(op.record.flops(*given))
