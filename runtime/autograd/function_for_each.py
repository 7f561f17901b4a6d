"""Makes the vmap rule of a custom Function from its other methods: ``generate_vmap_rule = True``.

Example: the ``backward`` of one sample becomes a ``backward`` of physical tensors, which runs it on
values of a batch level.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import new_class
from typing import Any

import torch

from ..func.batch import BatchLevel
from ..func.draws import Randomness
from ..seam.levels import Value
from ..tape.conform import sum_to
from ..torch_private.pytrees import pytree
from .function import Function, FunctionClass
from .function_arguments import RebuiltContainers, position_of
from .function_node import FunctionCtx, as_outputs, as_returned, backward_of


class ForEach:
    """Makes a Function of physical tensors (:meth:`function`) from a Function
    ``cls`` of one element.

    ``in_dims``: 0 for each argument that is batched, else None. The methods run at different times.
    So each opens a batch level of its own, and calls the method of ``cls`` with values of that
    level. ``output_dims``: the batch dimension of each output. It is computed in ``forward``. Later
    an input that was returned as it is could not be recognized, because a level in between may have
    wrapped it again.
    """

    output_dims: object

    def __init__(
        self, cls: FunctionClass, in_dims: tuple[int | None, ...], size: int, randomness: str
    ) -> None:
        self.cls, self.in_dims, self.size, self.randomness = cls, in_dims, size, randomness

    def function(self) -> type[Function]:
        """Return the Function of physical tensors."""
        methods = {
            name: staticmethod(getattr(self, name))
            for name in ("forward", "setup_context", "backward", "jvp")
        }
        # an outer vmap meets this Function, and makes a rule for it in the same way
        body = {"generate_vmap_rule": True, **methods}
        return new_class(
            f"Vmapped{self.cls.__name__}",
            (Function,),
            exec_body=lambda namespace: namespace.update(body),
        )

    @contextmanager
    def batch(self) -> Generator[BatchLevel]:
        """Open a batch level while one method runs."""
        level = BatchLevel(self.size, self.randomness)
        try:
            with Randomness(level):
                yield level
        finally:
            level.close()

    def forward(self, *physical: object) -> object:
        """Run ``forward`` on values, and return physical outputs."""
        with self.batch() as level:
            values = _arguments_of(level, physical, self.in_dims)
            containers = RebuiltContainers(physical, values)
            output = _physical(level, self.cls.forward(*values), values, physical)
            containers.refuse_changes(self.cls)
        self.output_dims = _output_dims(output, physical, self.in_dims)
        return output

    def setup_context(self, ctx: Any, inputs: tuple[object, ...], output: object) -> None:
        """Run ``setup_context`` on values, and hand on to ``ctx`` what it stores."""
        out_dims = as_outputs(self.output_dims)
        with self.batch() as level:
            values = _arguments_of(level, inputs, self.in_dims)
            outputs = []
            for out, dim in zip(as_outputs(output), out_dims, strict=True):
                source = position_of(out, inputs)
                if source is not None and isinstance(out, torch.Tensor):
                    # `setup_context` may compare outputs with inputs by identity
                    outputs.append(values[source])
                else:
                    outputs.append(_values_of(level, out, dim))
            ctx.inner = _InnerCtx(ctx)
            result = as_returned(tuple(outputs), output)
            self.cls.setup_context(ctx.inner, values, result)
            ctx.inner.move_out(ctx, level)
        # logical shapes, without the batch: `backward` sums gradients to them
        ctx.shapes = [value.shape if isinstance(value, torch.Tensor) else None for value in values]
        ctx.out_dims = out_dims

    def backward(self, ctx: Any, *grads: object) -> tuple[Any, ...]:
        """Run ``backward`` on values, and return physical gradients."""
        with self.batch() as level:
            cotangents = _values_if_present(level, grads, ctx.out_dims)
            result = backward_of(self.cls)(ctx.inner.move_in(ctx, level), *cotangents)
            gradients = list(as_outputs(result))
            # the outer Function complains of gradients without an argument
            of_arguments = zip(gradients, self.in_dims, ctx.shapes, strict=False)
            for index, (g, dim, shape) in enumerate(of_arguments):
                if isinstance(g, torch.Tensor):
                    gradients[index] = _gradient(level, g, dim, shape)
            return tuple(gradients)

    def jvp(self, ctx: Any, *tangents: object) -> Any:
        """Run ``jvp`` on values, and return physical tangents."""
        with self.batch() as level:
            values = _values_if_present(level, tangents, self.in_dims)
            result = self.cls.jvp(ctx.inner.move_in(ctx, level), *values)
            return _physical(level, result, values, tangents)


def _map_outputs(function: Callable[[Any], object], output: object) -> object:
    """Apply ``function`` to each output of a tuple, or to the single output."""
    if isinstance(output, tuple):
        return tuple(map(function, output))
    return function(output)


def _physical(
    level: BatchLevel, output: object, values: Sequence[object], physical: Sequence[object]
) -> Any:
    """Return the result of a method of the Function as physical tensors. For one of ``values``: the
    same one of ``physical``."""

    def out(output: object) -> Any:
        if not isinstance(output, torch.Tensor):
            return output
        source = position_of(output, values)
        if source is not None:
            return physical[source]
        return _move_batch_to_front(level, output)

    return _map_outputs(out, output)


def _output_dims(
    output: object, physical: Sequence[object], in_dims: Sequence[int | None]
) -> object:
    """Return the batch dimensions of the outputs: 0 for a new tensor, that of the input for an
    input returned as it is."""

    def dim(output: object) -> int | None:
        if not isinstance(output, torch.Tensor):
            return None
        source = position_of(output, physical)
        if source is None:
            return 0
        dim_of_input: int | None = in_dims[source]
        return dim_of_input

    return _map_outputs(dim, output)


def _arguments_of(
    level: BatchLevel, physical: Sequence[object], in_dims: Sequence[object]
) -> tuple[object, ...]:
    """Return physical arguments as values of ``level``. One without a batch stays the object that
    it is, as a method may change a list, or keep it."""
    arguments = list(physical)
    for index, dims in enumerate(in_dims):
        if 0 in pytree.tree_leaves(dims):
            arguments[index] = _values_of(level, physical[index], dims)
    return tuple(arguments)


def _values_of(level: BatchLevel, tree: object, dims: object) -> Any:
    """Return physical tensors as values of ``level`` where ``dims``, of the same structure, has a
    0."""

    def value_of(leaf: Any, dim: object) -> object:
        return level.wrap(leaf) if dim == 0 else leaf

    return pytree.tree_map(value_of, tree, dims, is_leaf=lambda leaf: leaf is None)


def _values_if_present(
    level: BatchLevel, tensors: Sequence[object], dims: Sequence[int | None]
) -> Any:
    """Return the physical tensors as values of ``level``. An entry that is None stays None."""
    present = tuple(
        None if tensor is None else dim for tensor, dim in zip(tensors, dims, strict=True)
    )
    return _values_of(level, tensors, present)


def batch_dims(level: BatchLevel, tree: pytree.PyTree) -> Any:
    """Return a tree with 0 for each leaf that is batched at ``level``, None for any other."""

    def dim(tensor: object) -> int | None:
        return 0 if isinstance(tensor, Value) and tensor._level is level else None

    return pytree.tree_map(dim, tree)


def _move_batch_to_front(level: BatchLevel, tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` with the batch as its first dimension."""
    if isinstance(tensor, Value) and tensor._level is level:
        return tensor._inner
    return tensor.expand(level.size, *tensor.shape)


