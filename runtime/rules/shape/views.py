"""Register views, ops that write through a view out of place (``*_scatter``), and ops that put a
cotangent back (``*_backward``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import InplaceError
from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ...seam.dispatch import run_batchwise
from ..derive import batch_rules as batch
from ..derive.families import linear, view
from ..derive.fixed_layouts import dims
from ..record import kernels, overload, register

aten = torch.ops.aten

# A batch rule that is a lambda has short names for its parameters: f, n, b, a and k stand for func,
# size, batched, args and kwargs, see `batch_rules`.

register("detach", nondiff=True, batch=batch.elementwise, inverse=lambda part: part, family="view")
register(
    "view.dtype",
    nondiff=True,
    batch=lambda f, n, b, a, k: f(a[0], a[1]),
    inverse=lambda ops, base, part: ops.view(part, base.dtype),
    family="view",
)
view("alias", lambda g: g, lambda f, n, b, a, k: f(a[0]), inverse=lambda part: part)
view("lift_fresh", lambda g: g, lambda f, n, b, a, k: f(a[0]), inverse=lambda part: part)
view(
    "_conj",
    lambda g: g.conj(),
    lambda f, n, b, a, k: f(a[0]),
    inverse=lambda ops, part: ops._conj(part),
)
view("_neg_view", lambda g: -g, lambda f, n, b, a, k: f(a[0]), inverse=lambda part: -part)
register(
    "view_as_real",
    vjp={"self": lambda g: torch.view_as_complex(g.contiguous())},
    # the tangent has a conjugate bit of its own
    jvp={"self": lambda self_t: torch.view_as_real(self_t.resolve_conj())},
    batch=lambda f, n, b, a, k: f(a[0]),
    inverse=lambda ops, part: ops.view_as_complex(part.contiguous()),
    family="view",
)
register(
    "view_as_complex",
    vjp={"self": lambda g: torch.view_as_real(g.contiguous().resolve_conj())},
    jvp={
        "self": lambda self_t: torch.view_as_complex(
            self_t if self_t.stride(-1) == 1 else self_t.contiguous()
        )
    },
    batch=lambda f, n, b, a, k: f(a[0]),
    inverse=lambda ops, part: ops.view_as_real(part.resolve_conj()),
    family="view",
)


# Shapes


def _expand_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Expand the elements of a batch."""
    x, shape, *rest = args
    # ATen aligns sizes from the right, so new dimensions come behind that of the batch
    missing = len(shape) - (x.dim() - 1)
    if missing:
        x = batch.insert_dims(x, size, missing)
    return func(x, [size, *shape], *rest, **kwargs)


def _shrink_expanded(ops: Any, base: torch.Tensor, part: torch.Tensor) -> object:
    """Return ``part`` in the shape of ``base``. Raise if several elements of the expanded tensor
    share a place in ``base``."""
    if part.numel() != base.numel():
        raise InplaceError(
            "unsupported operation: more than one element of the written-to tensor refers "
            "to a single memory location. Write to a clone of it."
        )
    return ops.reshape(part, base.shape)


def _same_elements(ops: Any, base: torch.Tensor, part: object) -> object:
    return ops.reshape(part, base.shape)


# the engine sums the cotangent to the shape of the input
view("expand", lambda g: g, _expand_batch, inverse=_shrink_expanded)


def _reshape_back(g: torch.Tensor, self_shape: Sequence[int]) -> object:
    """Return the cotangent in the shape of the input."""
    if type(g) is torch.Tensor:
        return g.reshape(self_shape)

    def reshape(t: torch.Tensor, batched: BatchFlags) -> torch.Tensor:
        """Reshape each element of a batch, or a tensor without one."""
        if batched[0]:
            return t.reshape((t.shape[0], *self_shape))
        return t.reshape(self_shape)

    return run_batchwise(reshape, g)


register(
    "view",
    vjp={"self": _reshape_back},
    # a tangent may have other strides than its primal
    jvp={"self": lambda self_t, size: self_t.reshape(size)},
    batch=batch.sizes(1),
    inverse=_same_elements,
    family="view",
)


@batch.exact
def _reshape_batch(
    func: object, size: int, batched: object, args: Arguments, kwargs: object
) -> object:
    return args[0].reshape([size, *args[1]])


linear(  # reshape, because the strides of a physical tensor may not allow a view
    "_unsafe_view", {"self": _reshape_back}, _reshape_batch
)
linear("_reshape_alias", {"self": _reshape_back}, _reshape_batch, inverse=_same_elements)
linear("_reshape_copy", {"self": _reshape_back}, batch.sizes(1))
view(
    "unsqueeze",
    lambda g, dim: g.squeeze(dim),
    # a negative dimension counts from the end, where the batch adds none
    lambda f, n, b, a, k: f(a[0], a[1] + 1 if a[1] >= 0 else a[1]),
    inverse=_same_elements,
)


