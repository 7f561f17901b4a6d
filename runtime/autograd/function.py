"""Runs operations with a derivative of the user's own, as ``torch.autograd.Function``.

``MyFn.apply(*args)`` looks for the innermost level among its arguments, as an ATen call does. The
rule of that level runs. A grad level records a :class:`FunctionNode`. A dual level calls the
``jvp`` staticmethod, a batch level calls ``vmap`` (``autograd/function_rules.py``). Each rule calls
:func:`dispatch` again, on the tensors that its values hold. So ``forward`` runs only once under
nested transforms, at the outermost level. Each level calls ``setup_context``, because each makes a
node or a tangent of its own.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Signature, signature
from typing import Any, NoReturn

import torch

from ..seam.call_types import Keywords
from ..seam.escapes import escaped
from ..seam.level_mode import entering
from ..seam.levels import Level, Value, bottom
from ..seam.scope import SCOPE, lifted, scope_outside
from ..seam.surgery import now
from ..seam.user_code import noted, settled
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

_SEE_NOTE = "torch's note «Extending torch.func with autograd.Function» says how."
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
    """The base class of operations with a derivative of their own. The semantics are those of
    ``torch.autograd.Function``.

    Example::

        class Exp(Function):
            @staticmethod
            def forward(x):
                return x.exp()

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_backward(output)

            @staticmethod
            def backward(ctx, g):
                return g * ctx.saved_tensors[0]

        y = Exp.apply(x)

    A subclass has ``forward(ctx, *args)``, or ``forward(*args)`` and
    ``setup_context(ctx, inputs, output)``. Function transforms need the second form.
    ``backward(ctx, *grad_outputs)``, also called ``vjp``, returns one gradient per argument of
    ``forward``, None where there is none. ``jvp(ctx, *tangents)`` returns the tangents of the
    outputs. ``vmap(info, in_dims, *args)`` returns ``(output, out_dims)``. With
    ``generate_vmap_rule = True`` vmap uses the other methods instead.

    ``ctx`` is the node of the tape: ``out.grad_fn is ctx``.
    """

    generate_vmap_rule = False

    def __init__(self, *args: object, **kwargs: object) -> None:
        warnings.warn(
            (
                f"{type(self)} should not be instantiated. A Function keeps its state in ctx: "
                f"call {type(self).__name__}.apply."
            ),
            DeprecationWarning,
            stacklevel=2,
        )

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise settled(RuntimeError(_LEGACY))

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs. A subclass must define it."""
        raise settled(
            NotImplementedError(
                "You must implement the forward function for custom autograd.Function."
            )
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[object, ...], output: Any) -> Any:
        """Store on ``ctx`` what derivatives need. Without it ``forward`` gets the ctx."""
        raise settled(NotImplementedError("setup_context is not implemented."))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Return the gradient of each argument, from those of the outputs."""
        raise settled(
            NotImplementedError(
                "You must implement either the backward or vjp method for your custom "
                "autograd.Function to use it with backward mode AD."
            )
        )

    @staticmethod
    def vjp(ctx: object, *grad_outputs: object) -> Any:
        """Return the gradients, as ``backward``. A subclass has at most one of the two."""
        raise settled(
            NotImplementedError("vjp is another name for backward; implement one of them.")
        )

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        """Return the tangent of each output, from those of the arguments."""
        raise settled(
            NotImplementedError(
                "You must implement the jvp function for custom autograd.Function to use "
                "it with forward mode AD."
            )
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        """Return (output, its batch dimensions), from physical tensors with batch dimensions
        ``in_dims``. ``info``: the size of the batch and its randomness."""
        raise settled(
            NotImplementedError(
                "To use autograd.Function with vmap, "
                "you must either override vmap or set generate_vmap_rule=True."
            )
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
    """Facts of a subclass of Function, computed once: the class of its nodes, the signature of its
    ``forward``, and whether it has ``setup_context`` (then ``forward`` gets no ctx)."""

    __slots__ = ("has_setup", "node_class", "signature")

    def __init__(self, cls: FunctionClass) -> None:
        self.has_setup = defines(cls, "setup_context")
        attributes = {"_forward_cls": cls, "_boxed_grads": getattr(cls, "boxed_grads_call", False)}
        name = f"{cls.__name__}Backward"
        self.node_class: type[FunctionNode] = type(name, (FunctionNode,), attributes)
        self.signature: Signature | None = None  # of `forward`, as soon as `bind` needs it

    def bind(
        self, cls: FunctionClass, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[object, ...]:
        """Return the positional arguments of ``forward`` after ctx, for a call with ``args`` and
        ``kwargs``. Defaults are filled in. So every input has a position, and with it an edge.

        Raises ``TypeError`` if ``forward`` has keyword-only parameters."""
        if self.signature is None:
            self.signature = signature(cls.forward)
        ctx_place = () if self.has_setup else (None,)
        bound = self.signature.bind(*ctx_place, *args, **kwargs)
        bound.apply_defaults()
        if bound.kwargs:
            raise settled(
                TypeError(
                    f"{cls.__name__}.apply: "
                    f"forward has keyword-only parameters {sorted(bound.kwargs)}; "
                    "make them positional"
                )
            )
        return bound.args[len(ctx_place) :]


def definition_of(cls: FunctionClass) -> _Definition:
    """Return the :class:`_Definition` of ``cls``, which the class itself holds."""
    # `vars`, because an attribute would be inherited from a base class
    definition: _Definition | None = vars(cls).get("_runtime_definition")
    if definition is None:
        definition = cls._runtime_definition = _Definition(cls)  # type: ignore[attr-defined]
    return definition


# (level, class, arguments) -> (output, ctx)
Rule = Callable[[Any, FunctionClass, tuple[Any, ...]], tuple[Any, Any]]
_rules: dict[type, Rule] = {}  # how a level calls custom Functions, by the class of the level


def rule(level_class: type) -> Callable[[Rule], Rule]:
    """Declare the rule ``(level, cls, args) -> (output, ctx)`` of a class of levels. Without a
    rule, a level sees the ATen calls that ``forward`` makes."""

    def declare(f: Rule) -> Rule:
        _rules[level_class] = f
        return f

    return declare


def apply(cls: FunctionClass, args: tuple[object, ...], kwargs: Keywords) -> Any:
    """Return ``cls.apply(*args, **kwargs)`` for any class with the staticmethods of
    :class:`Function`, also a subclass of torch's class.

    The arguments are prepared here: keyword arguments get positions, tensors from outside of a
    captured program become its values, and torch's own leaves become leaves of the session.
    """
    if kwargs or definition_of(cls).has_setup:
        args = definition_of(cls).bind(cls, args, kwargs)
    args = tuple(map(now, args))
    value = entering()
    if value is not None:
        args = tuple(map(value, args))
    if _grad_enabled() and any(map(_is_plain_leaf, args)):
        args = tuple(
            as_leaf(argument)
            if isinstance(argument, torch.Tensor) and argument.requires_grad
            else argument
            for argument in args
        )
    output = dispatch(cls, args)[0]
    pass_mark_on(args, output)
    return output


def _is_plain_leaf(argument: object) -> bool:
    """Return whether ``argument`` is a tensor that requires grad by torch's own engine."""
    if not isinstance(argument, torch.Tensor) or isinstance(argument, Value):
        return False
    return argument.requires_grad


