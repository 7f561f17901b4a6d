"""A trace of a program that asks for gradients.

    def step(x):
        model(x).sum().backward()
        return [p.grad for p in model.parameters()]

    make_fx(step)(x)        # the graph has the calls of the backward pass, too

The program runs at two levels, trace ⊃ tape. So the calls that the tape makes in a backward pass
are in the graph. Arguments that require grad are leaves of the tape, and so are parameters that
the program closes over. The caller's ``.grad`` stays as it is: a trace changes nothing outside.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ...rules.ops import DIFFERENTIABLE, INPLACE, op_of
from ...seam.escapes import living
from ...seam.levels import Value
from ...seam.surgery import GEOMETRY, refit
from ...session.tensor import Tensor
from ...tape.hooks import register
from ...tape.node_protocol import Hooks
from ...tape.nodes import Node
from ...tape.values import edge_of
from ...torch_private.mode_stacks import unseen_by_handlers, without_modes
from ...trace.provenance import here
from ...trace.trace_level import Trace
from ..python_state.closed_over import ClosedOver
from .leaf_gradients import KeptGradient, LeafGradients
from .program_tape import ProgramTape


class TraceTape(ProgramTape):
    """The tape of a program that is traced and not functionalized."""

    __slots__ = ("accumulated",)
    what = Trace.what

    def __init__(self) -> None:
        super().__init__()
        # by the node of a leaf, the leaf, and the hooks for its complete gradient
        self.accumulated: dict[Node, tuple[Any, Hooks]] = {}

    def after_accumulating(self, v: Any, hook: Callable[[Any], object]) -> RemovableHandle:
        edge = edge_of(v)
        if edge is None or not v.is_leaf:
            raise RuntimeError(
                "post accumulate grad hooks are for leaves that require grad. "
                f"Call register_hook() of another tensor.{here()}"
            )
        return register(self.accumulated.setdefault(edge[0], (v, OrderedDict()))[1], hook)

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        op = op_of(func)
        if op.kind is not INPLACE or op.base_name not in GEOMETRY or edge_of(args[0]) is not None:
            return super().call(func, args, kwargs)
        # the graph has the call itself, so that a replay changes an argument as the program does
        target = args[0]
        inner = func(target._inner, *args[1:], **kwargs)
        refit(target, self.wrap(inner))
        return target


class TracedGradients(LeafGradients):
    """The gradients of leaves in one trace. The hooks of a leaf are called: what they do to a
    gradient is in the graph. ``inputs``: the caller's arguments."""

    def __init__(self, inputs: Sequence[object], arguments: Sequence[object]) -> None:
        super().__init__({}, arguments)
        self.inputs = inputs

    def tensor_of(self, kept: KeptGradient) -> Any:
        """Return the caller's tensor that ``kept`` is the gradient of."""
        if type(kept.leaf) is int:
            return self.inputs[kept.leaf]
        return kept.leaf

    def read(self, kept: KeptGradient, dropped: bool) -> None:
        kept.known = True
        leaf = self.tensor_of(kept)
        if dropped or leaf is None:
            return
        before = leaf._grad if isinstance(leaf, Tensor) else self.plain_gradient(leaf)
        kept.value = self.as_value(before)

    def check_input(self, t: object) -> None:
        """Hooks of a leaf are called in the trace."""

    def check_leaf(self, kept: KeptGradient, node: Node) -> None:
        leaf = self.tensor_of(kept)
        if leaf is not None and not leaf.is_leaf:
            raise RuntimeError(
                "backward() in the program reaches an argument that has a history from "
                f"before the trace. Pass its detach(), or what it was computed from.{here()}"
            )

    def completed(self, kept: KeptGradient, node: Node) -> None:
        leaf, level = self.tensor_of(kept), node.level
        assert isinstance(level, TraceTape)
        for v, hooks in (
            (kept.like, getattr(leaf, "_post_accumulate", None)),
            (kept.like, getattr(leaf, "_post_accumulate_grad_hooks", None)),
            level.accumulated.get(node, (None, None)),
        ):
            for hook in list((hooks or {}).values()):
                hook(v)


class Recording:
    """The tape of one run of a program at ``level``, and what the program sees of its arguments
    and of tensors from outside."""

    def __init__(self, level: Trace) -> None:
        self.level = level
        self.tape = TraceTape()
        self.mode = ClosedOver(self._from_outside)

    def run(
        self, f: Callable[..., object], inputs: Sequence[object], values: Sequence[object]
    ) -> Any:
        """``f(*arguments)``. ``inputs``: the caller's arguments. ``values``: what stands for them
        at the trace."""
        arguments = [
            self._entered(t, v) if isinstance(v, Value) else v
            for t, v in zip(inputs, values, strict=True)
        ]
        with self.mode, TracedGradients(inputs, arguments):
            return living(self.tape.run_inside(f, arguments, {}))

    def _from_outside(self, t: torch.Tensor) -> object:
        # the modes of the trace and of this recording would see that its memory is read
        with without_modes(), unseen_by_handlers():
            constant = self.level.constant(t)
        return self._entered(t, constant)

    def _entered(self, t: Any, v: Any) -> Any:
        """Return the value of the tape for ``t``, for which ``v`` stands at the trace."""
        if v.dtype not in DIFFERENTIABLE:
            return v
        if not t.requires_grad:
            return self.tape.wrap(v)
        if not t.is_leaf:
            return self.tape.input(v)
        entered = self.tape.wrap(v).requires_grad_()
        if t._backward_hooks:
            entered._edge[0].hooks_of(0).update(t._backward_hooks)
        return entered

    def lowered(self, x: object) -> Any:
        """``x``, a result of the program or of a part of it, at the trace."""
        return self.tape.lowered(self.mode.value(x))

    def close(self) -> None:
        self.tape.close()
