"""Masked tensors and the functions of ``torch.masked``, and the same as a loop over shown elements.

    mean_by_row(x, y, made="row_hidden", shape=[3, 4])     # torch.masked.mean, and a MaskedTensor's

``made`` says which elements a mask shows. An element that is not shown has no part in a result,
whatever it is: gradients by it are 0. What torch leaves undefined, such as a mean of no element, is
taken as 0 on both sides.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.masked import MaskedTensor, as_masked_tensor

from programs.families.tools import Results, Row, gradients, leaves_of

SHAPES = ([3, 4], [1, 5], [4, 1], [2, 17], [3, 0], [0, 3])


# --- masks ----------------------------------------------------------------------------------------


def _some(shape: Sequence[int]) -> Tensor:
    """Return a mask of two elements in five, another place in each row."""
    places = torch.arange(math.prod(shape)).reshape(*shape)
    return places * 7 % 5 < 2


def _row_hidden(shape: Sequence[int]) -> Tensor:
    mask = torch.ones(*shape, dtype=torch.bool)
    mask[-1:] = False
    return mask


def _one(shape: Sequence[int]) -> Tensor:
    mask = torch.zeros(*shape, dtype=torch.bool)
    mask[:1, -1:] = True
    return mask


MASKS: dict[str, Callable[[Sequence[int]], Tensor]] = {
    "all_shown": lambda shape: torch.ones(*shape, dtype=torch.bool),
    "none_shown": lambda shape: torch.zeros(*shape, dtype=torch.bool),
    "some_shown": _some,
    "row_hidden": _row_hidden,
    "one_shown": _one,
}


def samples(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return two tensors of a shape, and how the mask of them is made."""
    return _samples(SHAPES)


