"""Parse YAML by the core schema of YAML 1.2: `1e-12` is a number, `on` and `no` are strings.

PyYAML's parser in C makes the nodes, with the types of this module. `construct` turns nodes into
plain data. `syntax_problem` says what keeps a text from being YAML.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml

from gen.errors import Mark, Problem
from gen.language.values import TAGS

# PyYAML builds nodes by recursion, and no matrix nests so deep.
MAX_DEPTH = 60
CORE = "tag:yaml.org,2002:"
# the tags that PyYAML gives to each kind of node by itself
KINDS = {
    yaml.ScalarNode: {CORE + kind for kind in ("null", "bool", "int", "float", "str")},
    yaml.SequenceNode: {CORE + "seq"},
    yaml.MappingNode: {CORE + "map"},
}


class _Text(io.StringIO):
    """A stream with a name, which the parser writes into every mark."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name


# PyYAML may be installed without its parser in C. Neither base loader has types of its own.
class Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """Parse in C, with the implicit types of YAML 1.2's core schema instead of those of YAML
    1.1.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}


# The first pattern that fits decides: `1` fits those of int and of float, and is an int. PyYAML
# tries a pattern only on a text that begins with one of the characters beside it.
for _kind, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN",
        list("-+.0123456789"),
    ),
):
    Loader.add_implicit_resolver(CORE + _kind, re.compile(rf"(?:{_pattern})\Z"), _first)


def loader_of(text: str, name: str) -> Any:
    """Return a parser of a text, whose marks have `name`. The caller disposes of it."""
    return Loader(_Text(text, name))


def construct(root: yaml.Node, problems: list[Problem], folder: Path) -> Any:
    """Return the plain data of a node.

    A value that is none of its type is None, and is noted in `problems`. `folder` is that of the
    matrix, below which its files are.
    """

    def tagged(node: yaml.Node) -> dict[str, Any]:
        """Return what stands behind a tag, as a mapping of the tag: `{"!tuple": [2, 3]}`."""
        known = TAGS[node.tag]
        content: Any = node.value
        content = list(map(build, content)) if known.takes_list else known.read(content)
        if not known.holds(content, folder):
            what = f"{content!r:.60} is no value of {node.tag}"
            problems.append(Problem(mark_of(node), "", what, known.expected))
        return {node.tag: content}

    def build(node: yaml.Node) -> Any:
        """Return the data of a node. None, with a problem noted, for a scalar of another type."""
        if node.tag in TAGS:
            return tagged(node)
        if isinstance(node, yaml.MappingNode):
            return {key.value: build(value) for key, value in node.value}
        if isinstance(node, yaml.SequenceNode):
            return list(map(build, node.value))
        try:
            # A type may be written out, and then no pattern has looked at the text: `!!int x`.
            return _SCALARS[node.tag](node.value)
        except (ValueError, KeyError):
            kind = node.tag.removeprefix(CORE)
            problems.append(
                Problem(mark_of(node), "", f'"{node.value[:40]}" is not a value of type {kind}')
            )
            return None

    return build(root)


def _integer(text: str) -> int:
    if len(text) > 40:
        raise ValueError(text)
    # In YAML 1.2 a zero in front alone means nothing: 010 is ten.
    bare = text.lstrip("+-")
    base = {"0o": 8, "0x": 16}.get(bare[:2], 10)
    return int(text, base)


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _float(text: str) -> float:
    if "n" not in text.lower():
        return float(text)
    # Infinity and NaN, which Python writes without the dot. No other number has an n.
    return float(text.replace(".inf", "inf").replace(".nan", "nan").lower())


_SCALARS: dict[str, Callable[[str], Any]] = {
    CORE + "null": lambda text: None,
    CORE + "bool": _boolean,
    CORE + "int": _integer,
    CORE + "float": _float,
    CORE + "str": str,
}


def mark_of(node: yaml.Node) -> Mark:
    """Return where a node begins. PyYAML counts lines and columns from 0, a mark from 1."""
    start = node.start_mark
    return Mark(str(start.name), start.line + 1, start.column + 1)


def scalar_text(node: yaml.Node) -> str | None:
    """Return the text of a key. None if the key is a list or a mapping."""
    return node.value if isinstance(node, yaml.ScalarNode) else None


def syntax_problem(error: yaml.MarkedYAMLError, text: str, name: str) -> Problem:
    """Say what keeps a text from being YAML, in the terms of its writer where the parser has
    others.
    """
    mark = error.problem_mark or error.context_mark
    line, column = 0, 0
    if mark is not None:
        line, column = mark.line, mark.column
    # The parser may report a tab only on the next line.
    tab = _tab_in_indentation(text, (line, line - 1))
    if tab is not None:
        row, place = tab
        return Problem(
            Mark(name, row + 1, place + 1),
            "",
            "a tab in the indentation",
            "spaces: YAML does not allow tabs there",
        )
    here = Mark(name, line + 1, column + 1)
    if "but found another document" in (error.problem or ""):
        expected = "one document: join the two, or `include:` the second as a file"
        return Problem(here, "", "a second document begins", expected)
    what = error.problem or str(error)
    if error.context:
        what = f"{what} {error.context}"
        start = error.context_mark
        if start and start.line != line:
            what += f" (begun in line {start.line + 1})"
    return Problem(here, "", what)


def _tab_in_indentation(text: str, rows: Sequence[int]) -> tuple[int, int] | None:
    """Return the row and column of the first tab in the indentation of some rows."""
    lines = text.splitlines()
    for row in rows:
        if not 0 <= row < len(lines):
            continue
        blanks = re.match(r"[ \t]*", lines[row])
        if blanks and "\t" in blanks[0]:
            return row, blanks[0].index("\t")
    return None


def too_deep(text: str) -> Any:
    """Return the place where collections nest too deep.

    It uses the parser's events, since its node builder recurses and would crash.
    """
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                return event.start_mark
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return None
