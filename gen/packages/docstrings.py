"""Read what a docstring says of each parameter, and which domain that means.

    descriptions("Args:\\n    x: the angle.\\n        It must be positive.", ["x"])
    # {"x": "the angle. It must be positive."}
    domain_of("the angle. It must be positive.")        # positive

The styles of Google, NumPy and Sphinx are read, and lists with dashes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

__all__ = ["descriptions", "domain_of"]

_HEAD = re.compile(
    r"^(?P<indent>\s*)(?:[-*+]\s+|:param\s+(?:[\w.]+\s+)?)?"  # a dash, or Sphinx and a type
    r"[`*]*(?P<names>\w+(?:\s*,\s*\w+)*)[`*]*"
    r"\s*(?:\([^:]*\))?\s*:(?P<rest>.*)$"
)
"""A line that begins the description of some parameters."""
_DOMAINS = {
    r"positive[- ](semi[- ]?)?definite|\bS?PS?D\b|covariance matri": "spd",
    r"rotation matri": "rotation",
    r"unit[- ](norm|length|vector|quaternion)|normali[sz]ed (vector|quaternion)": "unit_vectors",
    r"probability (distribution|vector)|probabilities": "probabilities",
    r"\bsorted\b|\bascending\b|\bincreasing\b": "sorted",
    r"[\[(]\s*0(\.0?)?\s*,\s*1(\.0?)?\s*[\])]|between (0 and 1|zero and one)|probability": "unit",
    r"non-?\s?negative|\bpositive\b|(>|≥|>=)\s*0\b|greater than (0|zero)": "positive",
    r"non-?\s?zero": "nonzero",
    r"\bsymmetric\b": "symmetric",
}
"""Patterns of what a description says of values, and the domains. The first that fits counts."""
_DENIED = re.compile(r"\b(not|need not be|un|or negative|either)\b", re.IGNORECASE)
"""Words of a description that says what values need not be."""


def descriptions(text: str, names: Sequence[str]) -> dict[str, str]:
    """Return what a docstring says of the parameters, as far as it names them."""
    lines = text.splitlines()
    known: dict[str, str] = {}
    for number, line in enumerate(lines):
        head = _HEAD.match(line)
        if head is None:
            continue
        described = list(map(str.strip, head["names"].split(",")))
        rest = [head["rest"], *_deeper(lines[number + 1 :], len(head["indent"]))]
        for name in described:
            if name in names:
                known.setdefault(name, " ".join(" ".join(rest).split()))
    return known


def _deeper(lines: Sequence[str], indent: int) -> Iterator[str]:
    """Yield the first lines that are indented further."""
    for line in lines:
        if not line.strip() or len(line) - len(line.lstrip()) <= indent:
            return
        yield line


def domain_of(description: str) -> str:
    """Return the domain of values that a description means; empty if it means none."""
    if _DENIED.search(description):
        return ""
    fitting = (
        domain
        for pattern, domain in _DOMAINS.items()
        if re.search(pattern, description, re.IGNORECASE)
    )
    return next(fitting, "")
