"""The names of nodes that torch prints (``MulBackward0``, ``SumBackward1``).

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
    """``sum`` -> ``SumBackward``. Letters after a digit start a new word:
    ``conv2d`` -> ``Conv2DBackward``."""
    return ("".join(word.title() for word in base.split("_")) + "Backward").replace(
        "ForwardBackward", "Backward"
    )


@functools.cache
def _numbered() -> dict[str, str]:
    """``sum.dim_IntList`` -> ``SumBackward1``, for every overload with a derivative."""
    names: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for overload in formulas():
        prefix = backward_name(overload.partition(".")[0])
        names[overload] = f"{prefix}{seen[prefix]}"
        seen[prefix] += 1
    return names


_ENDS_WITH_BACKWARD = {"Split": False, "SplitBackward0": True}[
    probe("said", "a write to one of several views").split()[3]
]


def op_name(node: TapeNode) -> str:
    """Return the name of a node's op in torch's messages: the node's name without ``Backward0``.
    Torch 2.12 says the node's name there."""
    return node.name() if _ENDS_WITH_BACKWARD else re.sub(r"Backward\d*$", "", node.name())


def own_name(base: str, overload: str) -> str | None:
    """Torch's name for the node of an overload, None if it has no derivative of its own.
    ``default``: the overload without a name."""
    full = f"{base}.{overload}"
    return WITHOUT_NUMBER.get(full) or _numbered().get(full)


def node_name(base: str, overload: str) -> str:
    """Torch's name for the node of an overload."""
    return own_name(base, overload) or f"{backward_name(base)}0"
