"""Trace a program that asks for gradients.

    def step(x):
        model(x).sum().backward()
        return [p.grad for p in model.parameters()]

    make_fx(step)(x)        # the graph has the calls of the backward pass, too

The program runs at two levels: a trace, and a tape inside it. So the calls that the tape makes in a
backward pass are in the graph. Arguments that require grad are leaves of the tape, and so are
parameters that the program closes over. The caller's ``.grad`` stays as it is: a trace changes
nothing outside.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ...rules.ops import DIFFERENTIABLE, INPLACE, op_of
from ...seam.call_types import Arguments, Keywords
from ...seam.escapes import living
from ...seam.levels import Value
from ...seam.surgery import GEOMETRY, refit
from ...session.tensor import Tensor
from ...tape.hooks import register
from ...tape.node_protocol import Hooks
from ...tape.nodes import Node
from ...tape.values import GradValue, edge_of
from ...torch_private.mode_stacks import unseen_by_handlers, without_modes
from ...trace.provenance import here
from ...trace.trace_level import Trace
from ..python_state.closed_over import ClosedOver
from .kept_gradients import KeptGradient
from .leaf_gradients import LeafGradients
from .program_tape import ProgramTape


class TraceTape(ProgramTape):
    """Record a program that is traced and not functionalized.

    ``accumulated``: for the node of a leaf, the leaf's value and the hooks that the program has
    registered for the complete gradient.
    """

    __slots__ = ("accumulated",)
    what = Trace.what

    def __init__(self) -> None:
        super().__init__()
        self.accumulated: dict[Node, tuple[GradValue, Hooks]] = {}

    def after_accumulating(
        self, value: Any, hook: Callable[[torch.Tensor], object]
    ) -> RemovableHandle:
        """Register ``hook`` for the complete gradient of leaf ``value``."""
        edge = edge_of(value)
        if edge is None or not value.is_leaf:
            raise RuntimeError(
                "post accumulate grad hooks are for leaves that require grad. "
                f"Call register_hook() of another tensor.{here()}"
            )
        _leaf, hooks = self.accumulated.setdefault(edge[0], (value, OrderedDict()))
        return register(hooks, hook)

    def call(self, func: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Run an op. An in-place op that only changes sizes, such as ``squeeze_`` of a tensor
        without history, becomes the same call in the graph."""
        op = op_of(func)
        if op.kind is not INPLACE or op.base_name not in GEOMETRY or edge_of(args[0]) is not None:
            return super().call(func, args, kwargs)
        # the graph has the call itself, so that a replay changes an argument as the program does
        target = args[0]
        inner = func(target._inner, *args[1:], **kwargs)
        refit(target, self.wrap(inner))
        return target


class TracedGradients(LeafGradients):
    """Store the gradients of leaves in one trace.

    The hooks of a leaf are called, so that what they do to a gradient is in the graph. ``inputs``:
    the caller's arguments. ``arguments``: the values that the program has in their place.
    """

    def __init__(self, inputs: Sequence[object], arguments: Sequence[object]) -> None:
        super().__init__({}, dict(enumerate(arguments)))
        self.inputs = inputs

    def tensor_of(self, entry: KeptGradient) -> Any:
        """Return the caller's tensor with gradient ``entry``; None for a leaf of the program."""
        if type(entry.leaf) is int:  # the number of an argument
            return self.inputs[entry.leaf]
        return entry.leaf

    def read(self, entry: KeptGradient) -> None:
        """Find the gradient from before the trace, which is a constant of the graph."""
        entry.known = True
        leaf = self.tensor_of(entry)
        if leaf is None:
            return
        before = leaf._grad if isinstance(leaf, Tensor) else self.plain_gradient(leaf)
        entry.value = self.as_value(before)

    def check_input(self, tensor: object) -> None:
        """Refuse nothing: hooks of a leaf, which the base class refuses, are called in the
        trace."""

    def check_leaf(self, entry: KeptGradient, node: Node) -> None:
        """Raise if an argument has a history, which a backward pass of the graph would end in."""
        leaf = self.tensor_of(entry)
        if leaf is not None and not leaf.is_leaf:
            raise RuntimeError(
                "backward() in the program reaches an argument that has a history from "
                f"before the trace. Pass its detach(), or what it was computed from.{here()}"
            )

    def after_adding(self, entry: KeptGradient, node: Node) -> None:
        """Call the hooks for the complete gradient of a leaf, each with the program's value."""
        leaf, level = self.tensor_of(entry), node.level
        assert isinstance(level, TraceTape)
        for value, hooks in (
            (entry.like, getattr(leaf, "_post_accumulate", None)),  # of a tensor of the session
            (entry.like, getattr(leaf, "_post_accumulate_grad_hooks", None)),  # of one of torch
            level.accumulated.get(node, (None, None)),  # those of the program itself
        ):
            for hook in list((hooks or {}).values()):  # a copy: a hook may remove itself
                hook(value)


class Recording:
    """Run a program on a tape inside the trace ``level``.

    Values of the tape stand for its arguments and for tensors that it closes over.
    """

    def __init__(self, level: Trace) -> None:
        self.level = level
        self.tape = TraceTape()
        self.mode = ClosedOver(self._input_for_closed_over)

    def run(
        self, function: Callable[..., object], inputs: Sequence[object], values: Sequence[object]
    ) -> Any:
        """Return ``function(*arguments)`` with values of the tape for arguments.

        ``inputs``: the caller's arguments. ``values``: the values of the trace for them. What is no
        tensor is passed as it is.
        """
        arguments = list(values)
        for index, (tensor, value) in enumerate(zip(inputs, values, strict=True)):
            if isinstance(value, Value):
                arguments[index] = self._input_for(tensor, value)
        with self.mode, TracedGradients(inputs, arguments):
            return living(self.tape.run_inside(function, arguments, {}))

    def _input_for_closed_over(self, tensor: torch.Tensor) -> object:
        """Return the value of the tape for a tensor that the program closes over."""
        # the modes of the trace and of this recording would see that its memory is read
        with without_modes(), unseen_by_handlers():
            constant = self.level.constant(tensor)
        return self._input_for(tensor, constant)

    def _input_for(self, tensor: Any, value: torch.Tensor) -> Any:
        """Return the value of the tape for the caller's ``tensor``.

        ``value``: its value at the trace. The result requires grad if ``tensor`` does, and is a
        leaf if ``tensor`` is one.
        """
        if value.dtype not in DIFFERENTIABLE:
            return value
        if not tensor.requires_grad:
            return self.tape.wrap(value)
        if not tensor.is_leaf:
            return self.tape.input(value)
        # hooks of the caller's leaf see the gradient that the program computes
        leaf = self.tape.wrap(value).requires_grad_()
        if tensor._backward_hooks:
            leaf._edge[0].hooks_of(0).update(tensor._backward_hooks)
        return leaf

    def lowered(self, value: object) -> object:
        """Return the value of the trace for ``value``, a result of the program or of its part."""
        return self.tape.lowered(self.mode.value(value))

    def close(self) -> None:
        """End the run: its values may not be used any more."""
        self.tape.close()
