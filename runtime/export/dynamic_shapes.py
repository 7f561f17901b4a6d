"""Read ``dynamic_shapes`` of an exported program: what it says of each leaf of the arguments.

    {"x": {0: Dim("n")}, "y": None}    # of f(x, y): [{0: Dim("n")}, {}]

The structure is that of ``torch.export.export``: by name of an argument, or by position.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim

from ..seam.call_types import Arguments
from ..torch_private.pytrees import pytree
from ..torch_private.symbolic_shapes import DimHint, DimHintType

Spec = Mapping[int, object]  # per dimension of a tensor: a Dim, a hint, or a number


def is_dynamic(dim: object) -> bool:
    """Tell whether a dimension with this spec has a symbol as its size: a ``Dim`` or a hint other
    than ``Dim.STATIC``."""
    if isinstance(dim, DimHint):
        return dim.type is not DimHintType.STATIC
    return isinstance(dim, Dim)


def check_spec(tensor: torch.Tensor, spec: Spec, name: str) -> None:
    """Raise ``ValueError`` if ``tensor`` lacks a dimension of ``spec``, or has another size
    there."""
    # all dimensions before all sizes, as a size needs its dimension
    for index in spec:
        if not 0 <= index < tensor.dim():
            raise ValueError(
                f"dynamic_shapes has dimension {index} of {name}, "
                f"which has {tensor.dim()} dimensions"
            )
    for index, size in spec.items():
        if type(size) is int and size != tensor.shape[index]:
            raise ValueError(
                f"dynamic_shapes says {size} for dimension {index} of {name}, "
                f"whose size is {tensor.shape[index]}"
            )


def specs_of(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    dynamic_shapes: object,
) -> list[Any]:
    """Return for each leaf of the arguments of ``function`` what ``dynamic_shapes`` says of it.

    The leaves of ``args`` come first, then those of ``kwargs``. A tensor has a ``Spec``, anything
    else None. ``dynamic_shapes`` is as ``torch.export.export`` takes it: a dictionary by name of
    argument, a sequence with an item per argument, or None. ``TypeError`` for another type,
    ``ValueError`` if its structure is not that of the arguments.
    """
    arguments = [*args, *kwargs.values()]
    if dynamic_shapes is None:
        specs: list[Any] = [None] * len(arguments)
    elif isinstance(dynamic_shapes, Mapping):
        specs = _specs_by_name(function, args, kwargs, dynamic_shapes)
    elif isinstance(dynamic_shapes, (tuple, list)):
        if len(dynamic_shapes) != len(arguments):
            raise ValueError(
                f"dynamic_shapes has {len(dynamic_shapes)} items for {len(arguments)} arguments"
            )
        specs = list(dynamic_shapes)
    else:
        raise TypeError(
            "dynamic_shapes is a dict by name of argument, or a tuple with an item per argument, "
            f"not {type(dynamic_shapes)}"
        )
    specs_by_leaf: list[Any] = []
    # an argument may be a pytree, and its spec has the same structure
    for value, spec in zip(arguments, specs, strict=True):
        specs_by_leaf += _specs_of_leaves(value, spec)
    return specs_by_leaf


def parameters_of(function: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function by name, or those of the ``forward`` of a module, whose
    ``__call__`` takes any."""
    if isinstance(function, torch.nn.Module):
        return inspect.signature(function.forward).parameters
    return inspect.signature(function).parameters


def _specs_by_name(
    function: Callable[..., object],
    args: Arguments,
    kwargs: Mapping[str, Any],
    shapes: Mapping[str, Any],
) -> list[Any]:
    """Return what ``shapes`` says of each argument, the positional ones first.

    The items of ``*args`` have a sequence there, under the name of that parameter. Those of
    ``**kwargs`` have a dictionary. ``ValueError`` for a name that is no parameter.
    """
    parameters = parameters_of(function)
    variadic: dict[Any, Any] = {}  # by name, or by the position of an item of ``*args``
    keys: list[str | int] = []  # of positional arguments: a name, or the position of such an item
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            positions = range(len(keys), len(args))
            specs = shapes.get(parameter.name)
            if specs is not None:
                variadic |= {position: specs[position - positions.start] for position in positions}
            keys += positions
        elif parameter.kind is parameter.VAR_KEYWORD:
            variadic |= shapes.get(parameter.name) or {}
        else:
            keys.append(parameter.name)
    # a name of an item of ``**kwargs`` is no parameter, and belongs into the dictionary of that
    unknown = shapes.keys() - parameters.keys()
    if unknown:
        raise ValueError(
            f"dynamic_shapes has {sorted(unknown)}, which are no parameters of the program"
        )
    by_key = {**shapes, **variadic}
    return list(map(by_key.get, [*keys[: len(args)], *kwargs]))


def _specs_of_leaves(value: Any, spec: Any) -> Iterator[Any]:
    """Yield what ``spec`` says of each leaf of ``value``: a ``Spec`` of a tensor, else None.

    ``ValueError`` if they do not have the same structure.
    """
    if spec is None:
        yield from map(_static_spec, pytree.tree_leaves(value))
    elif isinstance(value, torch.Tensor) and isinstance(spec, (Mapping, list, tuple)):
        yield _spec_by_dimension(spec)
    elif isinstance(spec, Mapping) and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _specs_of_leaves(item, spec.get(key))
    elif _are_sequences_of_one_length(value, spec):
        for item, part in zip(value, spec, strict=True):
            yield from _specs_of_leaves(item, part)
    else:
        raise ValueError(
            f"dynamic_shapes says {spec!r} of an argument of type {type(value).__name__}, "
            "which does not have that structure"
        )


def _static_spec(value: object) -> dict[int, object] | None:
    """Return the spec of a leaf that ``dynamic_shapes`` says nothing of: all sizes are constant."""
    if isinstance(value, torch.Tensor):
        return {}
    return None


def _spec_by_dimension(spec: Any) -> dict[int, object]:
    """Return the spec of a tensor as a dictionary. A sequence has an item for each dimension."""
    if isinstance(spec, Mapping):
        return dict(spec)
    return {index: size for index, size in enumerate(spec) if size is not None}


def _are_sequences_of_one_length(value: Any, spec: Any) -> bool:
    """Tell whether both are lists or tuples, and ``spec`` has an item for each of ``value``."""
    are_sequences = isinstance(value, (list, tuple)) and isinstance(spec, (list, tuple))
    return are_sequences and len(value) == len(spec)
