"""The names of nodes that torch prints (``MulBackward0``, ``SumBackward1``).

torch numbers the differentiable overloads of one base name in the order of its file
``derivatives.yaml``. The numbers are read from there, so they fit the installed version. An op that
is not in the file has the number 0.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from importlib.resources import files

from .node_protocol import TapeNode

_ENTRY = re.compile(r"- name: (?P<name>\w+)(?:\.(?P<overload>\w+))?\((?P<arguments>.*)\) -> ")
_FORMULA = re.compile(r"(?P<indent> +)(?P<targets>\w+(?:, *\w+)*): *(?P<formula>.*)")
WITHOUT_NUMBER = {"copy.default": "CopyBackwards"}  # names of handwritten nodes of torch


def backward_name(base: str) -> str:
    """``sum`` -> ``SumBackward``. Letters after a digit start a new word:
    ``conv2d`` -> ``Conv2DBackward``."""
    return ("".join(word.title() for word in base.split("_")) + "Backward").replace(
        "ForwardBackward", "Backward"
    )


@functools.cache
def _numbered() -> dict[str, str]:
    """``sum.dim_IntList`` -> ``SumBackward1``, for every overload with a derivative
    in ``derivatives.yaml``."""
    try:
        text = (files("torchgen") / "packaged/autograd/derivatives.yaml").read_text()
    except (ModuleNotFoundError, FileNotFoundError):
        return {}
    names: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for block in re.split(r"\n(?=- name: )", text):
        entry = _ENTRY.match(block)
        if entry is None or not _differentiable(block, entry["arguments"]):
            continue
        prefix = backward_name(entry["name"])
        names[f"{entry['name']}.{entry['overload'] or 'default'}"] = f"{prefix}{seen[prefix]}"
        seen[prefix] += 1
    return names


def _differentiable(block: str, arguments: str) -> bool:
    """Whether some argument has a formula under the default dispatch key."""
    declared = set(re.findall(r"(\w+)(?:=[^,]*)?(?:,|$)", arguments))
    here = True  # not inside the formulas of another dispatch key
    for line in block.splitlines()[1:]:
        found = _FORMULA.match(line)
        if found is None:
            continue
        if len(found["indent"]) == 4:
            here = found["targets"] == "Default"
        elif (
            here
            and found["formula"].strip() != "non_differentiable"
            and declared & set(re.split(r", *", found["targets"]))
        ):
            return True
    return False


def has_formula(overload: str) -> bool:
    """Whether the installed torch has a formula for some argument of ``sin.default`` or
    ``sum.dim_IntList``. False as well if it does not ship its list."""
    return overload in _numbered()


def op_name(node: TapeNode) -> str:
    """The name of a node's op in torch's messages: the node's name without ``Backward0``."""
    return re.sub(r"Backward\d*$", "", node.name())


def own_name(base: str, overload: str) -> str | None:
    """Torch's name for the node of an overload, None if it has no derivative of its own.
    ``default``: the overload without a name."""
    full = f"{base}.{overload}"
    return WITHOUT_NUMBER.get(full) or _numbered().get(full)


def node_name(base: str, overload: str) -> str:
    """Torch's name for the node of an overload."""
    return own_name(base, overload) or f"{backward_name(base)}0"