def _squeeze_batch(
    func: object, size: int, batched: object, args: Arguments, kwargs: object
) -> object:
    """Squeeze the given dimensions, or all of size one, but never the batch dimension."""
    x = args[0]
    rank = x.dim() - 1
    named = batch.positional(args, 1, list(range(rank)))
    if isinstance(named, int):
        named = [named]
    # ATen allows dimension 0 of a scalar, which the batch does not have
    if not rank:
        return aten.squeeze.dims(x, [])
    return aten.squeeze.dims(x, batch.shift_each(named, rank))


view("squeeze squeeze.dim squeeze.dims", _reshape_back, _squeeze_batch, inverse=_same_elements)

# Permutations


def inverse_order(order: Sequence[int]) -> list[int]:
    """Return the order that undoes a permutation."""
    rank = len(order)
    inverse = [0] * rank
    for index, dim in enumerate(order):
        inverse[dim % rank] = index
    return inverse


view(
    "t",
    lambda g: g.t(),
    # ATen's `t` returns a vector or a number as it is
    lambda f, n, b, a, k: a[0].transpose(1, 2) if a[0].dim() == 3 else a[0].view_as(a[0]),
    inverse=lambda ops, part: ops.t(part),
)
view(
    "transpose.int",
    lambda g, dim0, dim1: g.transpose(dim0, dim1),
    batch.along(1, 2),
    inverse=lambda ops, part, dim0, dim1: ops.transpose(part, dim0, dim1),
)
view(
    "permute",
    lambda g, dims: g.permute(inverse_order(dims)),
    lambda f, n, b, a, k: f(a[0], [0, *(batch.shift(d, a[0].dim() - 1) for d in a[1])]),
    inverse=lambda ops, part, dims: ops.permute(part, inverse_order(dims)),
)

# Parts


def _slice_back(
    g: torch.Tensor,
    self_shape: Sequence[int],
    dim: int,
    start: int | None,
    end: int | None,
    step: int,
) -> object:
    """Put the cotangent into zeros of the base's shape. The bounds may be None."""
    if start is None:
        start = 0
    if end is None:
        end = self_shape[dim]
    return kernels.slice_backward(g, self_shape, dim, start, end, step)


def _rule_with_sizes(*positions: int) -> batch.BatchRule:
    """Return the batch rule of ``X_backward(g, input_sizes, …)``. The dimension arguments at
    ``positions`` count the dimensions of the input."""

    def rule(func: Kernel, size: int, batched: object, args: Arguments, kwargs: Keywords) -> object:
        """Run the op with the batch size in front of the input's sizes."""
        actual = [*args]
        for position in positions:
            actual[position] = batch.shift(args[position], len(args[1]))
        actual[1] = [size, *args[1]]
        return func(*actual, **kwargs)

    return rule


view(
    "select.int",
    lambda g, self_shape, dim, index: kernels.select_backward(g, self_shape, dim, index),
    dims(1),
    inverse=lambda base, part, dim, index: aten.select_scatter(base, part, dim, index),
)
view(
    "slice.Tensor",
    _slice_back,
    dims(1),
    inverse=lambda base, part, dim, start, end, step: aten.slice_scatter(
        base, part, dim, start, end, step
    ),
)
view(
    "diagonal",
    lambda g, self_shape, offset, dim1, dim2: kernels.diagonal_backward(
        g, self_shape, offset, dim1, dim2
    ),
    dims(2, 3),
    inverse=lambda base, part, offset, dim1, dim2: aten.diagonal_scatter(
        base, part, offset, dim1, dim2
    ),
)
linear(
    "select_backward",
    {"grad_output": lambda g, dim, index: g.select(dim, index)},
    _rule_with_sizes(2),
)
linear(
    "slice_backward",
    {"grad_output": lambda g, dim, start, end, step: aten.slice(g, dim, start, end, step)},
    _rule_with_sizes(2),
)
linear(
    "diagonal_backward",
    {"grad_output": lambda g, offset, dim1, dim2: g.diagonal(offset, dim1, dim2)},
    _rule_with_sizes(3, 4),
)


def _unfold_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    x, dim, *rest = args
    if x.dim() == 1:  # a 0-d tensor unfolds to a vector of one element
        return func(x.unsqueeze(1), 1, *rest).squeeze(1)
    return func(x, batch.shift(dim, x.dim() - 1), *rest)


def _unfold_back(
    g: torch.Tensor, self_shape: object, dimension: int, size: int, step: int
) -> object:
    """Put the cotangent into zeros of the base's shape. A 0-d base has one element."""
    if not self_shape:
        return g.reshape(())
    return kernels.unfold_backward(g, self_shape, dimension, size, step)


view("unfold", _unfold_back, _unfold_batch)
linear(
    "unfold_backward",
    {"grad_in": lambda g, dim, size, step: g.unfold(dim, size, step)},
    _rule_with_sizes(2),
)


def _join(
    gs: list[Any], like: Any, shapes: Any, join: Callable[[list[torch.Tensor]], torch.Tensor]
) -> torch.Tensor:
    """Return one tensor of the cotangents of all parts. Parts without a cotangent get zeros."""
    # the engine runs no formula unless a cotangent has come
    example = next(g for g in gs if g is not None)
    parts = list(gs)
    for index, shape in enumerate(shapes):
        if parts[index] is None:
            parts[index] = example.new_zeros(shape, dtype=like)
    return join(parts)


