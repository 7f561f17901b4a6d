"""Records ATen calls on a tape, at a grad level. Every ``grad`` and ``vjp`` has one, and the
eager session is one.

Example: in ``grad(f)`` the call ``torch.sin(x)`` runs ``aten.sin`` on the inner tensor of ``x``.
Its result becomes a value whose edge leads to a new node ``SinBackward0``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..rules.ops import (
    _OPS,
    DIFFERENTIABLE,
    INPLACE,
    OUT,
    VIEW,
    Op,
    decomposition_of,
    op_of,
    written_out,
)
from ..seam.call_types import Arguments
from ..seam.containers import items_of, rewrapped, tensors_of
from ..seam.levels import Value
from ..seam.literals import READ_OF_NUMBER, refuse_taken_number
from ..seam.user_code import settled
from ..torch_private.dispatcher import OpOverload
from ..torch_private.native_autograd import innermost_saved_hooks
from . import inplace, view_history
from .metas import check_origin, meta_of, refuse_nested
from .nodes import Edge, Node
from .op_nodes import OpNode, Undifferentiable
from .running import is_recording
from .saved import HOOKS
from .tape import Tape
from .values import edge_of


class GradLevel(Tape):
    """A tape that records the calls with its values."""

    __slots__ = ()

    def call(self, func: OpOverload | Op, args: Sequence[object], kwargs: dict[str, Any]) -> Any:
        """Run and record one call, as :meth:`Level.call` describes. The most common call, of an op
        with a formula and one result, uses few Python frames: :func:`op_of` is inlined."""
        op = _OPS.get(id(func)) or op_of(func)
        try:
            if op.special:
                result = self._call_special(op, args, kwargs)
                if result is not NotImplemented:
                    return result
            inner, edges, wanted, spans = self.collect(op, args)
            if kwargs:
                # a formula has edges for positional arguments alone
                if self._any_with_history(kwargs.values()):
                    return self.run_inside(written_out(op, "vjp"), args, kwargs)
                kwargs = self.lowered_kwargs(kwargs)
            if not wanted or not self._is_recording():
                return self._wrap_plain(op, args, kwargs, self.outward(op, inner, kwargs))
            if op.special:
                decomposed = _decomposition_for_history(op)
                if decomposed is not None:
                    return self.run_inside(decomposed, args, kwargs)
            # torch's own hooks are asked for first, without a frame
            if (HOOKS.stack or innermost_saved_hooks(True)) and HOOKS.innermost():
                return self._record_under_hooks(op, args, inner, kwargs, edges, wanted, spans)
            outputs = self.outward(op, inner, kwargs)
            if isinstance(outputs, torch.Tensor):
                return self._record_tensor(op, args, inner, kwargs, outputs, edges, wanted, spans)
            node = OpNode.of(op, self, edges, (), wanted, spans)
            return self._record_results(op, args, inner, kwargs, outputs, node)
        except RuntimeError as error:
            refuse_nested(args, error)
            raise

    def _record_tensor(
        self,
        op: Op,
        args: Sequence[object],
        inner: list[object],
        kwargs: dict[str, object],
        out: torch.Tensor,
        edges: tuple[Edge | None, ...],
        wanted: int,
        spans: dict[int, int] | None,
    ) -> Any:
        """Return the one result of a call as a value with a history, as :meth:`_record_results`
        does with more work."""
        dtype = out.dtype
        if dtype not in DIFFERENTIABLE or (op.special and op.nondiff):
            return self._wrap_plain(op, args, kwargs, out)
        node = OpNode.of(op, self, edges, (), wanted, spans)
        value = self.wrap(out, (node, 0))
        # `meta_of` asks first whether the tensor is nested, which each call would pay for
        try:
            node.metas = ((out.shape, dtype),)
        except RuntimeError:  # a nested tensor has no shape
            check_origin(op, args)
            node.metas = (meta_of(out, dtype),)
        if type(node) is not Undifferentiable:  # which only raises, and needs nothing
            node.save_unpacked(inner, kwargs, out)
        if op.kind is VIEW:
            view_history.mark_view(value, op, args, kwargs)
        return value

    def _is_recording(self) -> bool:
        """Return whether calls are recorded. A capture of a program in inference mode switches grad
        mode on for what the program records, so only the session asks for both."""
        if self.number:
            return torch.is_grad_enabled()
        return is_recording()

    def _any_with_history(self, args: Iterable[object]) -> bool:
        """Return whether calls are recorded and a value of the level requires grad."""
        if not self._is_recording():
            return False
        return any(
            isinstance(argument, Value)
            and argument._level is self
            and edge_of(argument) is not None
            for argument in args
        )

    def _call_special(self, op: Op, args: Sequence[object], kwargs: dict[str, object]) -> Any:
        """Run a call that makes no node of its own: the op writes, is composite, or has no
        derivative by nature. ``NotImplemented`` for any other call."""
        if op.kind is INPLACE:
            return inplace.run(self, op, args, kwargs)
        if op.kind is OUT:
            return self._write_to_out(op, args, kwargs)
        record = op.record
        if record is None and op.composite:
            return self.run_inside(op.func.decompose, args, kwargs)
        if record is None or record.nondiff is not True:
            return NotImplemented
        if op.func is READ_OF_NUMBER and self._any_with_history(args):
            refuse_taken_number()
        outputs = self.outward(op, self.lowered_args(args), self.lowered_kwargs(kwargs))
        return self._wrap_plain(op, args, kwargs, outputs)

    def _record_under_hooks(
        self,
        op: Op,
        args: object,
        inner: list[object],
        kwargs: dict[str, object],
        edges: tuple[Edge | None, ...],
        wanted: int,
        spans: dict[int, int] | None,
    ) -> Any:
        """Run a call under pack hooks. They see the saved arguments before the kernel runs, so a
        hook can stop the call."""
        node = OpNode.of(op, self, edges, (), wanted, spans)
        # an argument that the kernel fills has no value yet
        if type(node) is not Undifferentiable and not op.nondiff and not op.fills_argument:
            node.save(inner, kwargs, None)
        outputs = self.outward(op, inner, kwargs)
        return self._record_results(op, args, inner, kwargs, outputs, node)

    def _record_results(
        self,
        op: Op,
        args: Any,
        inner: list[object],
        kwargs: dict[str, object],
        outs: Any,
        node: Node,
    ) -> Any:
        """Return the results ``outs`` of the call as values with the history ``node``, which saves
        what its formulas need. Results that have no gradient by nature get no history."""
        results: Sequence[Any] = (outs,) if isinstance(outs, torch.Tensor) else outs
        if not isinstance(results, (tuple, list)):
            return outs
        recorded = [
            isinstance(output, torch.Tensor)
            and index not in op.nondiff
            and output.dtype in DIFFERENTIABLE
            for index, output in enumerate(results)
        ]
        if not any(recorded):
            return self._wrap_plain(op, args, kwargs, outs)
        node.metas = _metas_of(results, op, args)
        if isinstance(node, OpNode):
            node.save(inner, kwargs, outs)
        view = op.kind is VIEW

        def wrap_result(output: torch.Tensor, which: int | None) -> object:
            """Return one result as a value, or as it is if it can never have a history."""
            place = which or 0
            # the result of a view op follows its base, also as an integer
            if not (recorded[place] or view or output.dtype in self.wrapped_dtypes):
                return output
            edge = (node, place) if recorded[place] else None
            value = self.wrap(output, edge)
            if view:
                view_history.mark_view(value, op, args, kwargs, which)
            return value

        return rewrapped(outs, wrap_result)

    def _wrap_plain(
        self, op: Op, args: Sequence[object], kwargs: dict[str, object], outs: object
    ) -> Any:
        """Return the results as values without history. Integers of a transform stay unwrapped,
        because they can never get a history."""
        view = op.kind is VIEW
        if not isinstance(outs, torch.Tensor):

            def wrap_result(output: torch.Tensor, which: int | None) -> object:
                if view or output.dtype in self.wrapped_dtypes:
                    return self._wrap_one_plain(output, op, args, kwargs, which)
                return output

            return rewrapped(outs, wrap_result)
        if not view and outs.dtype not in self.wrapped_dtypes:
            return outs
        # `_wrap_one_plain`, without its frame
        value = self.wrap(outs)
        if value._nested:
            check_origin(op, args)
        if view and not op.nondiff:
            view_history.mark_view(value, op, args, kwargs)
        return value

    def _wrap_one_plain(
        self,
        out: torch.Tensor,
        op: Op,
        args: Arguments,
        kwargs: dict[str, object],
        which: int | None,
    ) -> Any:
        """Return result ``which`` of a call as a value without history. The result of a view op
        follows its base, which may get a history later."""
        value = self.wrap(out)
        if value._nested:
            check_origin(op, args)
        if op.kind is VIEW:
            view_history.mark_view(value, op, args, kwargs, which)
        return value

    def _write_to_out(self, op: Op, args: Sequence[object], kwargs: dict[str, object]) -> object:
        """Run a call that writes to the tensors of ``out=``, and return them. Raise if an argument
        requires grad, as torch does."""
        if self._any_with_history(items_of((*args, *kwargs.values()))):
            raise settled(
                RuntimeError(
                    f"{op.base_name}(): functions with out=... arguments don't support automatic "
                    "differentiation, but one of the arguments requires grad."
                )
            )
        outer = self.outward(op, self.lowered_args(args), self.lowered_kwargs(kwargs))
        targets = _tensors_of_out(op, kwargs)
        for target in targets:
            if isinstance(target, Value) and target._level is self:
                # the kernel resizes an `out=` of another shape
                if target.shape != target._inner.shape:
                    inplace.follow_inner(target)
                inplace.unrecorded(target)
        if outer is None or not targets:
            return outer  # an op whose out= is a list returns nothing
        if isinstance(outer, torch.Tensor):
            return targets[0]
        return tuple(targets)


def _metas_of(results: Sequence[object], op: Op, args: Sequence[object]) -> tuple[object, ...]:
    """Return the facts that a node keeps of each result of a call, None for other objects."""
    try:
        return tuple(
            (output.shape, output.dtype) if isinstance(output, torch.Tensor) else None
            for output in results
        )
    except RuntimeError:  # a nested tensor has no shape
        check_origin(op, args)
    return tuple(
        meta_of(output, output.dtype) if isinstance(output, torch.Tensor) else None
        for output in results
    )


def _decomposition_for_history(op: Op) -> Any:
    """Return the decomposition of an op without a formula, None if it has one or no derivative by
    nature."""
    record = op.record
    if record is not None and (record.vjp is not None or record.nondiff):
        return None
    return decomposition_of(op, "vjp")


def _tensors_of_out(op: Op, kwargs: dict[str, object]) -> list[torch.Tensor]:
    """List the tensors that a call is to write to: those of ``out``, ``U``, ``values``, …"""
    written = [
        kwargs.get(argument.name)
        for argument in op.func._schema.arguments
        if argument.kwarg_only and argument.alias_info is not None
    ]
    return tensors_of(written)
