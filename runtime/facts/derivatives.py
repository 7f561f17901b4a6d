"""torch's own list of derivatives: which ops have a formula, and for which arguments.

    formulas()["mul.Tensor"]            # ("self", "other")
    has_formula("argmax.default")       # False

The list is a file that torch ships, so this is true of the installed version."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib.resources import files

_ENTRY = re.compile(r"- name: (?P<name>\w+)(?:\.(?P<overload>\w+))?\((?P<arguments>.*)\) -> ")
_FORMULA = re.compile(r"(?P<indent> +)(?P<targets>\w+(?:, *\w+)*): *(?P<formula>.*)")


@functools.cache
def formulas() -> Mapping[str, tuple[str, ...]]:
    """``sum.dim_IntList`` -> the arguments with a formula, for each overload of the list that has
    one, in torch's order. Empty if the installed torch does not ship its list."""
    try:
        text = (files("torchgen") / "packaged/autograd/derivatives.yaml").read_text()
    except (ModuleNotFoundError, FileNotFoundError):
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for block in re.split(r"\n(?=- name: )", text):
        entry = _ENTRY.match(block)
        if entry is None:
            continue
        arguments = _differentiable(block, entry["arguments"])
        if arguments:
            found[f"{entry['name']}.{entry['overload'] or 'default'}"] = arguments
    return found


def _differentiable(block: str, arguments: str) -> tuple[str, ...]:
    """Return the arguments that have a formula under the default dispatch key."""
    declared = set(re.findall(r"(\w+)(?:=[^,]*)?(?:,|$)", arguments))
    found: list[str] = []
    here = True  # not inside the formulas of another dispatch key
    for line in block.splitlines()[1:]:
        match = _FORMULA.match(line)
        if match is None:
            continue
        if len(match["indent"]) == 4:
            here = match["targets"] == "Default"
        elif here and match["formula"].strip() != "non_differentiable":
            found += [name for name in re.split(r", *", match["targets"]) if name in declared]
    return tuple(dict.fromkeys(found))


def has_formula(overload: str) -> bool:
    """Return whether the installed torch has a formula for some argument of ``sin.default`` or
    ``sum.dim_IntList``. False as well if it does not ship its list."""
    return overload in formulas()
