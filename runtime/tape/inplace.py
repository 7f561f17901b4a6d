"""Runs in-place ops at a grad level.

A write is done for real, on the inner tensor, so aliasing needs no bookkeeping. This module
updates the history. Example: after ``y.mul_(x)`` the edge of ``y`` leads to a ``MulBackward0``,
whose first edge is the history that ``y`` had before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import InplaceError, called_from
from ..rules.ops import DIFFERENTIABLE, Op
from ..rules.tensors import foreach
from ..seam.call_types import Arguments, Keywords
from ..seam.keys import uncounted
from ..seam.levels import Value
from ..seam.shells import VALUES
from ..seam.surgery import GEOMETRY, change_geometry, detach_inner, refit
from ..seam.user_code import settled
from . import hooks
from .lift import lift_in_place
from .metas import meta_of
from .nodes import Edge
from .op_nodes import OpNode
from .running import is_recording
from .saved import HOOKS, Saved
from .tape import Tape
from .values import edge_of
from .view_history import CopySlices, aliases, base_edge, check_write, refuse_stale_target

_grad_enabled = torch.is_grad_enabled
_INFERENCE = (
    "Inplace update to inference tensor outside InferenceMode is not allowed. "
    "Write to a clone of it."
)


def run(level: Tape, op: Op, args: Sequence[object], kwargs: Keywords) -> Any:
    """Run an in-place op: write to the inner tensor, then give the target its new history."""
    target: Any = args[0]
    if type(target) in (list, tuple):
        return _foreach(level, op, args, kwargs)
    if type(target) not in VALUES or target._level is not level:
        return _write_to_foreign(level, op, args, kwargs)
    refuse_stale_target(target)
    if op.base_name in GEOMETRY and op.functional is not None:
        return _change_geometry(op, target, args[1:], kwargs)
    inner, edges, wanted, spans = level.collect(op, args)
    # ops that change what the tensor is, but no element
    special = METADATA.get(op.base_name)
    if special is not None:
        return special(level, op, target, inner, edges, kwargs)
    node = _node_of_write(level, op, target, edges, wanted, spans)
    # What the formula needs from before the write is copied first. The result is saved after it.
    if isinstance(node, OpNode):
        saved = _before_write(level, node, inner)
        _write(level, op, inner, kwargs)
        _save(node, saved, kwargs, inner[0])
    else:
        _write(level, op, inner, kwargs)
    if node is None:
        unrecorded(target)
    else:
        own_edge = 0 if wanted & 1 else None
        rebase(level, target, (node, 0), own_edge)
    if not op.func._schema.returns:
        return None  # an op of a library may write and return nothing
    return target


def _node_of_write(
    level: Tape,
    op: Op,
    target: Value,
    edges: tuple[Edge | None, ...],
    wanted: int,
    spans: dict[int, int] | None,
) -> Any:
    """Make the node of a write to ``target``, with the formula of the functional form of ``op``.
    None if the write is not recorded. Raise if the history cannot follow it."""
    if not is_recording():
        return None
    recording = bool(edges) and target.dtype in DIFFERENTIABLE
    # also if this write is not recorded: the base of a view may have a history that it would enter
    if recording or target._view is not None:
        own_edge = edges[0] if wanted & 1 else None
        check_write(target, own_edge, recording)
    if not recording:
        return None
    functional = _functional_form(op)
    inner = target._inner
    metas = (meta_of(inner, inner.dtype),)
    node = OpNode.of(functional, level, edges, metas, wanted, spans)
    if isinstance(node, OpNode):
        node = node.as_written(op, functional)
    return node


def _functional_form(op: Op) -> Op:
    """Return the op whose formula is that of a write by ``op``. Raise if there is none."""
    functional = op.functional
    if functional is not None and functional.record is not None:
        return functional
    if op.record is None:
        raise InplaceError(
            f"{op.func} has no functional form with a record, so its gradient is not known"
        )
    return op


def _before_write(level: Tape, node: OpNode, inner: Sequence[torch.Tensor]) -> list[Any]:
    """Return ``inner`` with a copy of each argument that the write changes and of which the
    formula needs the value from before."""
    saved = list(inner)
    for at, reader in node.plan.slots:
        # what a reader takes of an argument, such as its sizes, a write does not change
        is_argument = 0 <= at < len(inner)
        if reader is None and is_argument and aliases(inner[at], inner[0]):
            saved[at] = level.copy_before_write(inner[at])
    return saved


def _write(level: Tape, op: Op, inner: list[Any], kwargs: Keywords) -> None:
    """Run ``op`` on the inner tensors. If the value shares the version counter of the inner
    tensor, the dispatcher counts the write."""
    target = inner[0]
    shares_counter = type(target) is torch.Tensor
    if shares_counter and target.is_inference() and not torch.is_inference_mode_enabled():
        raise settled(RuntimeError(_INFERENCE))  # the kernel that would raise is switched off below
    # a composite op arrives whole in inference mode, where the dispatcher counts the writes of its
    # parts alone
    if shares_counter and not op.composite:
        uncounted(level.outward, op, inner, level.lowered_kwargs(kwargs))
    else:
        level.outward(op, inner, level.lowered_kwargs(kwargs))


def unrecorded(target: Any) -> None:
    """Note a write to ``target`` that is not recorded. The base keeps its history. Its views take
    theirs from it again, or raise if they may not."""
    written = target if target._view is None else target._view.base
    written._generation += 1


def rebase(level: Tape, target: Any, edge: Edge, self_edge: int | None) -> None:
    """Give ``target`` the history ``edge`` after a write. Edge number ``self_edge`` of its node is
    the target's former history. None: it had none."""
    view = target._view
    rewritten = target
    if view is not None:
        rewritten = view.base
    before = edge_of(rewritten)
    if view is not None:
        # the gradient of the rest of the base must go to its former history
        edge = CopySlices(level, before, target, edge[0], self_edge), 0
    rewritten._edge = edge
    rewritten._generation += 1
    if rewritten._retains:
        hooks.follow(rewritten, before)


