"""Names nodes as torch prints them: ``MulBackward0``, ``SumBackward1``.

torch numbers the differentiable overloads of one base name in the order of its list of derivatives.
The numbers are read from there, so they fit the installed version. An op that is not in the list
has the number 0.
"""

from __future__ import annotations

import functools
import re
from collections import Counter

from ..facts.derivatives import formulas
from ..facts.lock import probe
from .node_protocol import TapeNode

WITHOUT_NUMBER = {"copy.default": "CopyBackwards"}  # names of handwritten nodes of torch


def backward_name(base: str) -> str:
    """Return the name without a number: ``sum`` -> ``SumBackward``. Letters after a digit start a
    new word: ``conv2d`` -> ``Conv2DBackward``."""
    return ("".join(word.title() for word in base.split("_")) + "Backward").replace(
        "ForwardBackward", "Backward"
    )


@functools.cache
def _names_by_overload() -> dict[str, str]:
    """Return the name for every overload with a derivative: ``sum.dim_IntList`` ->
    ``SumBackward1``."""
    names: dict[str, str] = {}
    numbers: Counter[str] = Counter()
    for overload in formulas():
        prefix = backward_name(overload.partition(".")[0])
        names[overload] = f"{prefix}{numbers[prefix]}"
        numbers[prefix] += 1
    return names


# a probe of the installed torch, since its versions differ in what they print
_ENDS_WITH_BACKWARD = {"Split": False, "SplitBackward0": True}[
    probe("said", "a write to one of several views").split()[3]
]


def op_name(node: TapeNode) -> str:
    """Return the name of a node's op in torch's messages: the node's name without ``Backward0``.
    Torch 2.12 says the node's name there."""
    if _ENDS_WITH_BACKWARD:
        return node.name()
    return re.sub(r"Backward\d*$", "", node.name())


def own_name(base: str, overload: str) -> str | None:
    """Return torch's name for the node of an overload, None if it has no derivative of its own.
    ``overload``: ``"default"`` for the one without a name."""
    full = f"{base}.{overload}"
    return WITHOUT_NUMBER.get(full) or _names_by_overload().get(full)


def node_name(base: str, overload: str) -> str:
    """Return torch's name for the node of an overload, with the number 0 if it has none of its
    own."""
    return own_name(base, overload) or f"{backward_name(base)}0"
