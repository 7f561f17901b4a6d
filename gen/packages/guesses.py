"""Guess arguments from the names, annotations and descriptions of parameters.

    guesses((Parameter("x"), Parameter("dim")))
    # first: [{"shape": [4, 3]}, -1]

A guess is a list of arguments as a sample of ``matrix.yaml`` has them. The likely ones come first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gen.packages.docstrings import domain_of, dtype_of
from gen.packages.documented_shapes import (
    Documented,
    Sizes,
    choices,
    fixed_sizes,
    least,
    other_choices,
    shape_for,
    shapes_of,
)
from gen.packages.package_scan import TENSOR_NAMES, Parameter, takes_tensor

__all__ = [
    "OTHER_SHAPES",
    "SHAPES",
    "constructor_guesses",
    "guesses",
    "guesses_with_defaults",
    "has_meaning",
    "other_arguments",
]

SHAPES = ([4, 3], [2, 3, 4], [3, 3], [4, 4], [5], [2, 3, 3], [2, 4, 4], [2, 3, 8, 8])
"""Shapes that are tried in this order, until a call works."""
OTHER_SHAPES: tuple[list[int], ...] = ([5], [2, 3, 2], [3, 3], [1], [], [0, 3])
"""Shapes that a call is tried with once it works by the first one."""
DOMAINS = ("any", "positive", "unit", "probabilities", "spd", "rotation")
"""Domains of all tensors that are tried in this order."""

_INDEX_NAMES = frozenset(["index", "indices", "idx", "label", "labels", "target", "targets"])
_VECTOR_NAMES = frozenset(["weight", "weights", "bias", "scale", "shift", "gain"])
_DOMAINS_BY_PART = {
    "prob": "probabilities",
    "cov": "spd",
    "spd": "spd",
    "rot": "rotation",
    "quat": "unit_vectors",
    "normal": "unit_vectors",
    "direction": "unit_vectors",
    "sorted": "sorted",
}
"""The domain of a parameter whose name has this part. "any" is tried after it."""
_OF_SQUARE_MATRICES = ("spd", "symmetric", "rotation")
_NUMBERS: dict[str, Any] = {
    "dim": -1,
    "axis": -1,
    "k": 2,
    "n": 2,
    "n_iter": 50,
    "reduction": "mean",
    "eps": 1e-5,
    "epsilon": 1e-5,
    "alpha": 1.5,
    "p": 2,
    "negative_slope": 0.1,
    "training": False,
    "inplace": False,
}
"""Numbers that parameters of these names usually are."""
_BY_ANNOTATION: dict[str, tuple[Any, ...]] = {
    "bool": (True, False),
    "int": (3, 1, 2, -1),
    "float": (0.5, 1.0, 2.0),
    "str": ("mean",),
    "number": (0.5, 2),
}
# what a parameter without any hint may be, a number first
_ANYTHING: tuple[Any, ...] = (0.5, 2, 3, None, True)
_SMALL_WORDS = ("eps", "tol", "jitter")
"""Parts of names of small positive numbers."""
_MOST = 60
"""Combinations that are tried for one shape and domain."""


def guesses(
    parameters: Sequence[Parameter], known: Mapping[str, int] = MappingProxyType({})
) -> Iterator[list[Any]]:
    """Yield lists of arguments for a call, by shape and domain of the tensors.

    ``parameters``: those of the function, in order. Parameters with a default are left out, but
    for tensors where all have one. ``known``: sizes that cannot be chosen, by name. A tensor whose
    documentation tells its shape has no other one.

    The lists are in the order in which a caller tries them. Most of them are no call that the
    function takes.
    """
    return _guesses_of(_of_call(parameters), _values, known)


def guesses_with_defaults(parameters: Sequence[Parameter]) -> Iterator[list[Any]]:
    """Yield lists of arguments for a call that names each default too.

    The backward pass of an old-style Function often counts on all arguments.
    """
    return _guesses_of(parameters, _default_or_values, {})


def has_meaning(parameter: Parameter) -> bool:
    """Return whether something says what a parameter is: a tensor, or which kind of number.

    Nothing does for the ``reg`` of ``forward(ctx, C, reg)``. A guess may work, and mean nothing.
    """
    if parameter.annotation or parameter.has_default or parameter.name.lower() in _NUMBERS:
        return True
    return takes_tensor(parameter) or bool(shapes_of([parameter]))


def _guesses_of(
    parameters: Sequence[Parameter],
    values: Callable[[Parameter, Sequence[int], str], Sequence[Any]],
    known: Mapping[str, int],
) -> Iterator[list[Any]]:
    """Yield the combinations of what `values` returns for each parameter, shape and domain."""
    documented = shapes_of(parameters)
    if documented:
        yield from _documented_guesses(parameters, values, documented, known)
        return
    for domain, shape in _tries():
        yield from _combinations([values(parameter, shape, domain) for parameter in parameters])


def _documented_guesses(
    parameters: Sequence[Parameter],
    values: Callable[[Parameter, Sequence[int], str], Sequence[Any]],
    documented: Mapping[str, Documented],
    known: Mapping[str, int],
) -> Iterator[list[Any]]:
    """Yield the combinations in which tensors have the shapes that documentation tells."""
    first = next(iter(documented.values()))
    for domain, sizes in itertools.product(DOMAINS, choices(documented.values(), known)):
        shape = shape_for(first, sizes)
        values_by_place: list[Sequence[Any]] = []
        for parameter in parameters:
            of_parameter = _documented_values(parameter, documented, sizes, domain)
            values_by_place.append(of_parameter or values(parameter, shape, domain))
        yield from _combinations(values_by_place)


def _documented_values(
    parameter: Parameter, documented: Mapping[str, Documented], sizes: Sizes, domain: str
) -> list[Any]:
    """Return what the documentation tells of a parameter: a tensor, or a size. Empty if neither."""
    if parameter.name not in documented:
        return list(sizes.get(parameter.name, ()))
    shape = shape_for(documented[parameter.name], sizes)
    dtype = dtype_of(parameter.description)
    if dtype == "bool":
        return [{"shape": shape, "dtype": "bool", "domain": "bool"}]
    index = {"shape": shape, "dtype": "int64", "domain": "index", "size": least(sizes)}
    if dtype:
        return [index]
    domains = [*filter(None, (_usual_domain(parameter), domain)), "any"]
    # a dictionary, so that a domain that stands twice is tried once
    fitting: dict[str, None] = {}
    for candidate in domains:
        if candidate == "any" or _has_domain(candidate, shape):
            fitting[candidate] = None
    tensors = [{"shape": shape} | _domain(fitting_domain) for fitting_domain in fitting]
    if parameter.name.lower() in _INDEX_NAMES:
        return [index, *tensors]
    return tensors[:2]


def _domain(domain: str) -> dict[str, str]:
    """Return what a sample says of a domain: nothing of "any", which it has without a word."""
    return {} if domain == "any" else {"domain": domain}


def _without_default(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return the parameters that each call has to give."""
    return [parameter for parameter in parameters if not parameter.has_default]


