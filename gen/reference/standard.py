"""Compute values, gradients and tangents of one call by tables, for pipelines of at most one stage.

The tables are :mod:`gen.reference.special_numbers` and :mod:`gen.reference.lines`. Values are NumPy
arrays of Python's numbers. None is an entry of which nothing is said.

    standard = Standard(sample)
    standard.root(numbers(x), numbers(y))     # the op's results
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, Protocol

import numpy
import torch

from gen.reference.lines import LINES, PLACED, Line
from gen.reference.special_numbers import NARROW, POINTWISE, Pointwise

__all__ = ["REFUSALS", "Standard", "is_exact", "is_known", "is_signed", "numbers"]

Array = Any
"""A ``numpy.ndarray`` of Python's numbers and of None."""
Flat = Callable[..., tuple[Array, ...]]
REFUSALS = (ArithmeticError, IndexError, StopIteration, TypeError, ValueError)
"""What a definition raises for numbers that the op refuses, or that it does not define."""
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "torch.norm": ("p", "dim", "keepdim"),
    "torch.norm.inf": ("p", "dim", "keepdim"),
    "torch.norm.fro": ("p", "dim", "keepdim"),
    "torch.linalg.vector_norm": ("p", "dim", "keepdim"),
    "torch.quantile": ("q", "dim", "keepdim"),
    "torch.nanquantile": ("q", "dim", "keepdim"),
    **{
        f"torch.{name}{variant}": ("dim", "unbiased", "keepdim")
        for name in ("var", "std", "var_mean", "std_mean")
        for variant in ("", ".unbiased")
    },
}
"""Parameters of reductions behind the first one, where they are others than a dimension and whether
it stays."""


class Called(Protocol):
    """What a definition gets of a sample."""

    @property
    def op(self) -> Any: ...

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]: ...

    @property
    def rebuild(self) -> Callable[[Sequence[Any]], tuple[list[Any], dict[str, Any]]]: ...


def is_known(name: str) -> bool:
    """Return whether a table has the op."""
    return name in POINTWISE or name in LINES


def is_exact(name: str) -> bool:
    """Return whether the op of a table rounds nothing."""
    if name in POINTWISE:
        return POINTWISE[name].exact
    return LINES[name].exact


def is_signed(name: str) -> bool:
    """Return whether a table has the signs of the zeros of an op."""
    return name in POINTWISE and POINTWISE[name].signed


def numbers(x: torch.Tensor) -> Array:
    """Return the numbers of a tensor, as Python has them."""
    return _array(x.reshape(-1).tolist(), tuple(x.shape))


def _array(flat: Sequence[object], shape: tuple[int, ...]) -> Array:
    # numpy.array would choose a dtype, and have NumPy's numbers in place of Python's
    array = numpy.empty(len(flat), dtype=object)
    array[:] = flat
    return array.reshape(shape)


@dataclass
class _Call:
    """A call of the op: its inputs and results, and for each input the products that it takes part
    in.
    """

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    products: list[tuple[int, tuple[int, ...], int, tuple[int, ...], float | None]]
    """``(result, its index, input, its index, slope)``. A slope of 0 may be left out."""