def _cat_sizes(gs: list[object], shape: Any, dtype: object, sizes: Any, dim: int) -> torch.Tensor:
    dim %= len(shape)
    shapes = [[*shape[:dim], size, *shape[dim + 1 :]] for size in sizes]
    return _join(gs, dtype, shapes, lambda parts: torch.cat(parts, dim))


def _split_sizes(shape: Any, size: int, dim: int) -> list[int]:
    """Return the sizes of the parts of ``split``. A dimension without elements has one part, and
    so has a split by zero, which ATen allows only there."""
    length = shape[dim]
    if not length or not size:
        return [length]
    return [min(size, length - start) for start in range(0, length, size)]


def _split_back(
    gs: Any, self_shape: object, self_dtype: object, split_size: int, dim: int
) -> torch.Tensor:
    return _cat_sizes(gs, self_shape, self_dtype, _split_sizes(self_shape, split_size, dim), dim)


def _split_with_sizes_back(
    gs: Any, self_shape: object, self_dtype: object, split_sizes: object, dim: int
) -> torch.Tensor:
    return _cat_sizes(gs, self_shape, self_dtype, split_sizes, dim)


def _unbind_back(
    gs: list[object], self_shape: Sequence[int], self_dtype: object, dim: int
) -> torch.Tensor:
    dim %= len(self_shape)
    piece = [*self_shape[:dim], *self_shape[dim + 1 :]]
    return _join(gs, self_dtype, [piece] * len(gs), lambda parts: torch.stack(parts, dim))


def _piece(base: object, part: Any, start: object, dim: int) -> object:
    """Return ``base`` with ``part`` in it, from ``start`` on along ``dim``."""
    return aten.slice_scatter(base, part, dim, start, start + part.shape[dim])


view(
    "split.Tensor",
    _split_back,
    dims(2),
    inverse=lambda base, part, which, split_size, dim: _piece(base, part, split_size * which, dim),
)
view(
    "split_with_sizes",
    _split_with_sizes_back,
    dims(2),
    inverse=lambda base, part, which, split_sizes, dim: _piece(
        base, part, sum(split_sizes[:which]), dim
    ),
)
view(
    "unbind.int",
    _unbind_back,
    dims(1),
    inverse=lambda base, part, which, dim: aten.select_scatter(base, part, dim, which),
)
# They share memory with the argument, but for the tape they are no views: a write to one is not in
# the history of the others.
linear("unsafe_split.Tensor", {"self": _split_back}, dims(2))
linear("unsafe_split_with_sizes", {"self": _split_with_sizes_back}, dims(2))

# Writing through a view, out of place


def _zeros(g: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return zeros, the cotangent of what the op has overwritten."""
    return g.new_zeros(shape)


linear(
    "select_scatter",
    {
        "self": lambda g, src_shape, dim, index: g.select_scatter(_zeros(g, src_shape), dim, index),
        "src": lambda g, dim, index: g.select(dim, index),
    },
    dims(2),
)
linear(
    "slice_scatter",
    {
        "self": lambda g, src_shape, dim, start, end, step: aten.slice_scatter(
            g, _zeros(g, src_shape), dim, start, end, step
        ),
        "src": lambda g, dim, start, end, step: aten.slice(g, dim, start, end, step),
    },
    dims(2),
)
linear(
    "diagonal_scatter",
    {
        "self": lambda g, src_shape, offset, dim1, dim2: g.diagonal_scatter(
            _zeros(g, src_shape), offset, dim1, dim2
        ),
        "src": lambda g, offset, dim1, dim2: g.diagonal(offset, dim1, dim2),
    },
    dims(3, 4),
)

# Copies of views


def copy_of(name: str) -> Callable[..., object]:
    """Return a function with the results of the view ``name``, copied."""
    func = overload(name)

    def copied(*args: object, **kwargs: object) -> object:
        """Take the view, and copy each result."""
        out = func(*args, **kwargs)
        if isinstance(out, (tuple, list)):
            return [output.clone() for output in out]
        return out.clone()

    return copied


_COPIED = """
    alias as_strided detach diagonal expand permute select.int slice.Tensor split.Tensor
    split_with_sizes squeeze squeeze.dim squeeze.dims t transpose.int unbind.int unfold unsqueeze
    view.dtype view_as_complex view_as_real _conj _neg_view _reshape_alias
"""
for _name in _COPIED.split():
    _packet, _dot, _overload = _name.partition(".")
    register(f"{_packet}_copy{_dot}{_overload}", decomposition=copy_of(_name), family="view")
# The kernel copies a tensor whose strides allow no view.
register(
    "view_copy",
    decomposition=lambda self, size: aten.reshape.default(self, size).clone(),
    family="view",
)
register(
    "narrow_copy",
    decomposition=lambda self, dim, start, length: torch.narrow(self, dim, start, length).clone(),
)