def dispatch(cls: FunctionClass, args: tuple[object, ...]) -> tuple[Any, Any]:
    """Run ``cls`` by the rule of the innermost level among ``args``. Return its output and the ctx
    that this level's rule has filled."""
    # also here, not only in `apply`: a value of an inner transform may have a tensor inside that is
    # from outside of the program that is captured, and which no call has met
    value = entering()
    if value is not None:
        args = tuple(map(value, args))
    level = _innermost(args)
    if level is None:
        return run_forward(cls, args)
    if not level.alive:
        raise escaped(level, cls.__name__)
    acting = level.acting()
    level_rule = next((_rules[c] for c in type(acting).__mro__ if c in _rules), None)
    # at the session `forward` writes to the tensors themselves, which count the writes
    versions = []
    if not isinstance(level, Session):
        versions = _read_versions(level, args)
    with scope_outside(level):
        if level_rule is None:
            output, ctx = run_forward(cls, args)
        else:
            output, ctx = level_rule(acting, cls, args)
    _count_writes(versions)
    if SCOPE.levels:
        output = _lift_fresh(output, args, level.number)
    return output, ctx


# (value, its version, the tensor that it holds, the version of that)
_Versions = tuple[Value, int, torch.Tensor, int]


def _read_versions(level: Level, args: tuple[object, ...]) -> list[_Versions]:
    """Return the version counters of those ``args`` that are values of ``level``. An inference
    tensor has none."""
    return [
        (argument, argument._version, argument._inner, argument._inner._version)
        for argument in args
        if isinstance(argument, Value)
        and argument._level is level
        and not bottom(argument).is_inference()
    ]