def samples_without_empty(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return the same of shapes that have elements."""
    return _samples([shape for shape in SHAPES if 0 not in shape])


def _samples(shapes: Sequence[list[int]]) -> list[dict[str, Any]]:
    return [
        {"args": [{"shape": shape}, {"shape": shape}], "kwargs": {"made": made, "shape": shape}}
        for made in MASKS
        for shape in shapes
    ]


# --- reductions -----------------------------------------------------------------------------------

Dims = int | tuple[int, ...] | None
DIMENSIONS: dict[str, Dims] = {"by_column": 0, "by_row": 1, "of_both": (0, 1), "of_all": None}
"""Reduced dimensions, by the end of a row's name."""


def _deviation(t: Tensor) -> Tensor:
    return (t - t.mean()).square().sum() / (len(t) - 1)


OF_SHOWN: dict[str, tuple[Callable[[Tensor], Tensor], float, int]] = {
    "sum": (lambda t: t.sum(), 0.0, 0),
    "prod": (lambda t: t.prod(), 1.0, 0),
    "mean": (lambda t: t.sum() / len(t), math.nan, 1),
    "amax": (lambda t: t.max(), -math.inf, 1),
    "amin": (lambda t: t.min(), math.inf, 1),
    "norm": (lambda t: t.square().sum().sqrt(), 0.0, 1),
    "var": (_deviation, math.nan, 2),
    "std": (lambda t: _deviation(t).sqrt(), math.nan, 2),
    "logsumexp": (lambda t: t.exp().sum().log(), -math.inf, 1),
    "median": (lambda t: t.sort().values[(len(t) - 1) // 2], math.nan, 1),
    "argmax": (lambda t: t.argmax(), math.nan, 1),
    "argmin": (lambda t: t.argmin(), math.nan, 1),
}
"""For each reduction: of the shown elements, its value of too few, and how many are needed."""

_OF_MASKED_TENSOR = ("sum", "prod", "mean", "amax", "amin", "argmax", "argmin")


def _reduced(name: str, x: Any, mask: Tensor | None, dims: Dims, keep: bool) -> Any:
    """Return a reduction: of torch.masked, or a method of a masked tensor without a mask."""
    if mask is None:
        return getattr(x, name)() if dims is None else getattr(x, name)(dims)
    options: dict[str, Any] = {"mask": mask, "keepdim": keep}
    if name == "norm":
        return torch.masked.norm(x, 2.0, dims, **options)
    if name in ("var", "std"):
        return getattr(torch.masked, name)(x, dims, True, **options)
    return getattr(torch.masked, name)(x, dims, **options)


def _groups(shape: Sequence[int], dims: Dims) -> list[list[int]]:
    """Return the places of each result's elements, in the order of results."""
    places = torch.arange(math.prod(shape)).reshape(*shape)
    if dims == 0:
        places = places.t()
    if isinstance(dims, int):
        return [row.tolist() for row in places]
    return [places.flatten().tolist()]


def _loop(name: str, x: Tensor, mask: Tensor, dims: Dims) -> Tensor:
    """Return the reduction of the shown elements of each group."""
    of_shown, of_none, needed = OF_SHOWN[name]
    found = []
    for places in _groups(x.shape, dims):
        shown = [place for place in places if mask.flatten()[place]]
        if len(shown) < max(needed, 1):
            found.append(torch.tensor(of_none, dtype=x.dtype))
        elif name.startswith("arg"):
            best = int(of_shown(x.detach().flatten()[shown]))
            found.append(torch.tensor(float(places.index(shown[best]))))
        else:
            found.append(of_shown(x.flatten()[shown]))
    return torch.stack(found).to(x.dtype) if found else x.new_zeros(0)


def _settled(result: Tensor, undefined: Tensor) -> Tensor:
    """Return a flat result with zeros for what is undefined."""
    flat = result.to(torch.float64).flatten()
    return torch.where(undefined, torch.zeros_like(flat), flat)


def _undefined(name: str, mask: Tensor, dims: Dims) -> Tensor:
    """Return where a result has no value: of too few elements, if the reduction has none."""
    _, of_none, needed = OF_SHOWN[name]
    counts = [int(mask.flatten()[places].sum()) for places in _groups(mask.shape, dims)]
    is_open = needed > 1 or math.isnan(of_none)
    return torch.tensor([is_open and count < max(needed, 1) for count in counts], dtype=torch.bool)


def _reduction(name: str, dims: Dims) -> Row:
    def program(x: Tensor, y: Tensor, *, made: str, shape: Sequence[int]) -> Results:
        mask = MASKS[made](shape)
        undefined = _undefined(name, mask, dims)
        found: list[Tensor] = []
        for keep in (False, True):
            (leaf,) = leaves_of(x)
            result = _settled(_reduced(name, leaf, mask, dims, keep), undefined)
            found += [result.detach(), _gradient_of(result, leaf, undefined, dims)]
        return tuple(found)

    def definition(x: Tensor, y: Tensor, *, made: str, shape: Sequence[int]) -> Results:
        mask = MASKS[made](shape)
        undefined = _undefined(name, mask, dims)
        (leaf,) = leaves_of(x)
        result = _settled(_loop(name, leaf, mask, dims), undefined)
        once = [result.detach(), _gradient_of(result, leaf, undefined, dims)]
        return *once, *once

    return Row(program, definition, may_refuse=True)


def _gradient_of(result: Tensor, leaf: Tensor, undefined: Tensor, dims: Dims) -> Tensor:
    """Return the gradient of finite results, zeros by elements whose result is undefined."""
    (found,) = gradients([result[result.detach().isfinite()]], [leaf])
    flat = found.flatten()
    for is_open, places in zip(undefined.tolist(), _groups(leaf.shape, dims), strict=True):
        if is_open:
            flat[places] = 0.0
    return flat.reshape(leaf.shape)


def _as_dense(result: Any) -> tuple[Tensor, Tensor]:
    """Return the elements of a masked tensor, zeros where none is shown, and its mask."""
    mask = result.get_mask()
    return result.to_tensor(0.0), mask


def _dense_gradients(result: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return gradients, which are masked tensors, with zeros where they show none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: list[Any] = list(gradients([result], leaves))
        return [one.to_tensor(0.0) if isinstance(one, MaskedTensor) else one for one in found]


def _method(name: str, dims: Dims) -> Row:
    """Return the row of a method of masked tensors: values where the result shows them."""

    def program(x: Tensor, y: Tensor, *, made: str, shape: Sequence[int]) -> Results:
        (leaf,) = leaves_of(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # masked tensors are a prototype
            masked = as_masked_tensor(leaf, MASKS[made](shape))
            dense, shown = _as_dense(_reduced(name, masked, None, dims, False))
        dense, shown = dense.to(torch.float64).flatten(), shown.flatten()
        dense = torch.where(shown, dense, torch.zeros_like(dense))
        return dense.detach(), shown, *_dense_gradients(dense, [leaf])

    def definition(x: Tensor, y: Tensor, *, made: str, shape: Sequence[int]) -> Results:
        mask = MASKS[made](shape)
        (leaf,) = leaves_of(x)
        counts = [bool(mask.flatten()[places].any()) for places in _groups(shape, dims)]
        shown = torch.tensor(counts, dtype=torch.bool)
        result = _settled(_loop(name, leaf, mask, dims), ~shown)
        return result.detach(), shown, *gradients([result], [leaf])

    return Row(program, definition, may_refuse=True)


# --- functions along a dimension that keep its size -----------------------------------------------


def _shifted(t: Tensor, sign: float = 1.0) -> Tensor:
    weights = (sign * t - (sign * t).max().detach()).exp()
    return weights / weights.sum()


ALONG: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]] = {
    "softmax": (torch.masked.softmax, _shifted),
    "softmin": (torch.masked.softmin, lambda t: _shifted(t, -1.0)),
    "log_softmax": (torch.masked.log_softmax, lambda t: _shifted(t).log()),
    "cumsum": (torch.masked.cumsum, lambda t: t.cumsum(0)),
    "cumprod": (torch.masked.cumprod, lambda t: t.cumprod(0)),
    "normalize": (
        lambda x, dim, mask: torch.masked.normalize(x, 2.0, dim, mask=mask),
        lambda t: t / t.square().sum().sqrt().clamp_min(1e-12),
    ),
}
"""By torch, and of the shown elements of one line. Where no element is shown nothing is defined."""


def _along(name: str, dim: int) -> Row:
    by_torch, of_line = ALONG[name]

    def program(x: Tensor, y: Tensor, *, made: str, shape: Sequence[int]) -> Results:
        mask = MASKS[made](shape)
        (leaf,) = leaves_of(x)
        result = torch.where(mask, by_torch(leaf, dim, mask=mask), torch.zeros_like(leaf))
        return result.detach(), *gradients([result], [leaf])

    def definition(x: Tensor, y: Tensor, *, made: str, shape: Sequence[int]) -> Results:
        mask = MASKS[made](shape).flatten()
        (leaf,) = leaves_of(x)
        result = torch.zeros(math.prod(shape), dtype=x.dtype)
        for places in _groups(shape, dim):
            shown = [place for place in places if mask[place]]
            if shown:
                line = of_line(leaf.flatten()[shown])
                result = result.index_put((torch.tensor(shown),), line)
        result = result.reshape(x.shape)
        return result.detach(), *gradients([result], [leaf])

    return Row(program, definition, may_refuse=True)


# --- elementwise functions of masked tensors ------------------------------------------------------

UNARY: dict[str, Callable[[Any], Any]] = {
    "sine": torch.sin,
    "square_root": torch.sqrt,
    "logarithm": torch.log,
    "exponential": torch.exp,
    "sigmoid": torch.sigmoid,
    "negative": torch.neg,
    "absolute": torch.abs,
    "reciprocal": torch.reciprocal,
    "tangent": torch.tanh,
    "squared": torch.square,
    "floor": torch.floor,
    "rectified": torch.relu,
    "sine_in_place": lambda t: (t * 1).sin_(),
    "transposed": lambda t: t.t(),
    "flat": lambda t: t.reshape(-1),
    "first_rows": lambda t: t[:1],
    "copied": lambda t: t.clone() * 2,
    "to_single": lambda t: t.to(torch.float32),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "added": torch.add,
    "subtracted": torch.sub,
    "multiplied": torch.mul,
    "divided": torch.div,
    "power": lambda a, b: torch.pow(a.abs() + 1, b),
    "larger": torch.maximum,
    "smaller": torch.minimum,
    "angle": torch.atan2,
    "log_sum": torch.logaddexp,
    "less": lambda a, b: torch.lt(a, b) * 1.0,
    "scaled": lambda a, b: a * 2.5 - b,
    "chained": lambda a, b: ((a * b).sin() + a) / (b * b + 1),
    "added_in_place": lambda a, b: (a * 1).add_(b),
}


WITHOUT_GRADIENT = frozenset(
    ("sigmoid", "tangent", "floor", "rectified", "power", "larger", "smaller", "angle", "log_sum")
)
"""Functions whose backward pass torch lacks for some mask. Their values are compared without it. A
row ``NAME_with_gradient`` compares both."""


def _elementwise(f: Callable[..., Any], count: int, differentiable: bool) -> Row:
    def program(x: Tensor, y: Tensor, *, made: str, shape: Sequence[int]) -> Results:
        mask = MASKS[made](shape)
        leaves = (leaves_of(x, y) if differentiable else [x, y])[:count]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # masked tensors are a prototype
            dense, shown = _as_dense(f(*(as_masked_tensor(leaf, mask) for leaf in leaves)))
        result = torch.where(shown, dense, torch.zeros_like(dense))
        return result.detach(), shown, *_dense_gradients(result, leaves if differentiable else [])

    def definition(x: Tensor, y: Tensor, *, made: str, shape: Sequence[int]) -> Results:
        mask = MASKS[made](shape)
        leaves = (leaves_of(x, y) if differentiable else [x, y])[:count]
        # what is hidden is a number on which each function is smooth
        inner = [torch.where(mask, leaf, torch.full_like(leaf, 0.75)) for leaf in leaves]
        shown = f(mask) if f in _OF_PLACES else mask
        dense = f(*inner)
        result = torch.where(shown, dense, torch.zeros_like(dense))
        return result.detach(), shown, *_dense_gradients(result, leaves if differentiable else [])

    return Row(program, definition, may_refuse=True)


_OF_PLACES = (UNARY["transposed"], UNARY["flat"], UNARY["first_rows"])
"""Functions that move elements: the mask moves likewise."""


def _rows() -> dict[str, Row]:
    rows = {}
    for count, functions in ((1, UNARY), (2, BINARY)):
        for name, f in functions.items():
            rows[name] = _elementwise(f, count, name not in WITHOUT_GRADIENT)
            if name in WITHOUT_GRADIENT:
                rows[f"{name}_with_gradient"] = _elementwise(f, count, True)
    for name, (end, dims) in itertools.product(OF_SHOWN, DIMENSIONS.items()):
        if name in ("median", "logsumexp", "argmax", "argmin") and not isinstance(dims, int):
            continue
        rows[f"{name}_{end}"] = _reduction(name, dims)
    for name, (end, dims) in itertools.product(_OF_MASKED_TENSOR, DIMENSIONS.items()):
        if end != "of_both":
            rows[f"method_{name}_{end}"] = _method(name, dims)
    for name in ALONG:
        rows[f"{name}_0"], rows[f"{name}_1"] = _along(name, 0), _along(name, 1)
    return rows


globals().update(_rows())