class Standard:
    """Compute one op by the stages ``forward``, ``vjp`` and ``jvp`` (see
    :class:`gen.targets.protocol.Target`). Stages do not nest.
    """

    name = "standard"
    lacks: frozenset[str] = frozenset()

    def __init__(self, sample: Called) -> None:
        self._sample = sample
        self._slopes = False
        self._call: _Call | None = None

    def root(self, *inputs: Array) -> tuple[Array, ...]:
        """Return the op's results."""
        name = self._sample.op.name
        if name in POINTWISE:
            outputs, products = _elementwise(self._sample, POINTWISE[name], inputs, self._slopes)
        else:
            outputs, products = _by_rows(self._sample, inputs[0], self._slopes)
        self._call = _Call(inputs, outputs, products)
        return outputs

    def forward(self, f: Flat) -> Flat:
        return f

    def vjp(
        self, f: Flat, *primals: Array
    ) -> tuple[tuple[Array, ...], Callable[[Sequence[Array]], tuple[Array, ...]]]:
        """Return the outputs, and the function from cotangents to gradients."""
        outputs, call = self._run(f, primals)
        results, places = _places(outputs, call.outputs), _places(primals, call.inputs)

        def pullback(cotangents: Sequence[Array]) -> tuple[Array, ...]:
            gradients = [_array([0.0] * primal.size, primal.shape) for primal in primals]
            for result, at, place, index, slope in call.products:
                if result in results and place in places:
                    gradient = gradients[places[place]]
                    gradient[index] = _plus(gradient[index], slope, cotangents[results[result]][at])
            return tuple(gradients)

        return outputs, pullback

    backward = vjp

    def jvp(
        self, f: Flat, primals: Sequence[Array], tangents: Sequence[Array]
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Return the outputs and their derivatives along `tangents`."""
        outputs, call = self._run(f, primals)
        results, places = _places(outputs, call.outputs), _places(primals, call.inputs)
        start = None  # of nothing nothing is said
        if call.inputs[0].size:
            start = 0.0
        pushed = [_array([start] * y.size, y.shape) for y in outputs]
        for result, at, place, index, slope in call.products:
            if result in results and place in places:
                tangent = pushed[results[result]]
                tangent[at] = _plus(tangent[at], slope, tangents[places[place]][index])
        return outputs, tuple(pushed)

    def _run(self, f: Flat, primals: Sequence[Array]) -> tuple[tuple[Array, ...], _Call]:
        """Run the op, and note its slopes. Return the outputs of `f` and the call of the op."""
        self._slopes = True
        # `f` calls `root`, which notes its call
        outputs = tuple(f(*primals))
        assert self._call is not None
        return outputs, self._call


def _places(some: Sequence[Array], among: Sequence[Array]) -> dict[int, int]:
    """Return where each of `some` is among others, to its own place."""
    place_of = {}
    for index, x in enumerate(some):
        for place, other in enumerate(among):
            # by identity: stages pass the same arrays on
            if other is x:
                place_of[place] = index
    return place_of


def _plus(total: float | None, slope: float | None, by: float) -> float | None:
    """Return a sum with a product, which is unknown if one of them is."""
    if total is None or slope is None:
        return None
    return total + slope * by


# --- elementwise ----------------------------------------------------------------------------------


def _elementwise(
    sample: Called, rule: Pointwise, inputs: Sequence[Array], slopes: bool
) -> tuple[tuple[Array, ...], list[Any]]:
    """Return results and products at every element of vectors of one length."""
    shape, points = inputs[0].shape, list(zip(*(x.reshape(-1) for x in inputs), strict=True))
    extra = {}
    if sample.op.name in NARROW:
        extra["dtype"] = _numpy_dtype(sample)
    results: list[Any] = []
    products: list[Any] = []
    for index, point in zip(numpy.ndindex(shape), points, strict=True):
        args, kwargs = sample.rebuild(point)
        results.append(rule.value(*args, **kwargs, **extra))
        if slopes and rule.slopes is not None:
            slopes_at_point = rule.slopes(*args, **kwargs)
            products += [
                (0, index, place, index, slopes_at_point[parameter])
                for place, parameter in enumerate(_parameters(sample, rule))
                if parameter < len(slopes_at_point)
            ]
    # Some ops have several results for one element, such as frexp.
    columns: Iterable[Sequence[Any]] = [results]
    if any(isinstance(y, tuple) for y in results):
        columns = zip(*results, strict=True)
    return tuple(_array(list(column), shape) for column in columns), products


def _numpy_dtype(sample: Called) -> object:
    return numpy.dtype(str(sample.inputs[0].dtype).removeprefix("torch.")).type


def _parameters(sample: Called, rule: Pointwise) -> list[int]:
    """Return which parameter of the rule each tensor of the sample is."""
    # objects that equal nothing but themselves show where each tensor comes out
    marks = [object() for _ in sample.inputs]
    args, kwargs = sample.rebuild(marks)
    names = list(inspect.signature(rule.value).parameters)
    by_place = list(enumerate(args))
    by_place += [(names.index(name), value) for name, value in kwargs.items()]
    places: list[int] = []
    for mark in marks:
        places.append(next(place for place, value in by_place if value is mark))
    return places


# --- rows -----------------------------------------------------------------------------------------


@dataclass
class _Rows:
    """How a call takes rows out of an array."""

    line: Line
    # the dimensions along which a row lies
    axes: tuple[int, ...]
    # whether these dimensions stay, with size 1
    keepdim: bool
    # further arguments of the rule of a row
    options: dict[str, Any]


def _by_rows(sample: Called, x: Array, slopes: bool) -> tuple[tuple[Array, ...], list[Any]]:
    """Return results and products of a reduction or a scan."""
    how = _rows(sample, x)
    # Each index of the other dimensions is a row.
    outer = _other_sizes(x.shape, how)
    sizes_of_row = [range(x.shape[axis]) for axis in how.axes]
    inner = list(product(*sizes_of_row))
    results_of_rows: list[tuple[Any, ...]] = []
    products: list[Any] = []
    for at in numpy.ndindex(*outer):
        indices = [_index(at, within, how.axes, x.ndim) for within in inner]
        row = [x[index] for index in indices]
        y = how.line.value(row, **how.options)
        results_of_rows.append(y if isinstance(y, tuple) else (y,))
        if slopes and row and how.line.slopes is not None:
            results = [_reduced_index(at, how, x.ndim)]
            if how.line.scan:
                results = indices
            products += _products(how.line.slopes(row, **how.options), results, indices)
    if not results_of_rows:
        raise ValueError("no row: nothing says how many results there are")
    columns = zip(*results_of_rows, strict=True)
    return tuple(_assemble(column, how, x) for column in columns), products


def _assemble(column: Sequence[Any], how: _Rows, x: Array) -> Array:
    """Return one result of all rows as an array: as long as the rows after a scan, else reduced."""
    if how.line.scan:
        return _unroll(column, how, x)
    return _array(list(column), _reduced_shape(x.shape, how))


def _products(
    slopes: Sequence[Any], results: Sequence[tuple[int, ...]], indices: Sequence[tuple[int, ...]]
) -> Iterator[tuple[object, ...]]:
    """Yield the products of the results of one row, as :attr:`_Call.products` has them."""
    for number, each in enumerate(slopes):
        rows = [each]
        if each and isinstance(each[0], list):  # of a scan
            rows = each
        for result, row in zip(results, rows, strict=True):
            for index, slope in zip(indices, row, strict=True):
                # an unknown slope, None, is no 0 either
                if slope != 0:
                    yield number, result, 0, index, slope


def _rows(sample: Called, x: Array) -> _Rows:
    """Return how a call takes rows out of `x`, by the arguments of the reduction."""
    name = sample.op.name
    args, kwargs = sample.rebuild((x,))
    options = dict(zip(_PARAMETERS.get(name, ("dim", "keepdim")), args[1:], strict=False))
    options |= kwargs
    # `vector_norm` calls the order `ord`, and an overload of `var` has `unbiased` in the place of
    # `dim`.
    if "ord" in options:
        options["p"] = options.pop("ord")
    if isinstance(options.get("dim"), bool):
        options["unbiased"] = options.pop("dim")
    dim, keepdim = options.pop("dim", None), bool(options.pop("keepdim", False))
    options.pop("dtype", None)
    # of a row both mean the default, 2
    if options.get("p") in (None, "fro") and "p" in options:
        options.pop("p")
    line = LINES[name]
    if dim is not None:
        line = PLACED.get(name, line)
    return _Rows(line, _axes(dim, x.ndim), keepdim, options)


def _axes(dim: Any, ndim: int) -> tuple[int, ...]:
    """Return the dimensions of a reduction, which are all if none is named."""
    if dim is None or dim in ((), []):
        return tuple(range(ndim))
    if ndim == 0:
        return ()
    dims = (dim,) if isinstance(dim, int) else dim
    return tuple(sorted(dim % ndim for dim in dims))


def _index(
    at: Sequence[int], within: Sequence[int], axes: Sequence[int], ndim: int
) -> tuple[int, ...]:
    """Return the index of an element, from its index in the rows and that within its row."""
    outer, inner = iter(at), iter(within)
    return tuple(next(inner) if d in axes else next(outer) for d in range(ndim))


def _reduced_index(at: Sequence[int], how: _Rows, ndim: int) -> tuple[int, ...]:
    """Return the index of a row's result."""
    if not how.keepdim:
        return tuple(at)
    return _index(at, [0] * len(how.axes), how.axes, ndim)


def _reduced_shape(shape: Sequence[int], how: _Rows) -> tuple[int, ...]:
    if not how.keepdim:
        return _other_sizes(shape, how)
    sizes = numpy.array(shape, dtype=int)
    sizes[list(how.axes)] = 1
    return tuple(sizes.tolist())


def _other_sizes(shape: Sequence[int], how: _Rows) -> tuple[int, ...]:
    """Return the sizes of the dimensions that are not reduced."""
    return tuple(size for dim, size in enumerate(shape) if dim not in how.axes)


def _unroll(rows: Sequence[Sequence[object]], how: _Rows, x: Array) -> Array:
    """Return the results of a scan, back in the places of their rows."""
    if not x.ndim:
        return _array(list(rows[0]), ())
    outer = _other_sizes(x.shape, how)
    values = list(chain.from_iterable(rows))
    flat = _array(values, (*outer, x.shape[how.axes[0]]))
    return numpy.moveaxis(flat, -1, how.axes[0])
