"""Defines the ``ctx`` of a :class:`~runtime.autograd.function.Function`, which is also its node on
the tape."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch

from ..rules.record import NestedMeta
from ..seam.levels import Value
from ..seam.scope import is_floating
from ..seam.user_code import settled, watched
from ..tape.conform import conform
from ..tape.grad_level import GradLevel
from ..tape.hooks import for_users
from ..tape.metas import meta_of
from ..tape.nodes import Edge, Node
from ..tape.running import current_graph_is_retained
from ..tape.saved import FREED, SavedTensor, present, restore, save
from ..tape.values import edge_of

# Classes whose staticmethods only declare the interface: ours, and those of torch after
# `dropin/intercept.py` has added them.
INTERFACES: set[type] = set()
# What stands for decorators of torch's, by name. `.function` adds it.
DECORATORS: dict[str, Callable[..., Any]] = {}


def defines(cls: type, name: str) -> bool:
    """Return whether ``cls`` has a staticmethod ``name`` other than that of an interface."""
    owner = next((base for base in cls.__mro__ if name in vars(base)), None)
    return owner is not None and owner not in INTERFACES


def backward_of(cls: type[Any]) -> Callable[..., Any]:
    """Return the ``backward`` of ``cls``, or its ``vjp``, which is another name for it.

    The decorator ``once_differentiable`` of torch marks results by a node of torch's engine, which
    the session does not see, so this package's is put in its place. Raise if ``cls`` has both.
    """
    has_vjp = defines(cls, "vjp")
    if has_vjp and defines(cls, "backward"):
        raise settled(
            RuntimeError(
                "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. "
                "They are two names of one method."
            )
        )
    method: Any = cls.vjp if has_vjp else cls.backward
    if (
        isinstance(method, FunctionType)
        and method.__globals__.get("__name__") == "torch.autograd.function"
    ):
        # the code of a decorated method is called `once_differentiable.<locals>.wrapper`
        decorator = DECORATORS.get(method.__code__.co_qualname.partition(".")[0])
        if decorator is not None:
            return decorator(method.__wrapped__)  # type: ignore[attr-defined, no-any-return]
    return method  # type: ignore[no-any-return]


class FunctionCtx:
    """The things that ``forward`` or ``setup_context`` stores for the derivatives of a Function, as
    in ``torch.autograd.function.FunctionCtx``."""

    needs_input_grad: tuple[bool, ...] = ()
    to_save: tuple[object, ...] | None = None
    saved_for_forward: tuple[Any, ...] | None = None
    dirty_tensors: tuple[Any, ...] = ()
    non_differentiable: tuple[object, ...] = ()
    materialize_grads: bool = True
    # whether `materialize_grads` holds for outputs marked as non-differentiable, too
    _materialize_non_diff_grads: bool = True

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        """Save inputs, outputs or intermediate tensors. ``backward`` reads them as
        ``ctx.saved_tensors``."""
        for index, tensor in enumerate(tensors):
            if tensor is not None and not isinstance(tensor, torch.Tensor):
                raise settled(
                    TypeError(
                        "save_for_backward can only save variables, "
                        f"but argument {index} is of type {type(tensor).__name__}"
                    )
                )
        self.to_save = tensors

    def save_for_forward(self, *tensors: torch.Tensor | None) -> None:
        """Save tensors for ``jvp``, which reads them as ``ctx.saved_tensors``."""
        for tensor in tensors:
            if tensor is not None and not isinstance(tensor, torch.Tensor):
                raise settled(
                    AssertionError(
                        "save_for_forward expects all arguments to be tensors; "
                        "anything else can be an attribute of ctx."
                    )
                )
        self.saved_for_forward = tensors

    def mark_dirty(self, *args: torch.Tensor) -> None:
        """Name the inputs that ``forward`` writes to. Each must be an output as well."""
        self.dirty_tensors = _tensors("mark_dirty can only accept variables, but argument", args)

    def mark_non_differentiable(self, *args: torch.Tensor) -> None:
        """Name the outputs that have no gradient."""
        self.non_differentiable = _tensors(
            "mark_non_differentiable only accepts variable arguments, but got", args
        )

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether ``backward`` and ``jvp`` get zeros (the default) or None where no gradient
        arrives."""
        self.materialize_grads = value


