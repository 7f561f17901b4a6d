"""Find the family of an overload, and the reason if it needs no cell.

    reason_of("aten::cudnn_convolution")    # Reason("hardware", "no kernel for the CPU, …")

`reasons.yaml` has globs of names. What it does not say, an overload's schema and kernels do.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gen.torch_private.aten_overloads import (
    functional_form,
    has_kernel,
    is_generated,
    kinds_of,
    outputs_of,
    overload_by_name,
)

__all__ = ["Reason", "family_of", "reason_of", "uncalled_reason_of"]

_TABLE = Path(__file__).with_name("reasons.yaml")
_WITHOUT_KERNEL = "no kernel for the CPU, and none that is composed of others"


@dataclass(frozen=True)
class Reason:
    """Why no cell has to call an overload: a kind, such as private, and a sentence."""

    kind: str
    text: str


def family_of(name: str) -> str:
    """Return the family that an overload is counted in.

    A glob of the table says it, such as `sparse`. Otherwise the schema does: `aten::sin` is plain,
    `aten::sin.out` of the family `out=`, `aten::sin_` in place, and `aten::ones` of the factories.
    """
    rule = _rule_of(name, "families")
    if rule is not None:
        return str(rule["family"])
    overload = overload_by_name(name)
    if outputs_of(overload):
        return "out="
    base = name.removeprefix("aten::").partition(".")[0]
    if base.endswith("_") or base.startswith("__i"):  # as `add_` and `__iand__`
        return "in place"
    if any("Tensor" in kind for kind in kinds_of(overload)):
        return "plain"
    return "factories"


def reason_of(name: str) -> Reason | None:
    """Return why an overload needs no cell. None if it needs one.

    A glob of the table says it. Otherwise the overload has no kernel, or torch has generated it
    from one that has none, as `aten::conv_depthwise3d.out`.
    """
    rule = _rule_of(name, "reasons")
    if rule is not None:
        return Reason(rule["kind"], rule["reason"])
    if not has_kernel(name):
        return Reason("hardware", _WITHOUT_KERNEL)
    overload = overload_by_name(name)
    if not is_generated(overload):
        return None
    plain = functional_form(overload)
    if plain is None or has_kernel(plain):
        return None
    return Reason("hardware", f"made from {plain}, which has {_WITHOUT_KERNEL}")


def uncalled_reason_of(name: str) -> Reason | None:
    """Return why no right call of an overload with a kernel is known. None if one should be."""
    rule = _rule_of(name, "uncalled")
    if rule is None:
        return None
    return Reason(rule["kind"], rule["reason"])


Rule = dict[str, Any]  # as in the file: texts, and a list of globs


def _rule_of(name: str, part: str) -> Rule | None:
    """Return the first rule in a part of the table that has a glob for an overload."""
    base, _, overload = name.removeprefix("aten::").partition(".")
    for rule in _rules()[part]:
        if _fits(rule["names"], base, overload):
            return rule
    return None


@cache
def _rules() -> dict[str, list[Rule]]:
    """Return the parts of the table: `families`, `reasons` and `uncalled`."""
    rules: dict[str, list[Rule]] = yaml.safe_load(_TABLE.read_text())
    return rules


def _fits(globs: list[str], base: str, overload: str) -> bool:
    """Return whether a glob fits: one with a dot the whole name, any other the op's."""
    whole = f"{base}.{overload}" if overload else base
    return any(fnmatchcase(whole if "." in glob else base, glob) for glob in globs)
