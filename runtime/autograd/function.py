"""Runs operations with a derivative of the user's own, as ``torch.autograd.Function``.

``MyFn.apply(*args)`` looks for the innermost level among its arguments, as an ATen call does. The
rule of that level runs. A grad level records a :class:`FunctionNode` (``function_recording.py``).
A dual level calls the ``jvp`` staticmethod, a batch level ``vmap`` (``function_rules.py``). Each
rule calls :func:`dispatch` again, on the tensors that its values hold. So ``forward`` runs only
once under nested transforms, at the outermost level. Each level calls ``setup_context``, because
each makes a node or a tangent of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
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
from ..seam.user_code import settled
from ..session.leaf import as_leaf
from ..session.session import Session
from ..tape.foreign import pass_mark_on
from ..tape.grad_level import GradLevel
from ..tape.nodes import Edge
from ..torch_private.native_autograd import increment_version, set_grad_enabled
from ..torch_private.pytrees import pytree
from .function_arguments import position_of
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
        # `apply` is called without the ctx, which old-style forwards have as first parameter
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
    # as in torch, defaults are filled in for `setup_context`, which gets them among its inputs
    if kwargs or definition_of(cls).has_setup:
        args = definition_of(cls).bind(cls, args, kwargs)
    args = tuple(map(now, args))
    value = entering()
    if value is not None:
        args = tuple(map(value, args))
    # the call makes no node of torch's engine, so a leaf of that engine would get no gradient
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
    # a subclass of a level has the rule of its nearest base, as with an inherited method
    classes = type(acting).__mro__
    level_rule = next((_rules[base] for base in classes if base in _rules), None)
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
        # another inner tensor has a counter of its own, which says nothing about the first one
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
    # the Function is one node: the calls inside of it have no nodes of their own
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


def once_differentiable(backward: Callable[..., object]) -> Callable[..., object]:
    """Decorate a ``backward`` that cannot be differentiated itself, as
    ``torch.autograd.function.once_differentiable``.

    ``backward`` runs with grad mode off. A derivative of its result raises ``RuntimeError``. Torch
    raises only for a derivative by the gradients that ``backward`` gets. Here a derivative by the
    saved tensors raises as well. Otherwise it would silently be zero."""

    @wraps(backward)
    def once(ctx: FunctionNode, *grads: object) -> object:
        """Run ``backward``. What it returns refuses a derivative, if the pass is recorded."""
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
