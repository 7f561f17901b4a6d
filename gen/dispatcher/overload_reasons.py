"""Find the family of an overload, and the reason if it needs no cell.

reason_of("aten::cudnn_convolution")    Reason("hardware", "no kernel for the CPU, …")
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gen.torch_private.overloads import (
    functional_form,
    has_kernel,
    is_generated,
    overload_by_name,
)

__all__ = ["Reason", "family_of", "reason_of"]

_TABLE = Path(__file__).with_name("reasons.yaml")
_WITHOUT_KERNEL = "no kernel for the CPU, and none that is composed of others"


@dataclass(frozen=True)
class Reason:
    """Why no cell has to call an overload: a kind, such as private, and a sentence."""

    kind: str
    text: str


def family_of(name: str) -> str:
    """Return the family that an overload is counted in."""
    base, _, overload = name.removeprefix("aten::").partition(".")
    for rule in _rules()["families"]:
        if _fits(rule["names"], base, overload):
            return str(rule["family"])
    schema = overload_by_name(name)._schema
    if any(one.is_out for one in schema.arguments):
        return "out="
    if base.endswith("_") or base.startswith("__i"):
        return "in place"
    tensors = any("Tensor" in str(one.type) for one in schema.arguments)
    return "plain" if tensors else "factories"


def reason_of(name: str) -> Reason | None:
    """Return why an overload needs no cell. None if it needs one."""
    base, _, overload = name.removeprefix("aten::").partition(".")
    for rule in _rules()["reasons"]:
        if _fits(rule["names"], base, overload):
            return Reason(rule["kind"], rule["reason"])
    if not has_kernel(name):
        return Reason("hardware", _WITHOUT_KERNEL)
    form = overload_by_name(name)
    if is_generated(form):
        plain = functional_form(form)
        if plain is not None and not has_kernel(plain):
            return Reason("hardware", f"made from {plain}, which has {_WITHOUT_KERNEL}")
    return None


@cache
def _rules() -> dict[str, Any]:
    rules: dict[str, Any] = yaml.safe_load(_TABLE.read_text())
    return rules


def _fits(globs: list[str], base: str, overload: str) -> bool:
    """Return whether a glob fits: one with a dot the whole name, any other the op's."""
    whole = f"{base}.{overload}" if overload else base
    return any(fnmatchcase(whole if "." in glob else base, glob) for glob in globs)
