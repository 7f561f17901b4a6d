"""Answers what a trace asks about every call of one overload.

Example: of ``aten.add_.Tensor`` a trace asks which arguments the call writes to, (0,), and whether
it may draw random numbers. The answers are computed once for each overload.

Two of the answers are of some ops alone: the form that a graph has in place of the call, and
whether the size of a result depends on values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from keyword import iskeyword
from typing import Any, NamedTuple

import torch

from ..rules.hidden_writes import may_hide
from ..rules.ops import Op, op_of
from ..rules.overload_bindings import is_composite
from ..rules.record import listeners
from ..rules.tensors.core import QUESTIONS
from ..seam.call_types import Arguments
from ..seam.containers import written_arguments
from ..seam.graph_walks import inputs_of, walk
from ..torch_private.dispatcher import OpOverload, has_kernel
from ..torch_private.graph_parts import snake_case
from ..torch_private.pytrees import pytree
from .provenance import here

aten = torch.ops.aten
_SIZES = frozenset(
    (
        aten.sym_size.int,
        aten.sym_size.default,
        aten.sym_stride.default,
        aten.sym_stride.int,
        aten.sym_numel.default,
    )
)
_STORED = frozenset(
    getattr(aten, name).default
    for name in ("values", "_values", "indices", "_indices", "col_indices", "row_indices", "_nnz")
)
_STEPPED = frozenset(
    getattr(packet, name) for packet in (aten.arange, aten.range) for name in packet.overloads()
)
WITHOUT_MEMORY = aten._efficientzerotensor.default
_LITERALS = frozenset((aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default))


class CallFacts(NamedTuple):
    """The answers about one overload."""

    node_name: str  # as torch's: `add` for `aten.add.Tensor`
    # what answers it at once, if it asks for the geometry of a tensor
    question: Callable[[torch.Tensor], object] | None
    literal: bool  # it makes a tensor of numbers in the text of a program
    asks_size: bool  # of a symbolic tensor
    tells_stored: bool  # how many elements a sparse tensor stores, which depends on values
    sized_by_values: bool  # the sizes of its result may depend on values
    sized_by_numbers: bool  # and on numbers that are no sizes, such as the step of a range
    composite: bool
    may_draw: bool  # random numbers; of an op of another library nobody says that it does not
    reads: bool  # its result in Python depends on elements
    reshapes: bool  # in place
    may_write: bool
    written: tuple[int, ...]  # positions of the arguments that its schema says it writes to
    returned: int | None  # the one among them that is its only result
    follows: bool  # its result follows from its arguments and shares no memory with them
    special: bool  # a trace may do more with a call than write it down


_FACTS: dict[int, CallFacts] = {}  # by id of the overload, which lives as long as the process
listeners.append(_FACTS.clear)  # a new record makes these facts stale


def facts_of(func: object) -> CallFacts:
    """Return the facts of the overload ``func``, computed at its first call."""
    facts = _FACTS.get(id(func))
    if facts is None:
        facts = _FACTS[id(func)] = _facts_of(func)
    return facts


def _facts_of(func: Any) -> CallFacts:
    """Find the facts of a call of ``func``, which do not depend on its arguments."""
    schema, op = func._schema, op_of(func)
    written = tuple(position for position, _ in written_arguments(schema))
    question = QUESTIONS.get(schema.name.split("::")[1])
    # `prim::layout` is no operator of the dispatcher
    composite = has_kernel(func.name()) and is_composite(func.name())
    sized_by_values = torch.Tag.dynamic_output_shape in func.tags
    sized_by_numbers = func in _STEPPED
    reads = torch.Tag.data_dependent_output in func.tags
    literal, asks_size, tells_stored = func in _LITERALS, func in _SIZES, func in _STORED
    draws_by_tag = torch.Tag.nondeterministic_seeded in func.tags
    shares_no_memory = all(result.alias_info is None for result in schema.returns)
    asks = question is not None or reads or asks_size or tells_stored
    has_other_form = composite or iskeyword(func._overloadname) or func is WITHOUT_MEMORY
    return CallFacts(
        node_name=snake_case(func.overloadpacket.__name__),
        question=question,
        literal=literal,
        asks_size=asks_size,
        tells_stored=tells_stored,
        sized_by_values=sized_by_values,
        sized_by_numbers=sized_by_numbers,
        composite=composite,
        may_draw=draws_by_tag or _may_draw(op),
        reads=reads,
        reshapes=torch.Tag.inplace_view in func.tags,
        may_write=bool(written) or may_hide(op),
        written=written,
        returned=_returned_position(schema, written),
        follows=not draws_by_tag and shares_no_memory,
        special=any((asks, literal, sized_by_values, sized_by_numbers, has_other_form)),
    )


def _returned_position(schema: Any, written: Sequence[int]) -> int | None:
    """Find the written argument that is the only result. None if there is none."""
    if len(schema.returns) != 1:
        return None
    (result,) = schema.returns
    if result.alias_info is None:
        return None
    # an argument and a result with the same name of memory in the schema are one tensor
    for position in written:
        if schema.arguments[position].alias_info.before_set == result.alias_info.before_set:
            return position
    return None


def _may_draw(op: Op) -> bool:
    """Tell whether an op that torch does not tag so may draw random numbers."""
    if op.record is None:
        return op.func.namespace != "aten"
    return bool(op.record.draws)


# --- calls that a graph has in another form -------------------------------------------------------


def _draw_between(
    x: torch.Tensor, low: object, high: object, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Return the numbers of ``aten.random.from``, by an op that draws the same."""
    if high is None:
        raise RuntimeError(
            f"random_({low}, None) has no upper end, which a graph cannot say. Give it one.{here()}"
        )
    drawn: torch.Tensor
    if generator is None:
        drawn = aten.randint_like.low_dtype(x, low, high)
    else:
        drawn = aten.randint_like.low_generator_dtype(x, low, high, generator=generator)
    return drawn


