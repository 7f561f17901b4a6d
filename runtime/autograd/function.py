"""``Function``: an operation with a derivative of the user's own, as ``torch.autograd.Function``.

``MyFn.apply(*args)`` finds the innermost level among its arguments, as an ATen call does. Then the
rule of that level runs. A grad level records a :class:`FunctionNode`. A dual level calls the
``jvp`` staticmethod, a batch level calls ``vmap`` (``autograd/function_rules.py``). Each rule calls
:func:`dispatch` again, on the tensors that its values hold. So ``forward`` runs only once under
nested transforms, at the outermost level. Each level calls ``setup_context``, because each makes a
node or a tangent of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Signature, signature
from typing import Any, NoReturn

import torch

from ..seam.escapes import escaped
from ..seam.level_mode import entering
from ..seam.levels import SCOPE, Level, Value, bottom, lifted, scope_outside
from ..seam.surgery import now
from ..session.leaf import as_leaf
from ..session.session import Session
from ..tape import inplace, view_history
from ..tape.foreign import pass_mark_on
from ..tape.grad_level import GradLevel
from ..tape.nodes import AccumulateGrad, Edge, Input
from ..tape.values import edge_of
from ..torch_private.native_autograd import increment_version, set_grad_enabled
from ..torch_private.pytrees import pytree
from .function_node import (
    DECORATORS,
    INTERFACES,
    FunctionCtx,
    FunctionNode,
    as_outputs,
    as_returned,
    defines,
)

_grad_enabled = torch.is_grad_enabled

_EXTENDING = "torch's note «Extending torch.func with autograd.Function» says how."
TANGENT_NOT_WRITTEN = (
    "An inplace custom Function is not modifying the forward mode gradients inplace. "
    "For an input that forward writes to (mark_dirty), "
    "the jvp function must modify the corresponding gradient inplace and return it."
)
_LEGACY = (
    "Legacy autograd function with non-static forward method is deprecated. Make forward "
    "and backward static methods, which get a ctx in place of self, and call the class's apply."
)


class FunctionMeta(type):
    """The class of Functions. ``_backward_cls``: the class of their nodes."""

    @property
    def _backward_cls(cls) -> type[FunctionNode]:
        return definition_of(cls).node_class  # type: ignore[arg-type]


class Function(FunctionCtx, metaclass=FunctionMeta):
    """The base class of operations with a derivative of their own. As ``torch.autograd.Function``.

    A subclass has ``forward(ctx, *args)``, or ``forward(*args)`` and
    ``setup_context(ctx, inputs, output)``. Function transforms need the second form.
    ``backward(ctx, *grad_outputs)``, also called ``vjp``, returns one gradient per argument of
    ``forward``, None where there is none. ``jvp(ctx, *tangents)`` returns the tangents of the
    outputs. ``vmap(info, in_dims, *args)`` returns ``(output, out_dims)``. With
    ``generate_vmap_rule = True`` vmap uses the other methods instead.

    ``ctx`` is the node of the tape: ``out.grad_fn is ctx``.
    """

    generate_vmap_rule = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            (
                f"{type(self)} should not be instantiated. A Function keeps its state in ctx: "
                f"call {type(self).__name__}.apply."
            ),
            DeprecationWarning,
            stacklevel=2,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(_LEGACY)

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            "You must implement the forward function for custom autograd.Function."
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom "
            "autograd.Function to use it with backward mode AD."
        )

    @staticmethod
    def vjp(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError("vjp is another name for backward; implement one of them.")

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        raise NotImplementedError(
            "You must implement the jvp function for custom autograd.Function to use "
            "it with forward mode AD."
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        raise NotImplementedError(
            "To use autograd.Function with vmap, "
            "you must either override vmap or set generate_vmap_rule=True."
        )

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward`` on ``args`` and record the operation at every level that has a
        value among them."""
        return apply(cls, args, kwargs)


