"""Guess right calls of overloads that no row reaches.

    mkldnn_max_pool2d_backward    gets the arguments of max_pool2d_backward, by their names
    _weight_norm                  gets tensors of some shapes, until it takes them

An argument is that of the same name and kind in a call of another overload, of which the name is
most alike. What is missing is drawn by its kind. Each try is made in a process that may die. A
guess is right if the overload takes it and does nothing that no call may do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from gen.checks.kernels.call_descriptions import Arguments, Described
from gen.checks.kernels.kernel_calls import Kernel, Parameter
from gen.torch_private.aten_overloads import overload_by_name

__all__ = ["guesses"]

_RELATIVES = 12  # overloads of which an overload gets arguments
_DRAWS = 150  # calls that are drawn by the kinds of arguments
_SHAPES: tuple[list[int], ...] = (
    [4],
    [3, 4],
    [2, 3, 4],
    [2, 3, 4, 4],
    [1, 2, 3, 4, 4],
    [3, 3],
    [2, 4],
    [4, 2],
    [],
)
_BY_KIND: Mapping[str, Sequence[Described]] = {
    "int": (0, 1, 2),
    "float": (0.5, 1.0, 0.0),
    "number": (1, 0.5),
    "bool": (False, True),
    "str": ("mean", "none"),
    "ScalarType": ({"dtype": "float32"},),
    "Layout": ({"layout": "strided"},),
    "Device": ({"device": "cpu"},),
    "MemoryFormat": ({"memory_format": "contiguous_format"},),
}
"""What an argument is drawn from that is no tensor."""


def guesses(name: str, right: Mapping[str, list[Arguments]]) -> Iterator[Arguments]:
    """Yield arguments that an overload may take, the likeliest first.

    ``right``: the right calls of others, by their names.
    """
    kernel = Kernel.of_overload(overload_by_name(name))
    for relative in _relatives(name, right):
        for arguments in right[relative]:
            found = _borrowed(kernel, relative, arguments)
            if found is not None:
                yield found
    yield from _drawn(kernel, [calls[0] for calls in right.values()])


def _relatives(name: str, right: Mapping[str, object]) -> list[str]:
    """Return the overloads whose names are most alike."""

    def likeness(other: str) -> float:
        """Return how alike two names are, from 0 to 1."""
        return SequenceMatcher(None, name, other).ratio()

    return sorted(right, key=likeness, reverse=True)[:_RELATIVES]


def _borrowed(kernel: Kernel, relative: str, arguments: Arguments) -> Arguments | None:
    """Return the arguments of a relative by their names, or by their places if kinds are the same.

    None if one is missing that has no default.
    """
    others = Kernel.of_overload(overload_by_name(relative)).parameters
    if [one.kind for one in others] == [one.kind for one in kernel.parameters]:
        pairs = zip(others, kernel.parameters, strict=True)
        return {mine.name: arguments[his.name] for his, mine in pairs if his.name in arguments}
    kinds = {one.name: _plain(one.kind) for one in others}
    found: Arguments = {}
    for one in kernel.parameters:
        if one.name in arguments and kinds[one.name] == _plain(one.kind):
            found[one.name] = arguments[one.name]
        elif not one.has_default:
            return None
    return found


def _plain(kind: str) -> str:
    """Return a kind that is not optional: `int` of `Optional[int]`."""
    return kind[len("Optional[") : -1] if kind.startswith("Optional[") else kind


def _drawn(kernel: Kernel, known: Sequence[Arguments]) -> Iterator[Arguments]:
    """Yield calls with arguments that are drawn by their kinds."""
    draw = random.Random(kernel.name)
    needed = [one for one in kernel.parameters if not one.has_default]
    for turn in range(_DRAWS):
        shape = draw.choice(_SHAPES)
        yield {one.name: _value(one, shape, turn, draw) for one in needed}


def _value(one: Parameter, shape: Sequence[int], turn: int, draw: random.Random) -> Described:
    """Return a value for an argument. All tensors of a call have one shape in every second turn."""
    kind = _plain(one.kind)
    if kind != one.kind and turn % 3:
        return None
    if kind == "Tensor":
        return _tensor(one, shape if turn % 2 else draw.choice(_SHAPES), draw)
    if kind.startswith("List["):
        inner = Parameter(one.name, kind[len("List[") : -1])
        count = draw.choice((1, 2, 3)) if one.length is None else one.length
        return [_value(inner, shape, turn, draw) for _ in range(count)]
    return draw.choice(list(_BY_KIND.get(kind, (None,))))


def _tensor(one: Parameter, shape: Sequence[int], draw: random.Random) -> Described:
    """Return a tensor of a dtype that its name says."""
    whole = any(word in one.name for word in ("ind", "index", "offset", "length", "target"))
    dtype: Any = "int64" if whole else draw.choice(("float32", "float32", "float32", "int64"))
    if "mask" in one.name:
        dtype = "bool"
    described = {"shape": list(shape), "dtype": dtype}
    if whole:
        described["numbers"] = draw.choice((0, 1))
    return described