def _save(node: OpNode, args: list[object], kwargs: Keywords, result: torch.Tensor) -> None:
    """Save for ``node``. If the dispatcher counts the write after this, a saved ``result`` expects
    the next version."""
    if type(result) is not torch.Tensor:
        node.save(args, kwargs, result)
        return
    # a pack hook that notes the version, as that of a checkpoint, has to count this write
    if HOOKS.innermost():
        HOOKS.about_to_bump = result
        try:
            node.save(args, kwargs, result)
        finally:
            HOOKS.about_to_bump = None
    else:
        node.save(args, kwargs, result)
    for saved in node.saved or ():
        if isinstance(saved, Saved) and saved.tensor is result:
            saved.version += 1


def _write_to_foreign(level: Tape, op: Op, args: Arguments, kwargs: dict[str, object]) -> Any:
    """Write into a tensor that is no value of ``level``. It becomes a value if an argument has a
    history. Else it stays as it is."""
    inner, edges, *_ = level.collect(op, args)
    if edges and is_recording() and args[0].dtype in DIFFERENTIABLE:
        return run(level, op, [lift_in_place(level, args[0], op.func), *args[1:]], kwargs)
    level.outward(op, inner, level.lowered_kwargs(kwargs))
    return args[0]


def _foreach(level: Tape, op: Op, args: Arguments, kwargs: dict[str, object]) -> None:
    """Run ``_foreach_add_`` and its like: as one call if nothing has a history,
    else as single ops."""
    inner, edges, *_ = level.collect(op, args)
    if is_recording():
        # a view without a history may be a part of a base that has one
        of_bases = [base_edge(tensor) for tensor in args[0] if isinstance(tensor, Value)]
        if edges or any(edge is not None for edge in of_bases):
            foreach.run(op, args, kwargs)
            return
    _write_to_several(level, op, args[0], inner, kwargs)


def _write_to_several(
    level: Tape, op: Op, targets: Sequence[object], inner: list[object], kwargs: dict[str, object]
) -> None:
    """Run one call that writes to several tensors without a history, and count the writes."""
    mine = _values_of(level, targets)
    before = [None if value.is_inference() else value._version for value in mine]
    level.outward(op, inner, level.lowered_kwargs(kwargs))
    # The dispatcher counts no call of several tensors. The kernel counts the writes to the inner
    # ones, whose counter a value without memory does not share.
    not_counted = [
        value
        for value, version in zip(mine, before, strict=True)
        if version is not None and value._version == version
    ]
    for value in not_counted:
        value.count_write()
    for value in mine:
        unrecorded(value)