def _of_call(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return the parameters without a default, or else the first ones that may be tensors.

    So ``forward(x=None, y=None, scale=1.0)`` is called with two tensors.
    """
    return _without_default(parameters) or list(itertools.takewhile(_may_be_tensor, parameters))


def _may_be_tensor(parameter: Parameter) -> bool:
    """Return whether a parameter is None by default and has the name or annotation of a tensor."""
    if parameter.default is not None:
        return False
    return "Tensor" in parameter.annotation or parameter.name.lower() in TENSOR_NAMES


def _tries() -> Iterator[tuple[str, Sequence[int]]]:
    """Yield the domains and shapes of tensors, in the order in which they are tried."""
    for domain, shape in itertools.product(DOMAINS, SHAPES):
        if _has_domain(domain, shape):
            yield domain, shape


def _has_domain(domain: str, shape: Sequence[int]) -> bool:
    """Return whether tensors of this shape can be of the domain."""
    if domain in _OF_SQUARE_MATRICES:
        return len(shape) > 1 and shape[-1] == shape[-2]
    return len(shape) > 0


def constructor_guesses(parameters: Sequence[Parameter]) -> Iterator[list[Any]]:
    """Yield lists of arguments for the constructor of a module: numbers.

    Parameters with a default are left out.
    """
    return _combinations(list(map(_numbers, _without_default(parameters))))


def other_arguments(
    parameters: Sequence[Parameter], arguments: Sequence[Any], known: Mapping[str, int]
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the arguments with tensors of other shapes, and a text of what is odd about these.

    The text is empty for ordinary shapes. ``parameters``: what is known of the first arguments.
    ``known``: sizes that stay as they are, by name. Tensors whose shape follows from nothing stay,
    and so do numbers. `arguments` is left as it is.
    """
    documented = shapes_of(parameters)
    if not documented:
        # The first tensor is the one that a guess has given the shape of its try.
        old = next(argument["shape"] for argument in arguments if isinstance(argument, dict))
        for new in OTHER_SHAPES:
            odd = "" if all(size > 1 for size in new) else f"shape {new}"
            yield odd, _reshape(arguments, old, new)
        return
    for odd, sizes in other_choices(documented.values()):
        chosen = sizes | fixed_sizes(known)
        resized = list(arguments)
        for place, parameter in enumerate(parameters[: len(arguments)]):
            resized[place] = _of_other_sizes(parameter, arguments[place], documented, chosen)
        yield odd, resized


def _of_other_sizes(
    parameter: Parameter, argument: Any, documented: Mapping[str, Documented], sizes: Sizes
) -> Any:
    """Return an argument as it is for other sizes."""
    if parameter.name in documented and isinstance(argument, dict):
        size = {"size": least(sizes)} if "size" in argument else {}
        return argument | {"shape": shape_for(documented[parameter.name], sizes)} | size
    if parameter.name in sizes and isinstance(argument, int):
        return sizes[parameter.name][0]
    return argument


def _reshape(arguments: Sequence[Any], old: Sequence[int], new: Sequence[int]) -> list[Any]:
    """Return the arguments with tensors of the shape `old` as tensors of the shape `new`."""
    reshaped = list(arguments)
    for place, argument in enumerate(arguments):
        if _has_shape(argument, old):
            reshaped[place] = argument | {"shape": list(new)}
    return reshaped


def _has_shape(argument: Any, shape: Sequence[int]) -> bool:
    """Return whether an argument is a tensor of the shape."""
    return isinstance(argument, dict) and argument["shape"] == list(shape)


def _combinations(choices: Sequence[Sequence[Any]]) -> Iterator[list[Any]]:
    """Yield the combinations of choices, those first that take the first choice of most."""
    # The sum of the indices is small where most parameters have their likeliest value.
    # Only some can be sorted: a function of many arguments has millions of combinations.
    places = itertools.product(*map(range, map(len, choices)))
    ordered = sorted(itertools.islice(places, 5_000), key=sum)
    for indices in ordered[:_MOST]:
        yield [values[index] for values, index in zip(choices, indices, strict=True)]


def _default_or_values(parameter: Parameter, shape: Sequence[int], domain: str) -> list[Any]:
    """Return the default of a parameter alone. Without one, what the parameter may be."""
    if parameter.has_default:
        return [parameter.default]
    return _values(parameter, shape, domain)


def _values(parameter: Parameter, shape: Sequence[int], domain: str) -> list[Any]:
    """Return what a parameter of a call may be, the likely values first."""
    name = parameter.name.lower()
    if "Tensor" in parameter.annotation:
        return _tensors(name, _usual_domain(parameter), shape, domain)
    if parameter.annotation:
        return _numbers(parameter)
    return _values_by_name(name, _tensors(name, _usual_domain(parameter), shape, domain))


def _values_by_name(name: str, tensors: Sequence[dict[str, Any]]) -> list[Any]:
    """Return what a parameter without an annotation may be, the likely values first.

    ``tensors``: those that it may be.
    """
    if name in _NUMBERS:
        return [_NUMBERS[name], *tensors]
    if name in TENSOR_NAMES:
        return list(tensors)
    if any(word in name for word in _SMALL_WORDS):  # a large one would change the derivative
        return [1e-6, *tensors]
    if len(name) > 1 and "_" in name:  # such as force_rotation: an option of the call
        return [*_ANYTHING, *tensors]
    return [*tensors, *_ANYTHING]


def _tensors(name: str, usual: str, shape: Sequence[int], domain: str) -> list[dict[str, Any]]:
    """Return the tensors that a parameter of this name may be.

    ``usual``: the domain that its name or its description tells; empty if they tell none.
    """
    tensor: dict[str, Any] = {"shape": list(shape)}
    if domain != "any":
        tensor["domain"] = domain
    vector: dict[str, Any] = {"shape": list(shape[-1:])}
    if domain not in ("any", *_OF_SQUARE_MATRICES):
        vector["domain"] = domain
    if usual and _has_domain(usual, shape):
        return [{"shape": list(shape), "domain": usual}, tensor, vector]
    if name in _INDEX_NAMES:
        index = {"dtype": "int64", "domain": "index", "size": shape[-1]}
        return [{"shape": list(shape[:1])} | index, {"shape": list(shape)} | index, tensor]
    if name == "mask":
        return [{"shape": list(shape), "dtype": "bool", "domain": "bool"}, tensor]
    if name in _VECTOR_NAMES:
        return [vector, tensor]
    return [tensor, vector]


def _usual_domain(parameter: Parameter) -> str:
    """Return the domain that the description of a parameter tells, or else its name.

    It is empty if neither tells one.
    """
    name = parameter.name.lower()
    by_name = (domain for part, domain in _DOMAINS_BY_PART.items() if part in name)
    return domain_of(parameter.description) or next(by_name, "")


def _numbers(parameter: Parameter) -> list[Any]:
    """Return what a parameter that is no tensor may be."""
    name = parameter.name.lower()
    first = [_NUMBERS[name]] if name in _NUMBERS else []
    for kind, values in _BY_ANNOTATION.items():
        if kind in parameter.annotation.lower():
            return [*first, *values]
    return [*first, 3, 0.5, 2, True]