def _fill_between(
    x: torch.Tensor, low: object, high: object, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Fill ``x`` with the numbers of ``aten.random_.from``."""
    return x.copy_(_draw_between(x, low, high, generator=generator))


# The names of two ops are no Python, so that no module can be generated from a graph that has them.
# The third gives a tensor without memory. A value of a level does not show that to the dispatcher,
# and a kernel would read the memory.
OTHERWISE: dict[object, Callable[..., object]] = {
    getattr(aten.random, "from"): _draw_between,
    getattr(aten.random_, "from"): _fill_between,
    WITHOUT_MEMORY: aten.zeros.default,
}


# --- sizes that depend on values ------------------------------------------------------------------
#
# Some ops have results whose size depends on values. The size is a constant if the values are the
# same at each run of the graph.
#
#     pairs = torch.combinations(x)        # x.index_select(0, …), with masked_select of a
#                                          # triangular mask of ones
#
# The mask is made of nothing but sizes, so its number of elements is a constant of the graph.


def size_depends_on_values(func: Any, args: Arguments) -> bool:
    """Return whether how many elements a call returns depends on the elements of an argument, which
    another run of the graph may change. An index depends on a mask alone."""
    # whose lengths are numbers
    if torch.Tag.dynamic_output_shape not in func.tags or func is aten._ctc_loss.default:
        return False
    deciding = list(args)
    if func is aten.index.Tensor:
        deciding = _masks_among(args[1])
        if not deciding:
            return False
    if func is aten.masked_select.default:
        deciding = [args[1]]
    return not all(
        _depends_on_sizes_alone(tensor)
        for tensor in pytree.tree_leaves(deciding)
        if isinstance(tensor, torch.Tensor)
    )


def _masks_among(index: Sequence[object]) -> list[object]:
    """List the masks in an index: they select as many elements as are true."""
    tensors = [item for item in index if isinstance(item, torch.Tensor)]
    return [tensor for tensor in tensors if tensor.dtype in (torch.bool, torch.uint8)]


def _depends_on_sizes_alone(tensor: object) -> bool:
    """Return whether ``tensor`` is a result of factories and functional ops, without any tensor of
    the arguments and without a random number."""
    result = getattr(tensor, "_node", None)
    if result is None:
        return False
    for node in walk([result], inputs_of):
        if node.op != "call_function" or _is_open(node.target) or any(map(writes, node.users)):
            return False
    return True


def _is_open(target: object) -> bool:
    """Return whether a call may return another value at another run, or writes."""
    if not isinstance(target, OpOverload):
        return getattr(target, "__name__", "") != "getitem"
    return (
        target._schema.is_mutable
        or torch.Tag.nondeterministic_seeded in target.tags
        or target in _UNINITIALIZED
    )


def writes(node: torch.fx.Node) -> bool:
    """Return whether ``node`` is a call that writes to an argument."""
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


_UNINITIALIZED = frozenset(
    (
        aten.empty.memory_format,
        aten.empty_strided.default,
        aten.empty_like.default,
        aten.new_empty.default,
    )
)


def argument_at(func: Any, index: int, args: Any, kwargs: Any) -> Any:
    """Return the argument of a call at position ``index`` of the schema, None without one."""
    if index < len(args):
        return args[index]
    return kwargs.get(func._schema.arguments[index].name)
