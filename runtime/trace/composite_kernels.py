"""Replaces, for symbolic sizes, composite ops whose C++ kernels ask for plain sizes.

``torch.kron(x, y)`` in C++ asks for the sizes of ``x`` as numbers. A graph of symbolic sizes would
be for one size alone. So these ops run here if a size is a symbol and a level of ours sees the
call. Other calls go on to ATen, and so does a call that ATen refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..seam.containers import items_of
from ..torch_private.dispatcher import DispatchKey, OpOverload
from .python_kernels import sees_ours
from .symbols import SYMBOLIC

aten = torch.ops.aten
Tensor = torch.Tensor


class Refused(Exception):
    """The arguments are none that the op takes. ATen's kernel says why."""


def symbolic(value: object) -> bool:
    """Return whether ``value`` is a tensor with a symbol among its sizes."""
    return isinstance(value, Tensor) and any(isinstance(size, SYMBOLIC) for size in value.shape)


def same_size(m: object, n: object) -> bool:
    """Return whether two sizes are known to be equal, without a guard."""
    return bool(statically_known_true(m == n))


def _register_for_symbols(
    *overloads: object,
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Use the decorated function for ``overloads`` where a size is a symbol."""

    def register(function: Callable[..., object]) -> Callable[..., object]:
        """Install ``function`` for each overload, and return it as it is."""
        for overload in overloads:
            _install(overload, function)
        return function

    return register


def _install(overload: Any, function: Callable[..., object]) -> None:
    """Let ``function`` run calls of ``overload`` with a symbol among the sizes. The others, and
    those that it refuses, are decomposed as without it."""

    @overload.py_impl(DispatchKey.PythonTLSSnapshot)  # type: ignore[untyped-decorator]
    def run(*args: object, **kwargs: object) -> Any:
        """Call ``function`` where a size is a symbol, else decompose the call."""
        tensors = list(items_of((*args, *kwargs.values())))
        if any(map(symbolic, tensors)) and sees_ours(tensors):
            try:
                return function(*args, **kwargs)
            except Refused:
                pass
        return overload.decompose(*args, **kwargs)


@_register_for_symbols(aten.kron.default)
def _kron(self: Tensor, other: Tensor) -> Tensor:
    """Return the Kronecker product, as ``torch.kron``."""
    rank = max(self.dim(), other.dim())
    rows, columns = _shape_of_rank(self, rank), _shape_of_rank(other, rank)
    ones = [1] * rank
    # each dimension of one tensor next to the same dimension of the other
    left = self.reshape(_interleave(rows, ones))
    right = other.reshape(_interleave(ones, columns))
    return (left * right).reshape([m * n for m, n in zip(rows, columns, strict=True)])


def _shape_of_rank(tensor: Tensor, rank: int) -> list[int]:
    """Return the sizes of ``tensor`` after as many ones as ``rank`` asks for."""
    return [1] * (rank - tensor.dim()) + list(tensor.shape)


def _interleave(first: Sequence[object], second: Sequence[object]) -> list[Any]:
    """List an item of ``first``, one of ``second``, and so on."""
    return list(chain.from_iterable(zip(first, second, strict=True)))


@_register_for_symbols(aten.take_along_dim.default)
def _take_along_dim(self: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Return elements of ``self`` by ``gather``, after both tensors are broadcast in the other
    dimensions, as ``torch.take_along_dim``."""
    if indices.dtype is not torch.long:
        raise Refused
    if dim is None:
        return self.reshape(-1).gather(0, indices.reshape(-1))
    if self.dim() != indices.dim() or not -self.dim() <= dim < self.dim():
        raise Refused
    dim %= self.dim()
    # all dimensions but `dim`, in which the two sizes have nothing to do with one another
    of_self, of_indices = list(self.shape), list(indices.shape)
    of_self[dim] = of_indices[dim] = 1
    common = list(torch.broadcast_shapes(of_self, of_indices))
    taken_from, places = (
        x.expand([*common[:dim], x.shape[dim], *common[dim + 1 :]]) for x in (self, indices)
    )
    # `take_along_dim` counts negative indices from the end, `gather` refuses them
    return taken_from.gather(dim, places.remainder(self.shape[dim]))


@_register_for_symbols(aten.linalg_multi_dot.default)
def _multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """Return the product in the order that takes the fewest operations. Conditions on this order
    become guards, and sizes stay symbols."""
    # dynamic programming, Cormen et al., "Introduction to Algorithms", 15.2
    count = len(tensors)
    factors = _matrices(tensors)
    sizes = [factors[0].shape[0], *(x.shape[1] for x in factors)]
    # of the factors i to j: the fewest operations, and the factor after which they are cut
    best: dict[tuple[int, int], tuple[Any, int]] = {(i, i): (0, i) for i in range(count)}
    for length in range(1, count):
        for i in range(count - length):
            best[i, i + length] = _cheapest(best, sizes, i, i + length)

    def product(i: int, j: int) -> Tensor:
        if i == j:
            return factors[i]
        cut = best[i, j][1]
        return product(i, cut).mm(product(cut + 1, j))

    result = product(0, count - 1)
    if tensors[-1].dim() == 1:
        result = result.squeeze(1)
    if tensors[0].dim() == 1:
        result = result.squeeze(0)
    return result


def _matrices(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the factors of ``multi_dot``, with a matrix for a vector at either end."""
    if len(tensors) < 3:
        raise Refused
    first, *inside, last = tensors
    ends_fit = first.dim() in (1, 2) and last.dim() in (1, 2)
    if not ends_fit or any(x.dim() != 2 for x in inside):
        raise Refused
    if first.dim() == 1:
        first = first.unsqueeze(0)
    if last.dim() == 1:
        last = last.unsqueeze(1)
    factors = [first, *inside, last]
    if any(left.shape[1] != right.shape[0] for left, right in pairwise(factors)):
        raise Refused
    return factors


def _cheapest(
    best: dict[tuple[int, int], tuple[Any, Any]],
    sizes: Sequence[int | torch.SymInt],
    i: int,
    j: int,
) -> tuple[object, int]:
    """Return the fewest operations of the product of the factors ``i`` to ``j``, and after which
    factor it is cut."""
    cheapest: tuple[object, int] | None = None
    for cut in range(i, j):
        cost = best[i, cut][0] + best[cut + 1, j][0] + sizes[i] * sizes[cut + 1] * sizes[j + 1]
        # of symbols a guard: a graph has one order
        if cheapest is None or cost < cheapest[0]:
            cheapest = cost, cut
    assert cheapest is not None
    return cheapest


@_register_for_symbols(aten.max_pool1d.default)
def _max_pool1d(
    self: Tensor,
    kernel_size: object,
    stride: object = (),
    padding: object = 0,
    dilation: object = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Run ``max_pool1d`` as ``max_pool2d`` over a dimension of size 1."""
    if self.dim() not in (2, 3):
        raise Refused

    def in_two_dims(value: Any, first: int) -> list[int]:
        """Return an option of one dimension with ``first`` for the dimension of size 1."""
        if isinstance(value, (list, tuple)):
            return [first, *value]
        return [first, value]

    strides: list[int] = []  # without any they are the sizes of the kernel
    if stride:
        strides = in_two_dims(stride, 1)
    dilation = in_two_dims(dilation, 1)
    sizes = in_two_dims(kernel_size, 1), strides, in_two_dims(padding, 0), dilation
    return torch.max_pool2d(self.unsqueeze(-2), *sizes, ceil_mode).squeeze(-2)


@_register_for_symbols(aten.fill_diagonal_.default)
def _fill_diagonal(self: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Fill the diagonal of a matrix, as ``fill_diagonal_``."""
    if self.dim() != 2 or wrap:
        raise Refused
    self.diagonal().fill_(fill_value)
    return self


def _gradient(
    self: Tensor, *, spacing: object = None, dim: object = None, edge_order: int = 1
) -> list[Tensor]:
    """Return the differences along each of the dimensions, as ``torch.gradient``."""
    dims = _dims_of_gradient(self, dim, edge_order)
    if spacing is None:
        steps: list[Any] = [1] * len(dims)
    elif isinstance(spacing, (list, tuple)):
        steps = list(spacing)
    else:
        steps = [spacing] * len(dims)
    if len(steps) != len(dims):
        raise Refused
    for step, along in zip(steps, dims, strict=True):
        if isinstance(step, Tensor) and (step.dim() != 1 or step.shape[0] != self.shape[along]):
            raise Refused
    return [_slope(self, along, step, edge_order) for along, step in zip(dims, steps, strict=True)]


def _dims_of_gradient(x: Tensor, dim: Any, edge_order: int) -> list[int]:
    """Return the dimensions that a call of ``gradient`` names. None: all."""
    if dim is None:
        dims = list(range(x.dim()))
    elif isinstance(dim, int):
        dims = [dim]
    else:
        dims = list(dim)
    if edge_order not in (1, 2) or not all(-x.dim() <= dim < x.dim() for dim in dims):
        raise Refused
    dims = [dim % x.dim() for dim in dims]
    if len(set(dims)) < len(dims) or any(x.shape[dim] <= edge_order for dim in dims):
        raise Refused
    return dims


for _name in (
    "scalarint",
    "scalararray",
    "array",
    "scalarrayint",
    "scalarrayarray",
    "tensorarrayint",
    "tensorarray",
):
    _register_for_symbols(getattr(aten.gradient, _name))(_gradient)


def _slope(x: Tensor, dim: int, step: Tensor | float, edge_order: int) -> Tensor:
    """Return the differences along ``dim``: central ones inside, one-sided ones at both ends.
    ``step``: a distance, or the coordinates."""
    if not isinstance(step, Tensor):
        inside = (_part(x, dim, 2) - _part(x, dim, 0, -2)) / step / 2
        first, last = (_edge(x, dim, (step,) * edge_order, front) for front in (True, False))
        return torch.cat([first, inside, last], dim)
    shape = [1] * x.dim()
    shape[dim] = -1
    gaps = (step[1:] - step[:-1]).reshape(shape)
    # the derivative of the parabola through three neighbours, at the one in the middle
    before, after = _part(gaps, dim, 0, -1), _part(gaps, dim, 1)
    both = before + after
    weights = -after / (before * both), (after - before) / (before * after), before / (after * both)
    inside = (
        weights[0] * _part(x, dim, 0, -2)
        + weights[1] * _part(x, dim, 1, -1)
        + weights[2] * _part(x, dim, 2)
    )
    # one gap for a slope of the first order, two for one of the second
    front = [gaps.select(dim, index).unsqueeze(dim) for index in (0, 1)[:edge_order]]
    back = [gaps.select(dim, index).unsqueeze(dim) for index in (-1, -2)[:edge_order]]
    return torch.cat([_edge(x, dim, front, True), inside, _edge(x, dim, back, False)], dim)


def _edge(x: Tensor, dim: int, gaps: Sequence[Any], front: bool) -> Tensor:
    """Return the slope at one end, from the two or three values next to it. ``gaps``: their
    distances, from the end inwards."""
    numbers, sign = range(len(gaps) + 1), 1
    if not front:  # counted from the end, where the differences have the other sign
        numbers, sign = range(-1, -2 - len(gaps), -1), -1
    at = [x.select(dim, number).unsqueeze(dim) for number in numbers]
    if len(gaps) == 1:
        (gap,) = gaps
        return sign * (at[1] - at[0]) / gap  # type: ignore[no-any-return]
    near, far = gaps
    both = near + far
    inner = at[1] * (both / (near * far)) - at[2] * (near / (far * both))
    return sign * (inner - at[0] * ((near + both) / (near * both)))  # type: ignore[no-any-return]


def _part(x: Tensor, dim: int, start: int, end: int | None = None) -> Tensor:
    return x.narrow(dim, start, x.shape[dim] + (end or 0) - start)


def _is_symbol_to_resize(size: object, n: object) -> bool:
    """Tell whether ``size`` is a symbol that a transform of size ``n`` would compare with it. A
    size of -1 leaves the tensor as it is."""
    return isinstance(size, SYMBOLIC) and not same_size(n, -1) and not same_size(size, n)


def _fit_dimensions(tensor: Tensor, dims: list[int], sizes: list[int | torch.SymInt]) -> bool:
    """Return whether these are dimensions of ``tensor``, and sizes that a transform of them
    takes."""
    if len(dims) != len(sizes):
        return False
    if not all(-tensor.dim() <= dim < tensor.dim() for dim in dims):
        return False
    return not any(size < -1 for size in sizes)


def _register_resizing(overload: OpOverload) -> None:
    """Resize the input of a Fourier transform before the call, where the call would ask which of
    two sizes is the larger."""

    @_register_for_symbols(overload)
    def run(
        self: Tensor, size: object = None, dim: object = None, norm: str | None = None
    ) -> Tensor:
        """Run the transform of a tensor that has the sizes of the result already. ``size``,
        ``dim``: one for one dimension, a list of them, or None."""
        if size is None:
            raise Refused
        sizes = list(items_of((size,)))
        if dim is None:
            dim = -1
            if isinstance(size, (list, tuple)):
                dim = list(range(-len(sizes), 0))
        dims = list(items_of((dim,)))
        if not _fit_dimensions(self, dims, sizes):
            raise Refused
        resized = self
        for along, length in zip(dims, sizes, strict=True):
            if _is_symbol_to_resize(self.shape[along], length):
                # pad by all that may be missing, and cut: right whichever size is the larger
                along %= self.dim()
                # two numbers for each dimension, the last dimension first
                padding = [0, 0] * (self.dim() - 1 - along) + [0, length]
                resized = torch.constant_pad_nd(resized, padding).narrow(along, 0, length)
        # ATen's call asks nothing then
        if resized is self:
            raise Refused
        return overload(resized, size, dim, norm)  # type: ignore[no-any-return]


for _name in (
    "fft",
    "ifft",
    "rfft",
    "ihfft",
    "fft2",
    "ifft2",
    "rfft2",
    "ihfft2",
    "fftn",
    "ifftn",
    "rfftn",
    "ihfftn",
):
    _register_resizing(getattr(aten, f"fft_{_name}").default)
