"""``generate_vmap_rule = True``: the vmap rule of a custom Function, made from its other
methods."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import new_class
from typing import Any

import torch

from ..func.batch import BatchLevel
from ..func.draws import Randomness
from ..seam.levels import Value
from ..tape.conform import sum_to
from ..torch_private.pytrees import pytree
from .function import Function, FunctionClass, position_of
from .function_node import FunctionCtx, backward_of


class ForEach:
    """Makes a Function of physical tensors (:meth:`function`) from a Function
    ``cls`` of one element.

    ``in_dims``: 0 for each argument that is batched, else None. The methods run at different times.
    So each opens a batch level of its own, and calls the method of ``cls`` with values of that
    level. ``output_dims``: the batch dimension of each output. It is computed in ``forward``. Later
    an input that was returned as it is could not be recognized, because a level in between may have
    wrapped it again."""

    output_dims: Any

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
        body = {"generate_vmap_rule": True, **methods}
        return new_class(
            f"Vmapped{self.cls.__name__}",
            (Function,),
            exec_body=lambda namespace: namespace.update(body),
        )

    @contextmanager
    def batch(self) -> Generator[BatchLevel]:
        """A batch level, open while one method runs."""
        level = BatchLevel(self.size, self.randomness)
        try:
            with Randomness(level):
                yield level
        finally:
            level.close()

    def forward(self, *physical: Any) -> Any:
        with self.batch() as level:
            values = _batched(level, physical, self.in_dims)
            output = _physical(level, self.cls.forward(*values), values, physical)
        self.output_dims = _output_dims(output, physical, self.in_dims)
        return output

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        several = isinstance(output, tuple)
        out_dims = self.output_dims if several else (self.output_dims,)
        with self.batch() as level:
            values = _batched(level, inputs, self.in_dims)
            outs = tuple(
                values[k]
                if (k := position_of(o, inputs)) is not None and isinstance(o, torch.Tensor)
                else _batched(level, o, d)
                for o, d in zip(output if several else (output,), out_dims, strict=True)
            )
            ctx.inner = _InnerCtx(ctx)
            self.cls.setup_context(ctx.inner, tuple(values), outs if several else outs[0])
            ctx.inner.move_out(ctx, level)
        ctx.shapes = [v.shape if isinstance(v, torch.Tensor) else None for v in values]
        ctx.out_dims = out_dims

    def backward(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        with self.batch() as level:
            given = _batched(
                level,
                grads,
                tuple(None if g is None else d for g, d in zip(grads, ctx.out_dims, strict=True)),
            )
            result = backward_of(self.cls)(ctx.inner.move_in(ctx, level), *given)
            return tuple(
                _gradient(level, r, self.in_dims[i], ctx.shapes[i])
                if isinstance(r, torch.Tensor) and i < len(self.in_dims)
                else r
                for i, r in enumerate(result if isinstance(result, tuple) else (result,))
            )

    def jvp(self, ctx: Any, *tangents: Any) -> Any:
        with self.batch() as level:
            given = _batched(
                level,
                tangents,
                tuple(
                    None if t is None else d for t, d in zip(tangents, self.in_dims, strict=True)
                ),
            )
            return _physical(
                level, self.cls.jvp(ctx.inner.move_in(ctx, level), *given), given, tangents
            )


def _physical(
    level: BatchLevel, output: Any, values: Sequence[Any], physical: Sequence[Any]
) -> Any:
    """Return the result of a method of the Function as physical tensors. For one of ``values``: the
    same one of ``physical``."""

    def out(o: Any) -> Any:
        if not isinstance(o, torch.Tensor):
            return o
        source = position_of(o, values)
        return physical[source] if source is not None else _at_front(level, o)

    return tuple(map(out, output)) if isinstance(output, tuple) else out(output)


def _output_dims(output: Any, physical: Sequence[Any], in_dims: Sequence[Any]) -> Any:
    """Return the batch dimensions of the outputs: 0 for a tensor that the Function made, that of
    the input for an input returned as it is."""

    def dim(o: Any) -> int | None:
        if not isinstance(o, torch.Tensor):
            return None
        source = position_of(o, physical)
        return 0 if source is None else in_dims[source]

    return tuple(map(dim, output)) if isinstance(output, tuple) else dim(output)


def _batched(level: BatchLevel, tree: Any, dims: Any) -> Any:
    """Physical tensors as values of ``level`` where ``dims``, of the same structure, has a 0."""
    return pytree.tree_map(
        lambda t, d: level.wrap(t) if d == 0 else t, tree, dims, is_leaf=lambda x: x is None
    )


def _at_front(level: BatchLevel, t: torch.Tensor) -> torch.Tensor:
    return (
        t._inner if isinstance(t, Value) and t._level is level else t.expand(level.size, *t.shape)
    )


def _gradient(level: BatchLevel, g: torch.Tensor, dim: int | None, shape: Any) -> torch.Tensor:
    """Return the gradient of an input of logical ``shape``: a batch if the input was batched, else
    the sum over the batch."""
    if shape is not None and g.shape != shape and len(shape) <= g.dim():
        g = sum_to(g, shape)  # broadcasting is undone before the batch dimension comes in between
    whole = _at_front(level, g)
    return whole if dim == 0 else whole.sum(0)


class _InnerCtx(FunctionCtx):
    """The ctx that a vectorized Function shows to the methods of the Function it was made from.

    Between them it keeps physical tensors and no values: those that derivatives may need go through
    the outer ctx, which saves them."""

    saved_tensors: tuple[Any, ...] = ()

    def __init__(self, outer: Any) -> None:
        self.needs_input_grad = outer.needs_input_grad

    def move_out(self, outer: Any, level: BatchLevel) -> None:
        """``setup_context`` has run: hand on to ``outer`` what it said, in physical tensors."""

        def out(t: Any) -> Any:
            return level.lowered(t)

        def dims(tensors: Any) -> Any:
            return pytree.tree_map(
                lambda t: 0 if isinstance(t, Value) and t._level is level else None, tensors
            )

        said = self.__dict__
        outer.materialize_grads = self.materialize_grads
        for name, tell in (
            ("dirty_tensors", outer.mark_dirty),
            ("non_differentiable", outer.mark_non_differentiable),
        ):
            tell(*map(out, said.pop(name, ())))
        for name, tell in (
            ("to_save", outer.save_for_backward),
            ("saved_for_forward", outer.save_for_forward),
        ):
            tensors = said.pop(name, None)
            said[f"{name}_dims"] = None if tensors is None else dims(tensors)
            if tensors is not None:
                tell(*map(out, tensors))
        self.attributes = {}
        for name in [n for n in said if n not in _OWN]:
            value = said.pop(name)
            self.attributes[name] = pytree.tree_map_only(torch.Tensor, out, value), dims(value)

    def move_in(self, outer: Any, level: BatchLevel) -> FunctionCtx:
        """Return a ctx for a derivative, with values of ``level``."""
        ctx = _InnerCtx(outer)
        ctx.materialize_grads = outer.materialize_grads
        which = (
            self.saved_for_forward_dims  # type: ignore[attr-defined]
            if outer.saved_for_forward is not None
            else self.to_save_dims  # type: ignore[attr-defined]
        )
        ctx.saved_tensors = (
            tuple(_batched(level, outer.saved_tensors, which)) if which is not None else ()
        )
        for name, (value, dims) in self.attributes.items():
            setattr(ctx, name, _batched(level, value, dims))
        return ctx


_OWN = frozenset(
    (
        "needs_input_grad",
        "materialize_grads",
        "to_save_dims",
        "saved_for_forward_dims",
        "attributes",
    )
)
