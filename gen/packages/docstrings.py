"""Read what a docstring says of each parameter, and which domain and shape that means.

    descriptions("Args:\\n    x: the angle.\\n        It must be positive.", ["x"])
    # {"x": "the angle. It must be positive."}
    domain_of("the angle. It must be positive.")        # positive
    shape_of("Tensor of shape (B, T + 1)")              # ("B", "T + 1")

The styles of Google, NumPy and Sphinx are read, and lists with dashes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

__all__ = ["descriptions", "domain_of", "dtype_of", "shape_of", "tells_estimate"]

_HEAD = re.compile(
    r"^(?P<indent>\s*)(?:[-*+]\s+|:param\s+(?:[\w.]+\s+)?)?"  # a dash, or Sphinx and a type
    r"[`*]*(?P<names>\w+(?:\s*,\s*\w+)*)[`*]*"
    r"\s*(?:\((?P<kind>[^:]*)\))?\s*:(?P<rest>.*)$"
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


_ESTIMATES = re.compile(
    r"straight[- ]through|\bSTE\b|surrogate (gradient|derivative)|"
    r"gradient[- ]reversal|revers\w+ (the |its )?gradients?",
    re.IGNORECASE,
)
"""What a docstring says of a gradient that is not the derivative, on purpose."""


def descriptions(text: str, names: Sequence[str]) -> dict[str, str]:
    """Return what a docstring says of the parameters, as far as it names them."""
    lines = text.splitlines()
    known: dict[str, str] = {}
    for number, line in enumerate(lines):
        head = _HEAD.match(line)
        if head is None:
            continue
        described = list(map(str.strip, head["names"].split(",")))
        rest = [
            head["kind"] or "",
            head["rest"],
            *_deeper(lines[number + 1 :], len(head["indent"])),
        ]
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
    for pattern, domain in _DOMAINS.items():
        if re.search(pattern, description, re.IGNORECASE):
            return domain
    return ""


def tells_estimate(text: str) -> bool:
    """Return whether a docstring says that a gradient is not the derivative."""
    return _ESTIMATES.search(text) is not None


# --- shapes and dtypes ----------------------------------------------------------------------------

_SIZE = r"(?:\.\.\.|…|\*\w*|\d+|[A-Za-z_]\w*(?:\s*[-+*]\s*\d+)?)"
_SHORT = r"(?:\.\.\.|…|\*|\d+|[A-Za-z]\w?(?:\s*[-+*]\s*\d+)?)"
_OPENING, _CLOSING = r"[`$]*[\[(]\s*", r"\s*,?\s*[\])]"
_NOUN = r"\b(?:tensors?|array|matrix|matrices|vectors?|points?|inputs?|batch)\b"
_SHAPES = {
    # shape (batch_size, n), of size [n], shape: ``(N, C)``, shape :math:`(N, *)`
    rf"\b(?:shapes?|sizes?|dimensions?)\b(?:[\s:=`]|of|is|math|torch\.Size)*{_OPENING}"
    rf"(?P<sizes>(?:{_SIZE}(?:\s*,\s*{_SIZE})*)?){_CLOSING}": ",",
    # Tensor [n, n], the input tensor (..., K)
    rf"{_NOUN}[\s:]*{_OPENING}(?P<sizes>{_SHORT}(?:\s*,\s*{_SHORT})*){_CLOSING}": ",",
    # (B, N, D), and nothing before it
    rf"^{_OPENING}(?P<sizes>{_SHORT}(?:\s*,\s*{_SHORT})+){_CLOSING}": ",",
    # Float[Tensor, "B N D"], an annotation
    rf"Tensor, ['\"](?P<sizes>{_SIZE}(?:\s+{_SIZE})*)['\"]\]": r"\s",
    # B x N x 3, NxN
    r"(?<![\w.])(?P<sizes>[A-Za-z](?: ?[x×] ?(?:[A-Za-z]|\d+))+)(?![\w.])": "[x×]",
}
"""Patterns of what tells a shape, and what stands between its sizes. The first that fits counts."""
_DTYPES = {
    r"\b(long|int(32|64)?|integers?|(Long|Int)Tensor)\b": "int64",
    r"\b(bool(ean)?|BoolTensor)\b": "bool",
}
"""Patterns of what tells a dtype that is not floating."""


def shape_of(text: str) -> tuple[str, ...] | None:
    """Return the sizes of the shape that a description or an annotation tells. None without one.

    ``...`` stands for any number of sizes, and so does ``*``.
    """
    for pattern, between in _SHAPES.items():
        if (found := re.search(pattern, text, re.IGNORECASE)) is not None:
            sizes = filter(None, map(str.strip, re.split(between, found["sizes"])))
            return tuple("..." if size.startswith(("…", "*")) else size for size in sizes)
    return None


def dtype_of(description: str) -> str:
    """Return the dtype that a description tells. Empty if it is floating, or nothing tells it."""
    fitting = (dtype for pattern, dtype in _DTYPES.items() if re.search(pattern, description))
    return next(fitting, "")
