"""Data -> Python source. Every string of matrix.yaml that reaches a generated module passes through
here, and so through `repr`."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping

WIDTH = 140  # columns of a generated module


def quoted(text: str) -> str:
    """Return a literal for `text` in double quotes, escaped as `repr` escapes."""
    plain = repr(text)
    if plain[0] == '"':
        return plain
    return '"' + plain[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'


def docstring(text: str, indent: str = "") -> str:
    """Return the source of a docstring with the text `text`, on as many lines as it needs."""
    if text.isprintable():
        escaped = text.replace("\\", "\\\\")
    else:
        escaped = text.encode("unicode_escape").decode("ascii")
    lines = textwrap.wrap(
        escaped.replace('"""', r"\"\"\""),
        WIDTH - len(indent) - 6,
        break_long_words=False,
        break_on_hyphens=False,
    )
    body = f"\n{indent}".join(lines)
    # a quote at the end would close the docstring, unless a backslash escapes it
    backslashes_and_quote = len(body) - len(body[:-1].rstrip("\\"))
    if body.endswith('"') and backslashes_and_quote % 2:
        body = body[:-1] + r"\""
    end = f"\n{indent}" if len(lines) > 1 else ""
    return f'{indent}"""{body}{end}"""'


def literal(value: object, indent: str = "", before: int = 0) -> str:
    """Return a literal for plain data. It is on one line if that fits after `before` columns, and
    has one item per line if not."""
    short = _short(value)
    if len(indent) + before + len(short) <= WIDTH:
        return short
    inner = indent + "    "
    if isinstance(value, str):
        return _wrapped(value, indent)
    if isinstance(value, Mapping):
        lines = []
        for key, item in value.items():
            shown = _short(key)
            lines.append(f"{inner}{shown}: {literal(item, inner, len(shown) + 3)},\n")
        return "{\n" + "".join(lines) + indent + "}"
    if isinstance(value, list | tuple):
        opening, closing = "[]" if isinstance(value, list) else "()"
        lines = [f"{inner}{literal(item, inner, 1)},\n" for item in value]
        return f"{opening}\n" + "".join(lines) + indent + closing
    return short


def call(name: str, arguments: list[tuple[str, object]], indent: str = "", before: int = 0) -> str:
    """Return the source `name(value, key=value, …)`. An argument without a key is positional."""
    pairs = [(key and f"{key}=", value) for key, value in arguments]
    given = ", ".join(key + _short(value) for key, value in pairs)
    short = f"{name}({given})"
    if len(indent) + before + len(short) <= WIDTH:
        return short
    inner = indent + "    "
    lines = [f"{inner}{key}{literal(value, inner, len(key) + 1)},\n" for key, value in pairs]
    return f"{name}(\n" + "".join(lines) + indent + ")"


def _short(value: object) -> str:
    """Return the source of plain data on one line. Raises TypeError for anything else."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Mapping):
        items = (f"{_short(key)}: {_short(item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_short, value)) + "]"
    if isinstance(value, tuple):
        if len(value) == 1:
            return f"({_short(value[0])},)"
        return "(" + ", ".join(map(_short, value)) + ")"
    # `repr` writes names that Python does not have
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if value is None or isinstance(value, bool | int | float):
        return repr(value).replace("e+", "e")  # as formatters write exponents
    raise TypeError(f"{value!r} is not plain data")


def _wrapped(text: str, indent: str) -> str:
    """Return adjacent literals in parentheses, broken between words."""
    inner = indent + "    "
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        longer = word
        if line or lines:
            longer = f"{line} {word}"
        if line and len(inner) + len(quoted(longer)) > WIDTH:
            lines.append(line)
            longer = f" {word}"
        line = longer
    lines.append(line)
    if len(lines) == 1:
        return quoted(text)
    return "(\n" + "".join(f"{inner}{quoted(line)}\n" for line in lines) + indent + ")"
