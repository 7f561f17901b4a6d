"""Runs custom Functions at the levels with a tape: the rules of grad levels and of the session.

Both record the call as one :class:`FunctionNode`. At a grad level ``forward`` runs at the next
outer level, and its outputs become values of the level. The session has no outer level. There
``forward`` gets the session's tensors themselves, and a new tensor of it becomes the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..seam.levels import Value
from ..seam.scope import SCOPE
from ..seam.user_code import settled
from ..session.session import Session
from ..tape import inplace, view_history
from ..tape.grad_level import GradLevel
from ..tape.nodes import AccumulateGrad, Edge, Input
from ..tape.values import edge_of
from ..torch_private.native_autograd import set_grad_enabled
from ..torch_private.pytrees import pytree
from .function import (
    FunctionClass,
    definition_of,
    dispatch,
    new_ctx,
    require_setup_context,
    rule,
    run_forward,
)
from .function_arguments import RebuiltContainers, check_marks, lowered, position_of
from .function_node import FunctionNode, as_outputs, as_returned

_grad_enabled = torch.is_grad_enabled


@rule(GradLevel)
def _record(
    level: GradLevel, cls: FunctionClass, args: tuple[object, ...]
) -> tuple[object, object]:
    """Run the Function at the next outer level, and record a node on this level's tape."""
    has_setup = definition_of(cls).has_setup
    if not level.runs_ctx_forward:
        require_setup_context(cls)
    ctx, recording = _new_node(level, cls, args)
    inner_args = tuple(lowered(level, argument) for argument in args)
    # once, as in eager mode: each further level would call `setup_context` once more
    runs_here = level.runs_ctx_forward and not (has_setup and _is_transformed_outside())
    containers = RebuiltContainers(args, inner_args)
    # `forward` runs at the next outer level, whose grad mode may be off
    grad_mode = _grad_enabled()
    set_grad_enabled(grad_mode and level.outer_mode)
    try:
        with level.shown_to_forward(ctx, args, inner_args):
            if runs_here:
                output, _ = run_forward(cls, inner_args, ctx)
            else:
                output = _restore_written_arguments(dispatch(cls, inner_args)[0])
                cls.setup_context(ctx, inner_args, output)
    finally:
        set_grad_enabled(grad_mode)
    containers.refuse_changes(cls)
    outputs = as_outputs(output)
    application = _Application(level, cls, ctx, args, inner_args, outputs, recording)
    wrapped = application.outputs()
    ctx.forget_marks()
    return as_returned(wrapped, output), ctx


def _is_transformed_outside() -> bool:
    """Return whether a level outside differentiates or batches, and needs the Function as a
    whole."""
    return any(level.keeps_history or level.hidden for level in SCOPE.levels)


def _restore_written_arguments(output: object) -> object:
    """Return ``output`` with each alias of a written argument replaced by the argument itself.

    An outer level returned the alias to its caller. ``setup_context`` marks the argument, and the
    tape makes an alias of its own."""

    def original(value: Value) -> Value:
        if value.released_from is None:
            return value
        return value.released_from

    return pytree.tree_map_only(Value, original, output)


@rule(Session)
def _record_in_session(
    session: Session, cls: FunctionClass, args: tuple[object, ...]
) -> tuple[object, object]:
    """Run the Function in the session and record its node. Returns the output and the ctx."""
    output, _, ctx = record(session, cls, args)
    ctx.forget_marks()
    return output, ctx


def record(
    session: Session, cls: FunctionClass, args: tuple[object, ...]
) -> tuple[Any, tuple[Any, ...], FunctionNode]:
    """Run a Function in the session. There is no outer level, so ``forward`` gets the session's
    tensors themselves.

    Returns three things: the output, as tensors of the session; the outputs as ``forward`` returned
    them; the node. The node still has its marks (:meth:`FunctionNode.forget_marks`)."""
    ctx, recording = _new_node(session, cls, args)
    output, _ = run_forward(cls, args, ctx)
    # the session is the outermost level, so `args` are also what `forward` got
    application = _InSession(session, cls, ctx, args, args, as_outputs(output), recording)
    wrapped = application.outputs()
    return as_returned(wrapped, output), application.outs, ctx


def _new_node(
    level: GradLevel, cls: FunctionClass, args: tuple[object, ...]
) -> tuple[FunctionNode, bool]:
    """Return the node of a call, and whether it is put on the tape: if grad mode is on and an
    argument requires grad. The node is the ctx in any case."""
    edges: list[Edge | None] = []  # one per tensor argument, None for one without a history
    needs = []  # one per argument
    for argument in args:
        edge = None
        if isinstance(argument, Value) and argument._level is level:
            edge = edge_of(argument)
        needs.append(edge is not None)
        if isinstance(argument, torch.Tensor):
            edges.append(edge)
    recording = _grad_enabled() and any(needs)
    if not recording:
        return new_ctx(cls, needs, level), False
    return new_ctx(cls, needs, level, tuple(edges)), True