class InplaceFunction(Function):
    """A Function that may work in place. As ``torch.autograd.function.InplaceFunction``."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace


INTERFACES.update((Function, InplaceFunction))
FunctionClass = type[Function]
"""A subclass of :class:`Function`. Under the drop-in also one of torch's Function, which has the
same staticmethods."""


class _Definition:
    """Facts of a class, computed once: the class of its nodes, and the signature that binds
    keyword arguments."""

    __slots__ = ("has_setup", "node_class", "signature")

    def __init__(self, cls: FunctionClass) -> None:
        self.has_setup = defines(cls, "setup_context")
        made = {"_forward_cls": cls, "_boxed_grads": getattr(cls, "boxed_grads_call", False)}
        self.node_class: type[FunctionNode] = type(f"{cls.__name__}Backward", (FunctionNode,), made)
        self.signature: Signature | None = None

    def bind(
        self, cls: FunctionClass, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...]:
        """``args`` with keyword arguments and defaults in their places, so that every
        input has a position."""
        if self.signature is None:
            self.signature = signature(cls.forward)
        skip = () if self.has_setup else (None,)
        bound = self.signature.bind(*skip, *args, **kwargs)
        bound.apply_defaults()
        if bound.kwargs:
            raise TypeError(
                f"{cls.__name__}.apply: "
                f"forward has keyword-only parameters {sorted(bound.kwargs)}; make them positional"
            )
        return bound.args[len(skip) :]


def definition_of(cls: FunctionClass) -> _Definition:
    found: _Definition | None = vars(cls).get("_runtime_definition")
    if found is None:
        found = cls._runtime_definition = _Definition(cls)  # type: ignore[attr-defined]
    return found


Rule = Callable[[Any, FunctionClass, tuple[Any, ...]], tuple[Any, Any]]
_rules: dict[type, Rule] = {}  # how a level calls custom Functions, by its class


def rule(level_class: type) -> Callable[[Rule], Rule]:
    """Declare the rule ``(level, cls, args) -> (output, ctx)`` of a class of levels. Without a
    rule, a level sees the ATen calls that ``forward`` makes."""

    def declare(f: Rule) -> Rule:
        _rules[level_class] = f
        return f

    return declare


def apply(cls: FunctionClass, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
    """``cls.apply(*args, **kwargs)`` for any class with the staticmethods of :class:`Function`."""
    if kwargs or definition_of(cls).has_setup:
        args = definition_of(cls).bind(cls, args, kwargs)
    args = tuple(map(now, args))
    value = entering()
    if value is not None:
        args = tuple(map(value, args))
    if _grad_enabled() and any(map(_is_plain_leaf, args)):
        args = tuple(
            as_leaf(a) if isinstance(a, torch.Tensor) and a.requires_grad else a for a in args
        )
    output = dispatch(cls, args)[0]
    pass_mark_on(args, output)
    return output


def _is_plain_leaf(a: object) -> bool:
    """Return whether ``a`` is a tensor that requires grad by torch's own engine."""
    return isinstance(a, torch.Tensor) and not isinstance(a, Value) and a.requires_grad


def dispatch(cls: FunctionClass, args: tuple[object, ...]) -> tuple[Any, Any]:
    """Run ``cls`` by the rule of the innermost level among ``args``. Returns its output and the ctx
    that this level's rule made."""
    # also here: an inner transform may hold a tensor from outside, which no call has met
    value = entering()
    if value is not None:
        args = tuple(map(value, args))
    level = _innermost(args)
    if level is None:
        return run_forward(cls, args)
    if not level.alive:
        raise escaped(level, cls.__name__)
    acting = level.acting()
    found = next((_rules[c] for c in type(acting).__mro__ if c in _rules), None)
    counts = [] if isinstance(level, Session) else _counts(level, args)
    with scope_outside(level):
        if found is None:
            output, ctx = run_forward(cls, args)
        else:
            output, ctx = found(acting, cls, args)
    _count_writes(counts)
    if SCOPE.levels:
        output = _lifted(output, args, level.number)
    return output, ctx


_Count = tuple[Value, int, torch.Tensor, int]  # a value and the tensor that it holds, with versions


def _counts(level: Level, args: tuple[object, ...]) -> list[_Count]:
    return [
        (a, a._version, a._inner, a._inner._version)
        for a in args
        if isinstance(a, Value) and a._level is level and not bottom(a).is_inference()
    ]