def _count_writes(before: list[_Versions]) -> None:
    """Count on each value the writes of ``forward`` to its inner tensor.

    The level of the value has seen no call that writes. A value that shares the memory of its
    tensor also shares the counter, so writes that it has counted already are subtracted.
    """
    for value, version, inner, inner_version in before:
        if value._inner is not inner:
            continue
        inner_writes = inner._version - inner_version
        counted = value._version - version
        for _ in range(inner_writes - counted):
            value.count_write()


def _lift_fresh(output: object, args: tuple[object, ...], number: int) -> object:
    """Return the output with fresh tensors of level ``number`` as values of each inner transform in
    scope. A returned argument, or a view of one, stays as it is."""
    if isinstance(output, tuple):
        return tuple(_lift_fresh(item, args, number) for item in output)
    if position_of(output, args) is not None or getattr(output, "_view", None) is not None:
        return output
    return lifted(output, number)


def _restore_written_arguments(output: object) -> object:
    """Return ``output`` with each alias of a written argument replaced by the argument itself.

    An outer level returned the alias to its caller. ``setup_context`` marks the argument, and the
    tape makes an alias of its own."""

    def original(value: Value) -> Value:
        if value.released_from is None:
            return value
        return value.released_from

    return pytree.tree_map_only(Value, original, output)


def require_setup_context(cls: FunctionClass) -> None:
    """Raise unless ``cls`` has ``setup_context``, which transforms call apart from ``forward``."""
    if not definition_of(cls).has_setup:
        raise settled(
            RuntimeError(
                "In order to use an autograd.Function with functorch transforms (vmap, grad, jvp, "
                f"jacrev, ...), it must override the setup_context staticmethod. {_SEE_NOTE}"
            )
        )


def _innermost(args: tuple[object, ...]) -> Level | None:
    """Return the innermost level of the values among ``args``, also within containers. None if
    there is no value."""
    leaves: Sequence[Any] = args
    if any(isinstance(argument, (list, tuple, dict)) for argument in args):
        leaves = pytree.tree_leaves(args)
    best: Level | None = None
    for leaf in leaves:
        if isinstance(leaf, Value) and (best is None or leaf._level.number > best.number):
            best = leaf._level
    return best


def lowered(level: Level, tree: pytree.PyTree) -> pytree.PyTree:
    """Return ``tree`` with each value of ``level`` replaced by its inner tensor."""
    return exchanged(tree, lambda v: v._inner if v._level is level else v)


def exchanged(tree: pytree.PyTree, exchange: Callable[[Any], object]) -> pytree.PyTree:
    """Return ``tree`` with ``exchange(v)`` in place of each value. If all stay it is ``tree``
    itself: a Function may change a dictionary that it is given, or keep it."""
    if isinstance(tree, Value):
        return exchange(tree)
    leaves, spec = pytree.tree_flatten(tree)
    inner = [exchange(v) if isinstance(v, Value) else v for v in leaves]
    if not any(map(operator.is_not, leaves, inner)):
        return tree
    return pytree.tree_unflatten(inner, spec)