def _values_of(level: Tape, tensors: Sequence[object]) -> list[Value]:
    """List those of ``tensors`` that are values of ``level``."""
    return [tensor for tensor in tensors if isinstance(tensor, Value) and tensor._level is level]


def _change_geometry(op: Op, target: Any, args: Sequence[object], kwargs: dict[str, object]) -> Any:
    """Run ``t_`` and its like, which write nothing. The target's history continues with the view
    op. Views of the target do not change."""
    before = edge_of(target)
    if is_recording() and (before is not None or base_edge(target) is not None):
        check_write(target, before, before is not None)
    # a target with a history is recorded without grad mode, too, because the gradient that arrives
    # has the new geometry
    with torch.set_grad_enabled(_grad_enabled() or target._edge is not None):
        change_geometry(op.functional.func, target, args, kwargs)  # type: ignore[union-attr]
    if isinstance(target._inner, Value):  # the levels around have seen the view op alone
        target._inner.count_write()
    # torch names the node of `t_` otherwise than that of `t`
    if target._edge is not None and target._edge != before:
        target._edge = _edge_of_write(op, *target._edge)
    if before is not None:
        target._generation += 1
    if target._retains:
        hooks.follow(target, before)
    return target


def _edge_of_write(op: Op, node: Any, index: int) -> Edge:
    """Return the edge of a result of a view op as that of a tensor to which ``op`` has written."""
    if isinstance(node, OpNode) and op.functional is not None:
        node = node.as_written(op, op.functional)
    return node, index


def follow_inner(value: Value) -> None:
    """Give ``value`` the sizes, strides and storage of its inner tensor, which have changed."""
    value._reshaped += 1
    value._reshaped_at = called_from()
    value._earlier = None  # of other memory
    refit(value, value._level.wrap(value._inner))


def _detach_(
    level: Tape, op: Op, target: Any, inner: object, edges: object, kwargs: object
) -> object:
    """Run ``detach_``. Views of ``target`` do not lose their history."""
    if target._view is not None:
        raise settled(
            RuntimeError(
                "Can't detach views in-place. A view takes its history from its base; "
                "use the result of detach(), which has none."
            )
        )
    target._edge = None
    target._req = False
    if isinstance(target._inner, Value):  # and it has none at outer levels
        detach_inner(target)
    return target


def _resize(
    level: Tape, op: Op, target: torch.Tensor, inner: object, edges: object, kwargs: object
) -> object:
    """Run ``resize_`` or ``resize_as_``. Raise if the target requires grad, without grad mode as
    well, but not in inference mode."""
    if target.requires_grad and not torch.is_inference_mode_enabled():
        raise settled(RuntimeError("cannot resize variables that require grad"))
    return _replace(level, op, target, inner, kwargs)


def _set(
    level: Tape, op: Op, target: object, inner: object, edges: object, kwargs: object
) -> object:
    """Run ``set_``. The target gets other memory, which has no history, so with grad mode no
    argument may require grad."""
    if edges and is_recording():
        check_write(target, edge_of(target), True)
        raise InplaceError(
            f"{op.func} has no derivative; assign to .data, or do it in no_grad mode"
        )
    return _replace(level, op, target, inner, kwargs)


def _replace(level: Tape, op: Op, target: Any, inner: object, kwargs: Any) -> object:
    """Run an op that gives the inner tensor other memory, and let ``target`` show it."""
    uncounted(level.outward, op, inner, level.lowered_kwargs(kwargs))
    follow_inner(target)
    target._accumulator = None  # later gradients have another shape
    return target


# In-place ops that do not write elements and do not take a view, with the function that runs each.
# With `GEOMETRY` they are all ops that torch tags `inplace_view`.
METADATA = {"detach_": _detach_, "resize_": _resize, "resize_as_": _resize, "set_": _set}