def _count_writes(before: list[_Count]) -> None:
    """Count on each value the writes to the tensor that it holds, which no call has shown to its
    level. A value with the memory of that tensor has its counter, too."""
    for value, version, inner, inner_version in before:
        if value._inner is inner:
            for _ in range(inner._version - inner_version - (value._version - version)):
                value.count_write()


def _lifted(output: object, args: tuple[object, ...], number: int) -> Any:
    """Lift fresh outputs into the transforms in scope. A returned argument, or a view of
    one, stays as it is."""
    if isinstance(output, tuple):
        return tuple(_lifted(o, args, number) for o in output)
    if position_of(output, args) is not None or getattr(output, "_view", None) is not None:
        return output
    return lifted(output, number)


def _written_itself(output: object) -> object:
    """``output`` with the written argument itself in place of the alias that a caller gets for it.
    ``setup_context`` marks the argument, and the tape makes an alias of its own."""

    def written(v: Value) -> Value:
        return v if v.released_from is None else v.released_from

    return pytree.tree_map_only(Value, written, output)


def require_setup_context(cls: FunctionClass) -> None:
    """Raise unless ``cls`` has ``setup_context``, which transforms call apart from ``forward``."""
    if not definition_of(cls).has_setup:
        raise RuntimeError(
            "In order to use an autograd.Function with functorch transforms (vmap, grad, jvp, "
            f"jacrev, ...), it must override the setup_context staticmethod. {_EXTENDING}"
        )


def _innermost(args: tuple[object, ...]) -> Level | None:
    leaves: Sequence[Any] = args
    if any(isinstance(a, (list, tuple, dict)) for a in args):
        leaves = pytree.tree_leaves(args)
    best: Level | None = None
    for a in leaves:
        if isinstance(a, Value) and (best is None or a._level.number > best.number):
            best = a._level
    return best


def lowered(level: Level, tree: pytree.PyTree) -> pytree.PyTree:
    """``tree`` with the tensors that values of ``level`` hold in place of these values."""
    return pytree.tree_map_only(Value, lambda v: v._inner if v._level is level else v, tree)


def new_ctx(
    cls: FunctionClass,
    needs: Sequence[bool],
    level: GradLevel | None = None,
    edges: tuple[Edge | None, ...] = (),
) -> FunctionNode:
    """Return a ctx for one run of ``cls``. Without a level it belongs to no tape."""
    ctx = definition_of(cls).node_class(level, edges, ())  # type: ignore[arg-type]
    ctx.needs_input_grad = tuple(needs)
    return ctx


def run_forward(
    cls: FunctionClass, args: tuple[object, ...], ctx: FunctionNode | None = None
) -> tuple[Any, FunctionNode]:
    """Run ``forward`` and ``setup_context`` with grad mode off. Returns the output and the ctx."""
    definition = definition_of(cls)
    if ctx is None:
        ctx = new_ctx(cls, [False] * len(args))
    was = _grad_enabled()
    set_grad_enabled(False)
    try:
        if definition.has_setup:
            output = cls.forward(*args)
            cls.setup_context(ctx, args, output)
        else:
            output = cls.forward(ctx, *args)
    finally:
        set_grad_enabled(was)
    if ctx.dirty_tensors:
        # as torch does: forward may have written without the dispatcher
        for t in ctx.dirty_tensors:
            if isinstance(t, Value):
                t.count_write()
            else:
                increment_version([t])
    return output, ctx


@rule(GradLevel)
def _record(
    level: GradLevel, cls: FunctionClass, args: tuple[object, ...]
) -> tuple[object, object]:
    """Run the Function at the next outer level, and record a node on this level's tape."""
    old_style = level.runs_ctx_forward and not definition_of(cls).has_setup
    if not old_style:
        require_setup_context(cls)
    ctx, recording = _node(level, cls, args)
    given = tuple(lowered(level, a) for a in args)
    was = _grad_enabled()
    set_grad_enabled(was and level.outer_mode)
    try:
        with level.shown_to_forward(ctx, args, given):
            if old_style:
                output, _ = run_forward(cls, given, ctx)
            else:
                output = _written_itself(dispatch(cls, given)[0])
                cls.setup_context(ctx, given, output)
    finally:
        set_grad_enabled(was)
    application = _Application(level, cls, ctx, args, given, as_outputs(output), recording)
    wrapped = application.outputs()
    ctx.forget_marks()
    return as_returned(wrapped, output), ctx


