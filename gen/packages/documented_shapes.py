"""Give tensors the shapes that docstrings and annotations tell.

    documented = shapes_of(parameters)           # {"K": ("n", "n"), "z0": ("n",)}
    for sizes in choices(documented.values(), {}):
        shape_for(documented["K"], sizes)            # [4, 4]

A shape is a tuple of sizes as they are written: a number, a name, ``T + 1``, or ``...``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gen.packages.docstrings import shape_of
from gen.packages.package_scan import Parameter

__all__ = [
    "Documented",
    "Sizes",
    "choices",
    "fixed_sizes",
    "least",
    "other_choices",
    "shape_for",
    "shapes_of",
]

Documented = tuple[str, ...]
"""The sizes of one shape, as they are written."""
Sizes = dict[str, tuple[int, ...]]
"""The sizes that a name stands for. ``...`` stands for several or none, others for one."""

BATCH = "..."
_NAMED = (4, 3, 2, 5, 6, 7)
"""What the names of sizes stand for, in the order in which they are written."""
_OTHERS = (2, 5, 3)
_ALIKE = (3,)
"""For documentation that has two names for what must be equal."""
_TERM = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*(?:(?P<sign>[-+*])\s*(?P<number>\d+))?")


def shapes_of(parameters: Iterable[Parameter]) -> dict[str, Documented]:
    """Return the shapes of the parameters that are tensors, as far as something tells them."""
    shapes = {}
    for each in parameters:
        told = shape_of(each.annotation) or shape_of(each.description)
        if told is not None and (not each.annotation or "Tensor" in each.annotation):
            shapes[each.name] = told
    return shapes


def choices(shapes: Iterable[Documented], known: Mapping[str, int]) -> Iterator[Sizes]:
    """Yield sizes of all names, the likely ones first. ``known``: those that cannot be chosen."""
    names = _names(shapes)
    fixed = fixed_sizes(known)
    batches: tuple[tuple[int, ...], ...] = ((2,), ())
    for batch in batches:
        yield _numbered(names, _NAMED, batch) | fixed
    yield _numbered(names, _ALIKE, ()) | fixed


def fixed_sizes(known: Mapping[str, int]) -> Sizes:
    """Return sizes that cannot be chosen."""
    return {name: (size,) for name, size in known.items()}


def least(sizes: Sizes) -> int:
    """Return the smallest size, which indices are less than."""
    return min(itertools.chain.from_iterable(sizes.values()), default=1)


def other_choices(shapes: Iterable[Documented]) -> Iterator[tuple[str, Sizes]]:
    """Yield further sizes, those of empty tensors and of one element among them, and their text."""
    names = _names(shapes)
    yield "", _numbered(names, _OTHERS, ())
    yield "each size 1", _numbered(names, (1,), ())
    for name in names[:1]:
        yield f"{name} = 0", _numbered(names, _NAMED, ()) | {name: (0,)}


def _numbered(names: Iterable[str], numbers: Iterable[int], batch: tuple[int, ...]) -> Sizes:
    """Return the names with sizes, one after the other. ``batch``: what ``...`` stands for."""
    sizes: Sizes = {BATCH: batch}
    for name, number in zip(names, itertools.cycle(numbers), strict=False):
        sizes[name] = (number,)
    return sizes


def _names(shapes: Iterable[Documented]) -> list[str]:
    """Return the names of sizes, each once, in order."""
    terms = filter(None, map(_TERM.fullmatch, itertools.chain.from_iterable(shapes)))
    return list(dict.fromkeys(term["name"] for term in terms))


def shape_for(documented: Documented, sizes: Sizes) -> list[int]:
    """Return the shape that is meant, once its names have sizes."""
    return list(itertools.chain.from_iterable(_sizes(each, sizes) for each in documented))


def _sizes(written: str, sizes: Sizes) -> Sequence[int]:
    """Return the sizes of one entry of a shape: one, but for ``...``."""
    if written in sizes or written == BATCH:
        return sizes.get(written, ())
    term = _TERM.fullmatch(written)
    if term is None:
        return (int(written),)
    # a name alone is a key of `sizes`, so this one has a sign and a number
    (size,) = sizes[term["name"]]
    number = int(term["number"])
    return ({"+": size + number, "-": max(size - number, 0), "*": size * number}[term["sign"]],)