class RebuiltContainers:
    """The containers of tensors that a Function gets in place of those that the caller gives.

    What it changes in them would be lost, so that :meth:`refuse_changes` raises.
    """

    def __init__(self, given: Sequence[object], inner: Sequence[object]) -> None:
        pairs = zip(given, inner, strict=True)
        rebuilt = [b for a, b in pairs if b is not a and not isinstance(b, torch.Tensor)]
        self._contents = [(tree, *pytree.tree_flatten(tree)) for tree in rebuilt]

    def refuse_changes(self, cls: FunctionClass) -> None:
        """Raise ``RuntimeError`` if one of them has other items by now."""
        for tree, leaves, spec in self._contents:
            now, present = pytree.tree_flatten(tree)
            if present != spec or any(map(operator.is_not, now, leaves)):
                raise noted(
                    RuntimeError(
                        f"{cls.__name__} changes a list or dictionary of tensors that it is given, "
                        "which a transform or a captured program has in place of the caller's. "
                        "Return what it adds, or change the container outside of the Function."
                    )
                )


def new_ctx(
    cls: FunctionClass,
    needs: Sequence[bool],
    level: GradLevel | None = None,
    edges: tuple[Edge | None, ...] = (),
) -> FunctionNode:
    """Return a ctx for one run of ``cls``. ``needs``: for each argument, whether it needs a
    gradient. ``edges``: one per tensor argument. Without a level the ctx belongs to no tape."""
    ctx = definition_of(cls).node_class(level, edges, ())  # type: ignore[arg-type]
    ctx.needs_input_grad = tuple(needs)
    return ctx


def run_forward(
    cls: FunctionClass, args: tuple[object, ...], ctx: Any = None
) -> tuple[object, FunctionNode]:
    """Run ``forward`` and ``setup_context`` with grad mode off. Return the output and the ctx, a
    new one for None. Count a write on each tensor of ``mark_dirty``."""
    definition = definition_of(cls)
    if ctx is None:
        ctx = new_ctx(cls, [False] * len(args))
    grad_mode = _grad_enabled()
    set_grad_enabled(False)
    try:
        if definition.has_setup:
            output = cls.forward(*args)
            cls.setup_context(ctx, args, output)
        else:
            output = cls.forward(ctx, *args)
    finally:
        set_grad_enabled(grad_mode)
    if ctx.dirty_tensors:
        # as torch does: forward may have written without the dispatcher
        for tensor in ctx.dirty_tensors:
            if isinstance(tensor, Value):
                tensor.count_write()
            else:
                increment_version([tensor])
    return output, ctx


@rule(GradLevel)
def _record(
    level: GradLevel, cls: FunctionClass, args: tuple[object, ...]
) -> tuple[object, object]:
    """Run the Function at the next outer level, and record a node on this level's tape."""
    old_style = level.runs_ctx_forward and not definition_of(cls).has_setup
    if not old_style:
        require_setup_context(cls)
    ctx, recording = _new_node(level, cls, args)
    inner_args = tuple(lowered(level, argument) for argument in args)
    containers = RebuiltContainers(args, inner_args)
    grad_mode = _grad_enabled()
    set_grad_enabled(grad_mode and level.outer_mode)
    try:
        with level.shown_to_forward(ctx, args, inner_args):
            if old_style:
                output, _ = run_forward(cls, inner_args, ctx)
            else:
                output = _restore_written_arguments(dispatch(cls, inner_args)[0])
                cls.setup_context(ctx, inner_args, output)
    finally:
        set_grad_enabled(grad_mode)
    containers.refuse_changes(cls)
    outs = as_outputs(output)
    application = _Application(level, cls, ctx, args, inner_args, outs, recording)
    wrapped = application.outputs()
    ctx.forget_marks()
    return as_returned(wrapped, output), ctx


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
    edges: list[Edge | None] = []  # one per tensor argument
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