@dataclass
class _Application:
    """A call of a Function at a grad level, after ``forward`` has run. :meth:`outputs` makes the
    results of the call."""

    level: GradLevel
    cls: FunctionClass
    ctx: FunctionNode
    args: tuple[Any, ...]
    inner_args: tuple[object, ...]  # `args` as `forward` got them: without this level
    outs: tuple[Any, ...]  # the outputs as `forward` returned them
    recording: bool  # whether `ctx` is put on the tape

    def outputs(self) -> tuple[Any, ...]:
        """Return the outputs as values of the level, each with its history."""
        check_marks(self.ctx, self.outs, self.inner_args)
        wrapped = tuple(self.output(index, output) for index, output in enumerate(self.outs))
        if self.recording:
            self.ctx.record(self.args, self.inner_args, self.outs)
        return wrapped

    def output(self, index: int, out: object) -> Any:
        """Return output number ``index``. ``out``: as ``forward`` returned it. A tensor becomes a
        value of the level with its history."""
        if not isinstance(out, torch.Tensor):
            return out
        if isinstance(out, Value) and out._level.number > self.level.number:
            return out  # an inner level recorded it. Example: a trace of the session's tensors
        edge: Edge | None = None
        if self.recording and self.ctx.differentiates(out):
            edge = (self.ctx, index)
        # an output may be an input itself: one that `forward` wrote to, or one as it was
        source = position_of(out, self.inner_args)
        if source is not None and position_of(out, self.ctx.dirty_tensors) is not None:
            return self.rewrite_argument(source, edge)
        returned = None
        if source is not None:
            returned = self.args[source]
        value = self.wrap(out, returned, edge)
        if _grad_enabled():
            base = self.base_of(out, source, edge)
            if base is not None:
                value._view = view_history.View(base, (), "function")
        return value

    def base_of(self, output: torch.Tensor, source: int | None, edge: Edge | None) -> Any:
        """Return what the output ``output`` is a view of: the first argument that shares its
        memory, or the base of this argument. None if there is none. ``source``: the position of the
        argument that ``forward`` returned as it was, if ``output`` is one.

        An argument may share its memory with another one, as ``x.detach()`` does with ``x``. An
        output without a history is no view of an argument that has one.
        """
        candidates = list(zip(self.args, self.inner_args, strict=True))
        if source is not None:
            candidates = [candidates[source]]
        for argument, inner in candidates:
            if not self.owns(argument):
                continue
            if edge is None and argument.requires_grad:
                continue
            if view_history.aliases(output, inner):
                # no view has a view for its base, as in torch
                if argument._view is None:
                    return argument
                return argument._view.base
        return None

    def owns(self, argument: object) -> bool:
        """Return whether ``argument`` is a value of this level."""
        return isinstance(argument, Value) and argument._level is self.level

    def rewrite_argument(self, source: int, edge: Edge | None) -> Any:
        """Return the output for argument ``source``, to which ``forward`` wrote. Its new history is
        ``edge``. Without one it keeps its own."""
        target = self.args[source]
        if edge is not None:
            if not self.owns(target):
                self.level.refuse_captured_write(f"{self.cls.__name__}.apply")
            _set_history(self.level, target, edge, len(self.outs), self.args[:source])
            return target
        if not (self.level.releases_written and self.owns(target)):
            return target
        # the result of an unrecorded call does not require grad, though the argument does
        if target.requires_grad or view_history.base_edge(target) is not None:
            return target.detach()
        return target

    def wrap(self, out: object, returned: object, edge: Edge | None) -> Any:
        """Return the tensor ``out`` as a value of the level with history ``edge``. ``returned``:
        the argument that ``out`` is, if ``forward`` returned one as it was, else None."""
        # a value of the level, if `forward` computed with a tensor from outside
        return self.level.wrap(lowered(self.level, out), edge)


class _InSession(_Application):
    """A call in the session. ``forward`` got the session's own tensors, and may return them."""

    def wrap(self, out: Any, returned: Any, edge: Edge | None) -> Any:
        """Return the tensor ``out`` with history ``edge``, itself if it is new."""
        if not self.owns(out):
            return self.level.wrap(out, edge)
        if returned is None:
            # a new tensor of `forward` becomes the output itself
            out._edge, out._req = edge, False
            if out._view is not None:
                # its history is the Function, also if forward wrote to the base
                out._view.generation = out._view.base._generation
            return out
        # the argument keeps its own history, so the output is another tensor
        alias = out.detach() if returned.requires_grad else out.view_as(out)
        alias._edge = edge
        return alias


def _set_history(
    level: GradLevel, target: Value, edge: Edge, n_outputs: int, before: Sequence[object]
) -> None:
    """Set ``edge`` as the history of ``target``, an input that ``forward`` wrote to.

    ``n_outputs``: of the Function. ``before``: the arguments before ``target``. Raises
    ``RuntimeError`` for a view if there are several outputs, and for a leaf that requires grad."""
    view_history.refuse_stale_target(target)
    old_edge = edge_of(target)
    if target._view is not None and n_outputs > 1:
        raise settled(
            RuntimeError(
                "If your Function modifies inplace an input that is a view of another Tensor, "
                "your Function cannot return more than one Tensor. Call it on a clone, "
                "or give the part that writes a Function of its own, with one output."
            )
        )
    is_leaf = old_edge is not None and isinstance(old_edge[0], (AccumulateGrad, Input))
    if target._view is None and is_leaf:
        raise settled(
            RuntimeError(
                "a leaf Variable that requires grad has been used in an in-place operation."
            )
        )
    view_history.check_write(target, old_edge, True)
    # a node has one edge per tensor argument
    edge_number = sum(isinstance(argument, torch.Tensor) for argument in before)
    inplace.rebase(level, target, edge, edge_number)
    level.written_by_function(target)