def _gradient(
    level: BatchLevel, g: torch.Tensor, dim: int | None, shape: Sequence[int] | None
) -> torch.Tensor:
    """Return the gradient of an input of logical ``shape``: a batch if the input was batched, else
    the sum over the batch."""
    if shape is not None and g.shape != shape and len(shape) <= g.dim():
        g = sum_to(g, shape)  # broadcasting is undone before the batch dimension comes in between
    whole = _move_batch_to_front(level, g)
    if dim == 0:
        return whole
    return whole.sum(0)


class _InnerCtx(FunctionCtx):
    """The ctx that the methods of a Function get when they run in its vectorized form.

    Between them it keeps physical tensors and no values: those that derivatives may need go through
    the outer ctx, which saves them."""

    saved_tensors: tuple[Any, ...] = ()
    # of `save_for_backward` and `save_for_forward`: the batch dimension of each tensor.
    # None if the method was not called
    to_save_dims: object
    saved_for_forward_dims: object
    # by name: a tree of physical tensors, and their batch dimensions
    attributes: dict[str, tuple[object, object]]

    def __init__(self, outer: FunctionCtx | _InnerCtx) -> None:
        self.needs_input_grad = outer.needs_input_grad

    def move_out(self, outer: FunctionCtx | _InnerCtx, level: BatchLevel) -> None:
        """Hand on to ``outer`` what ``setup_context`` has stored, in physical tensors."""
        out = level.lowered
        stored = self.__dict__
        outer.materialize_grads = self.materialize_grads
        for name, mark in (
            ("dirty_tensors", outer.mark_dirty),
            ("non_differentiable", outer.mark_non_differentiable),
        ):
            mark(*map(out, stored.pop(name, ())))
        for name, save in (
            ("to_save", outer.save_for_backward),
            ("saved_for_forward", outer.save_for_forward),
        ):
            tensors = stored.pop(name, None)
            stored[f"{name}_dims"] = None
            if tensors is not None:
                stored[f"{name}_dims"] = batch_dims(level, tensors)
                save(*map(out, tensors))
        self.attributes = {}
        # what is left was set by the user: `ctx.scale = scale`
        for name in [name for name in stored if name not in _OWN]:
            value = stored.pop(name)
            physical = pytree.tree_map_only(torch.Tensor, out, value)
            self.attributes[name] = physical, batch_dims(level, value)

    def move_in(self, outer: Any, level: BatchLevel) -> FunctionCtx:
        """Return a ctx for a derivative, with values of ``level``."""
        ctx = _InnerCtx(outer)
        ctx.materialize_grads = outer.materialize_grads
        if outer.saved_for_forward is not None:
            dims_of_saved = self.saved_for_forward_dims
        else:
            dims_of_saved = self.to_save_dims
        if dims_of_saved is not None:
            ctx.saved_tensors = tuple(_values_of(level, outer.saved_tensors, dims_of_saved))
        for name, (value, dims) in self.attributes.items():
            setattr(ctx, name, _values_of(level, value, dims))
        return ctx


# the attributes of a ctx that are not the user's
_OWN = frozenset(
    (
        "needs_input_grad",
        "materialize_grads",
        "to_save_dims",
        "saved_for_forward_dims",
        "attributes",
    )
)