@rule(Session)
def _record_in_session(
    session: Session, cls: FunctionClass, args: tuple[object, ...]
) -> tuple[object, object]:
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
    ctx, recording = _node(session, cls, args)
    output, _ = run_forward(cls, args, ctx)
    application = _InSession(session, cls, ctx, args, args, as_outputs(output), recording)
    wrapped = application.outputs()
    return as_returned(wrapped, output), application.outs, ctx


def _node(
    level: GradLevel, cls: FunctionClass, args: tuple[object, ...]
) -> tuple[FunctionNode, bool]:
    """Return the node of a call, and whether it is put on the tape."""
    edges: list[Edge | None] = []
    needs = []
    for a in args:
        edge = edge_of(a) if isinstance(a, Value) and a._level is level else None
        needs.append(edge is not None)
        if isinstance(a, torch.Tensor):
            edges.append(edge)
    recording = _grad_enabled() and any(needs)
    return new_ctx(cls, needs, level, tuple(edges) if recording else ()), recording


def check_marks(ctx: FunctionCtx, outs: Sequence[object], given: Sequence[object]) -> None:
    """Raise unless every argument of ``mark_dirty`` is an input and an output."""
    for d in ctx.dirty_tensors:
        if not any(d is o for o in outs):
            raise RuntimeError(
                "Some elements marked as dirty during the forward method were not returned as "
                "output. Return from forward every tensor that it gives to mark_dirty."
            )
        if _grad_enabled() and any(ctx.needs_input_grad) and not any(d is x for x in given):
            warnings.warn(
                (
                    "ctx.mark_dirty() received a tensor that was not an input. "
                    "It is for inputs that forward has written to."
                ),
                UserWarning,
                stacklevel=4,
            )


def position_of(t: object, tensors: Sequence[object]) -> int | None:
    """Return the position of the object ``t`` itself among ``tensors``."""
    return next((i for i, x in enumerate(tensors) if x is t), None)


@dataclass
class _Application:
    """A call of a Function at a grad level. ``given``: ``args`` as ``forward`` got them. ``outs``:
    the outputs that it returned."""

    level: GradLevel
    cls: FunctionClass
    ctx: FunctionNode
    args: tuple[Any, ...]
    given: tuple[Any, ...]
    outs: tuple[Any, ...]
    recording: bool

    def outputs(self) -> tuple[Any, ...]:
        """Return the outputs as values of the level, each with its history."""
        check_marks(self.ctx, self.outs, self.given)
        wrapped = tuple(self.output(i, o) for i, o in enumerate(self.outs))
        if self.recording:
            self.ctx.record(self.args, self.given, self.outs)
        return wrapped

    def output(self, i: int, o: object) -> Any:
        """Return output number ``i``, a tensor as a value of the level with its history."""
        if not isinstance(o, torch.Tensor):
            return o
        if isinstance(o, Value) and o._level.number > self.level.number:
            return o  # an inner level recorded it. Example: a trace of the session's tensors
        edge: Edge | None = None
        if self.recording and self.ctx.differentiates(o):
            edge = (self.ctx, i)
        source = position_of(o, self.given)
        if source is not None and position_of(o, self.ctx.dirty_tensors) is not None:
            return self.written(source, edge)
        returned = None if source is None else self.args[source]
        v = self.made(o, returned, edge)
        base = self.base_of(o, source, edge) if _grad_enabled() else None
        if base is not None:
            v._view = view_history.View(base, (), "function")
        return v

    def base_of(self, o: torch.Tensor, source: int | None, edge: Edge | None) -> Any:
        """Return what the output ``o`` is a view of: the first argument that shares its memory, or
        the base of this argument. None if there is none. ``source``: which argument ``forward``
        returned as it was, if any.

        An argument may share its memory with another one, as ``x.detach()`` does with ``x``. An
        output without a history is no view of an argument that has one.
        """
        candidates = list(zip(self.args, self.given, strict=True))
        if source is not None:
            candidates = [candidates[source]]
        for a, x in candidates:
            if not self.owns(a) or (edge is None and a.requires_grad):
                continue
            if view_history.aliases(o, x):
                return a if a._view is None else a._view.base
        return None

    def owns(self, a: object) -> bool:
        return isinstance(a, Value) and a._level is self.level

    def written(self, source: int, edge: Edge | None) -> Any:
        """Return the output for an input that ``forward`` wrote to. Its new history is the node.
        Without one the input keeps its own."""
        target = self.args[source]
        if edge is None:
            released = self.level.releases_written and self.owns(target)
            if released and (target.requires_grad or view_history.base_edge(target) is not None):
                return target.detach()
            return target
        if not self.owns(target):
            self.level.refuse_captured_write(f"{self.cls.__name__}.apply")
        _rewrite(self.level, target, edge, len(self.outs), self.args[:source])
        return target

    def made(self, o: object, returned: object, edge: Edge | None) -> Any:
        """Return the output for a tensor that ``forward`` made. ``returned``: the argument, if
        ``forward`` returned one as it was, else None."""
        # a value of the level, if `forward` computed with a tensor from outside
        return self.level.wrap(lowered(self.level, o), edge)