def check_marks(ctx: FunctionCtx, outs: Sequence[object], inputs: Sequence[object]) -> None:
    """Raise unless every argument of ``mark_dirty`` is among the outputs ``outs``. Warn if one is
    not among ``inputs``, as ``forward`` got them."""
    for dirty in ctx.dirty_tensors:
        if not any(dirty is output for output in outs):
            raise settled(
                RuntimeError(
                    "Some elements marked as dirty during the forward method were not returned as "
                    "output. Return from forward every tensor that it gives to mark_dirty."
                )
            )
        recording = _grad_enabled() and any(ctx.needs_input_grad)
        if recording and not any(dirty is x for x in inputs):
            warnings.warn(
                (
                    "ctx.mark_dirty() received a tensor that was not an input. "
                    "It is for inputs that forward has written to."
                ),
                UserWarning,
                stacklevel=4,
            )


def position_of(tensor: object, tensors: Sequence[object]) -> int | None:
    """Return the position of the object ``tensor`` itself among ``tensors``."""
    return next((index for index, x in enumerate(tensors) if x is tensor), None)


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
        for a, inner in candidates:
            if not self.owns(a) or (edge is None and a.requires_grad):
                continue
            if view_history.aliases(output, inner):
                if a._view is None:
                    return a
                return a._view.base
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
        v = out.detach() if returned.requires_grad else out.view_as(out)
        v._edge = edge
        return v


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
    edge_number = sum(isinstance(a, torch.Tensor) for a in before)
    inplace.rebase(level, target, edge, edge_number)
    level.written_by_function(target)


def once_differentiable(backward: Callable[..., object]) -> Callable[..., object]:
    """Decorate a ``backward`` that cannot be differentiated itself, as
    ``torch.autograd.function.once_differentiable``.

    ``backward`` runs with grad mode off. A derivative of its result raises ``RuntimeError``. Torch
    raises only for a derivative by the gradients that ``backward`` gets. Here a derivative by the
    saved tensors raises as well. Otherwise it would silently be zero."""

    @wraps(backward)
    def once(ctx: FunctionNode, *grads: object) -> object:
        with torch.no_grad():
            result = backward(ctx, *grads)
        if not _grad_enabled():
            return result
        # whoever differentiates the result does so by one of these
        witnesses = [tensor for tensor in (*grads, *ctx.saved_tensors) if isinstance(tensor, Value)]
        if not witnesses:
            return result
        gradients = as_outputs(result)
        tensors = [grad for grad in gradients if isinstance(grad, torch.Tensor)]
        guarded = iter(_Once.apply(len(tensors), *tensors, *witnesses))
        # back to the places among Nones
        outputs = tuple(
            next(guarded) if isinstance(gradient, torch.Tensor) else gradient
            for gradient in gradients
        )
        return as_returned(outputs, result)

    return once


DECORATORS["once_differentiable"] = once_differentiable


class _Once(Function):
    """Return copies of the first ``n`` of the tensors. For the tape they depend on all of the
    tensors, so a derivative by any of them raises."""

    generate_vmap_rule = True

    @staticmethod
    def forward(n: int, *tensors: Value) -> Any:
        return tuple(tensor.clone() for tensor in tensors[:n])

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        pass

    @staticmethod
    def backward(ctx: object, *grads: object) -> Any:
        raise settled(
            RuntimeError(
                "trying to differentiate twice a function that was marked with @once_differentiable"
            )
        )

    @staticmethod
    def jvp(ctx: object, *tangents: object) -> Any:
        raise settled(
            RuntimeError(
                "trying to differentiate twice a function that was marked with @once_differentiable"
            )
        )


__all__ = ["Function", "FunctionCtx", "FunctionMeta", "InplaceFunction", "once_differentiable"]