def as_outputs(result: object) -> tuple[Any, ...]:
    """Return the result of a staticmethod as a tuple. A single output becomes a tuple of one."""
    if isinstance(result, tuple):
        return result
    return (result,)


def as_returned(outputs: tuple[object, ...], result: object) -> Any:
    """Return ``outputs`` in the form of ``result``: as a tuple, or the single output alone."""
    if isinstance(result, tuple):
        return outputs
    return outputs[0]


def _tensors(complaint: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return ``args``. Raise unless they are all tensors; the error begins with ``complaint``."""
    for index, argument in enumerate(args):
        if not isinstance(argument, torch.Tensor):
            raise settled(RuntimeError(f"{complaint} {index} is of type {type(argument).__name__}"))
    return args


class FunctionNode(Node, FunctionCtx):
    """A Function on the tape. ``apply`` runs the user's ``backward``.

    At level zero ``backward`` gets tensors of the session, as ``forward`` did. At an inner level it
    gets tensors of the next outer level. With ``create_graph`` it gets values of the level, because
    their history is needed.
    """

    level: GradLevel
    _forward_cls: type[Any]
    # `backward` takes one list of gradients and removes them from it, as torch's
    # compiled functions do
    _boxed_grads = False
    saved: list[Any] | None = []  # noqa: RUF012 - replaced, never changed; None after it has been freed
    # Of each saved tensor. The number of an output stands for an edge to this node, which would be
    # a reference cycle.
    _histories: tuple[Edge | int | None, ...] = ()
    # while `backward` runs: whether saved tensors are shown as tensors of the outer level
    _outward = False
    _positions: tuple[int, ...] = ()  # of the tensor arguments, one per edge
    _n_inputs = 0
    # of each output, to replace a missing gradient: arguments of torch.zeros, NestedMeta, or None
    _zeros: tuple[Any, ...] = ()

    def name(self) -> str:
        """Return the name that torch prints, ``ExpBackward`` for ``class Exp(Function)``."""
        return type(self).__name__

    def record(
        self, args: Sequence[object], inner_args: Sequence[object], outs: Sequence[object]
    ) -> None:
        """Save what the backward pass needs, after ``forward``. ``inner_args``: ``args`` as
        ``forward`` got them. ``outs``: its outputs."""
        self.metas = _metas_of(outs)
        self._zeros = tuple(map(self._zeros_of, outs))
        self._positions = tuple(
            index for index, argument in enumerate(args) if isinstance(argument, torch.Tensor)
        )
        self._n_inputs = len(args)
        tensors_to_save = self.to_save or ()
        self._histories = tuple(
            self._history(tensor, inner_args, outs) for tensor in tensors_to_save
        )
        self.saved = [self._keep(tensor, index) for index, tensor in enumerate(tensors_to_save)]

    def _zeros_of(self, output: object) -> object:
        """Return what makes zeros in place of a missing gradient of output ``output``: arguments of
        ``torch.zeros``, or a NestedMeta. None if ``backward`` gets None."""
        if not isinstance(output, torch.Tensor) or not self.materialize_grads:
            return None
        if not (self._materialize_non_diff_grads or self.differentiates(output)):
            return None
        if output.is_nested:
            return NestedMeta.of(output)
        return {
            "size": output.shape,
            "dtype": output.dtype,
            "device": output.device,
            "layout": output.layout,
        }

    def forget_marks(self) -> None:
        """Drop the marks after the outputs and their tangents exist. Marked tensors may refer to
        this node, which would be a cycle."""
        for name in ("to_save", "saved_for_forward", "dirty_tensors", "non_differentiable"):
            self.__dict__.pop(name, None)

    def differentiates(self, output: torch.Tensor) -> bool:
        """Return whether output ``output``, as ``forward`` returned it, has a gradient."""
        return is_differentiable(output) and not any(
            output is marked for marked in self.non_differentiable
        )

    def _history(
        self, tensor: Any, inner_args: Sequence[object], outs: Sequence[object]
    ) -> Edge | int | None:
        """Return the history of a saved tensor: the number of an output of this node, the edge of
        an input, or None."""
        # outputs first: one that is an input returned as it is has this node as its history
        for index, output in enumerate(outs):
            if output is tensor:
                return index if self.differentiates(output) else None
        if isinstance(tensor, Value) and tensor._level is self.level:
            own_edge: Edge | None = edge_of(tensor)
            return own_edge
        for edge, position in zip(self.edges, self._positions, strict=True):
            if inner_args[position] is tensor:
                return edge
        return None

    def _edge(self, index: int) -> Edge | None:
        """Return the edge of saved tensor ``index``, that of an output to this node itself."""
        history = self._histories[index]
        if isinstance(history, int):
            return (self, history)
        return history

    def _keep(self, tensor: object, index: int) -> object:
        if tensor is None:
            return None
        return save(self.level, self.level.lowered(tensor), self._edge(index))

    @property
    def saved_tensors(self) -> tuple[torch.Tensor | None, ...]:
        """Return the tensors of ``save_for_backward``. While ``jvp`` runs: those of
        ``save_for_forward``. Raise if the backward pass has freed them."""
        if self.saved_for_forward is not None:
            return self.saved_for_forward
        if self.saved is None:
            raise settled(RuntimeError(FREED))
        return tuple(
            self._restore(saved, self._edge(index)) for index, saved in enumerate(self.saved)
        )

    @property
    def saved_variables(self) -> tuple[torch.Tensor | None, ...]:
        """Return ``saved_tensors``, by its name in old programs."""
        warnings.warn(
            "'saved_variables' is deprecated; use 'saved_tensors'", DeprecationWarning, stacklevel=2
        )
        return self.saved_tensors

    def _restore(self, saved: Any, edge: Edge | None) -> Any:
        """Return what the user's ``backward`` sees of a saved tensor of history ``edge``."""
        if saved is None:
            return None
        tensor = restore(self.level, saved, edge)
        if self._outward:
            return tensor
        return present(self.level, tensor, edge)

    @property
    def _raw_saved_tensors(self) -> tuple[SavedTensor, ...]:
        """Return handles of the saved tensors, to register hooks on."""
        if self.saved is None:
            raise settled(RuntimeError(FREED))
        return tuple(
            SavedTensor.of(self, self.saved, index, self._edge(index))
            for index in range(len(self.saved))
        )

    def push(
        self,
        primals: Sequence[Any],
        outs: Sequence[object],
        tangents: Sequence[torch.Tensor | None],
    ) -> tuple[Any, ...]:
        """Return the tangents of ``outs``, from the user's ``jvp``. Raise if one does not fit its
        output."""
        if self.saved_for_forward is None:
            # else `saved_tensors` would be those of `save_for_backward`
            self.saved_for_forward = ()
        if self.materialize_grads:
            tangents = [
                torch.zeros_like(primal)
                if tangent is None and is_differentiable(primal)
                else tangent
                for primal, tangent in zip(primals, tangents, strict=True)
            ]
        out_tangents = as_outputs(watched(self._forward_cls.jvp, self, *tangents))
        if len(out_tangents) != len(outs):
            raise settled(
                RuntimeError(
                    "Function's jvp returned an invalid number of forward gradients "
                    f"(expected {len(outs)} but got {len(out_tangents)})"
                )
            )
        for index, (output, tensor) in enumerate(zip(outs, out_tangents, strict=True)):
            if tensor is not None:
                self._refuse_unfit_tangent(index, output, tensor)
        return out_tangents

    def _refuse_unfit_tangent(self, index: int, output: Any, tensor: object) -> None:
        """Raise unless ``tensor`` can be the tangent of output number ``index``."""
        if not isinstance(tensor, torch.Tensor):
            raise settled(
                RuntimeError(
                    f"expected Variable or None (got {type(tensor).__name__}) "
                    f"for grad output {index}."
                )
            )
        if not self.differentiates(output):
            raise settled(
                RuntimeError(
                    f"Function's jvp returned a gradient at position {index}, "
                    "but the corresponding forward output is not a differentiable Tensor. "
                    "You should return None at that position instead."
                )
            )
        if tensor.shape != output.shape:
            raise settled(
                RuntimeError(
                    "Trying to set a forward gradient that has a different size "
                    "than that of the original Tensor, this is not supported. "
                    f"The tensor is of size {list(output.shape)}, its tangent of size "
                    f"{list(tensor.shape)}."
                )
            )

    def apply(
        self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool
    ) -> tuple[Any, ...]:
        """Run the user's ``backward``, see :meth:`Node.apply`."""
        level = self.level
        values = level.shows_values or create_graph
        shown = []
        for gradient, zeros in zip(grads, self._zeros, strict=True):
            if gradient is None and zeros is not None:
                gradient = _make_zeros(zeros)
            if values:
                gradient = for_users(level, gradient)
            shown.append(gradient)
        if level.notes_backward:
            return level.noted_backward(self, shown, create_graph)
        return self.run_backward(shown, create_graph)

    def run_backward(
        self, shown: Sequence[object], create_graph: bool
    ) -> tuple[torch.Tensor | None, ...]:
        """Run the user's ``backward`` on the cotangents ``shown``. Return a gradient per edge."""
        # a `backward` may run another pass through this node, so the value from before comes back
        before = self._outward
        self._outward = not (self.level.shows_values or create_graph)
        try:
            backward = backward_of(self._forward_cls)
            arguments = (shown,) if self._boxed_grads else shown
            result = watched(backward, self, *arguments)
        finally:
            self._outward = before
        return self._gradients_of_edges(as_outputs(result), create_graph)

    def _gradients_of_edges(
        self, result: tuple[object, ...], create_graph: bool
    ) -> tuple[Any, ...]:
        """Return the gradient of each edge, from the results of ``backward``, one per argument of
        ``forward``. Raise if one does not fit."""
        expected = self._n_inputs
        # as in torch, further results may follow if they are None
        if len(result) > expected and all(gradient is None for gradient in result[expected:]):
            result = result[:expected]
        if len(result) != expected:
            raise settled(
                RuntimeError(
                    f"function {self.name()} returned an incorrect number of gradients "
                    f"(expected {expected}, got {len(result)})"
                )
            )
        level = self.level
        self._refuse_gradients_of_others(result)
        self._refuse_nested_of_dense(result)
        gradients = (result[position] for position in self._positions)
        if create_graph:
            return tuple(for_users(level, gradient) for gradient in gradients)
        return tuple(map(level.lowered, gradients))

    def _refuse_nested_of_dense(self, result: tuple[Any, ...]) -> None:
        """Raise if the gradient of a dense input is nested: the engine would ask for its shape."""
        for edge, position in zip(self.edges, self._positions, strict=True):
            gradient = result[position]
            if gradient is not None and gradient.is_nested and edge is not None:
                conform(gradient, edge[0].metas[edge[1]], self, position)

    def _refuse_gradients_of_others(self, result: tuple[object, ...]) -> None:
        """Raise if a result is no tensor, or belongs to an argument that is none."""
        for index, gradient in enumerate(result):
            if gradient is None:
                continue
            if not isinstance(gradient, torch.Tensor):
                raise settled(
                    RuntimeError(f"expected Variable or None (got {type(gradient).__name__})")
                )
            if index not in self._positions:
                raise settled(
                    RuntimeError(
                        f"function {self.name()} returned a gradient different than None "
                        f"at position {index + 1}, but the corresponding forward input was not "
                        "a Variable"
                    )
                )

    def maybe_clear_saved_tensors(self) -> None:
        """Free saved tensors if the graph is not retained. A ``backward`` may call it, as the
        method of a ctx of torch."""
        if not current_graph_is_retained():
            self.release()

    def release(self) -> None:
        """Drop saved tensors."""
        self.saved = None


def _make_zeros(arguments: Any) -> torch.Tensor:
    """Return the zeros that stand for a missing gradient (:meth:`FunctionNode._zeros_of`)."""
    if type(arguments) is NestedMeta:
        return arguments.zeros()
    return torch.zeros(**arguments)


def _metas_of(outs: Sequence[object]) -> tuple[object, ...]:
    """Return shape and dtype of each output, None for one that is no tensor."""
    metas: list[Any] = []
    for output in outs:
        metas.append(meta_of(output, output.dtype) if isinstance(output, torch.Tensor) else None)
    return tuple(metas)


def is_differentiable(argument: object) -> bool:
    """Return whether ``argument`` is a tensor of a dtype that can have a gradient."""
    return isinstance(argument, torch.Tensor) and is_floating(argument)