class _InSession(_Application):
    def made(self, o: Any, returned: Any, edge: Edge | None) -> Any:
        if not self.owns(o):
            return self.level.wrap(o, edge)
        if returned is None:
            o._edge, o._req = edge, False
            if o._view is not None:
                # its history is the Function, also if forward wrote to the base
                o._view.generation = o._view.base._generation
            return o
        v = o.detach() if returned.requires_grad else o.view_as(o)
        v._edge = edge
        return v


def _rewrite(
    level: GradLevel, target: Any, edge: Edge, n_outputs: int, before: Sequence[object]
) -> None:
    """Give ``target``, an input that ``forward`` wrote to, its new history: the node. ``before``:
    the arguments before it."""
    view_history.refuse_stale_target(target)
    old = edge_of(target)
    if target._view is not None and n_outputs > 1:
        raise RuntimeError(
            "If your Function modifies inplace an input that is a view of another Tensor, "
            "your Function cannot return more than one Tensor. Call it on a clone, "
            "or give the part that writes a Function of its own, with one output."
        )
    if target._view is None and old is not None and isinstance(old[0], (AccumulateGrad, Input)):
        raise RuntimeError(
            "a leaf Variable that requires grad has been used in an in-place operation."
        )
    view_history.check_write(target, old, True)
    at = sum(isinstance(a, torch.Tensor) for a in before)
    inplace.rebase(level, target, edge, at)
    level.written_by_function(target)


def once_differentiable(backward: Callable[..., object]) -> Callable[..., Any]:
    """Decorates a ``backward`` that cannot be differentiated itself. As
    ``torch.autograd.function.once_differentiable``.

    ``backward`` runs with grad mode off. A derivative of its result raises ``RuntimeError``. Torch
    raises only for a derivative by the gradients that ``backward`` gets. Here a derivative by the
    saved tensors raises as well. Otherwise it would silently be zero."""

    @wraps(backward)
    def once(ctx: Any, *grads: object) -> Any:
        with torch.no_grad():
            result = backward(ctx, *grads)
        if not _grad_enabled():
            return result
        witnesses = [t for t in (*grads, *ctx.saved_tensors) if isinstance(t, Value)]
        if not witnesses:
            return result
        each = as_outputs(result)
        tensors = [r for r in each if isinstance(r, torch.Tensor)]
        guarded = iter(_Once.apply(len(tensors), *tensors, *witnesses))
        out = tuple(next(guarded) if isinstance(r, torch.Tensor) else r for r in each)
        return as_returned(out, result)

    return once


DECORATORS["once_differentiable"] = once_differentiable


class _Once(Function):
    """Returns the first ``n`` tensors. They depend on all of them, so a derivative by
    any of them raises."""

    generate_vmap_rule = True

    @staticmethod
    def forward(n: int, *tensors: Any) -> Any:
        return tuple(t.clone() for t in tensors[:n])

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        pass

    @staticmethod
    def backward(ctx: object, *grads: object) -> Any:
        raise RuntimeError(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )

    @staticmethod
    def jvp(ctx: object, *tangents: object) -> Any:
        raise RuntimeError(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )


__all__ = ["Function", "FunctionCtx", "FunctionMeta", "InplaceFunction", "once_differentiable"]
