"""Read YAML text into data in which every node has its file, line and column.

PyYAML's C parser reads the text. This module adds rules that make a file safe and unambiguous:

- Scalars follow the YAML 1.2 core schema: `1e-12` is a number, `on` and `no` are strings.
- Duplicate keys are mistakes, and so are tags but those of :mod:`gen.language.values`, and aliases
  that would expand to too much data.
- `include:` merges further files section by section.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from gen.errors import Mark, MatrixError, Problem
from gen.language.values import TAGS

# A file of some lines can stand for a billion nodes, by anchors of anchors. These limits are far
# above those of any matrix.
MAX_BYTES = 4 * 1024 * 1024
MAX_NODES = 400_000
MAX_DEPTH = 60

_CORE = "tag:yaml.org,2002:"
_KINDS = {
    yaml.ScalarNode: {_CORE + kind for kind in ("null", "bool", "int", "float", "str")},
    yaml.SequenceNode: {_CORE + "seq"},
    yaml.MappingNode: {_CORE + "map"},
}


class _Text(io.StringIO):
    """A stream with a name, which the parser writes into every mark."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name


# PyYAML may be installed without its parser in C. Neither base loader has types of its own.
class _Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """Parse in C, with the implicit types of YAML 1.2's core schema instead of those of YAML
    1.1.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}


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
    _Loader.add_implicit_resolver(_CORE + _kind, re.compile(rf"(?:{_pattern})\Z"), _first)


@dataclass
class Source:
    """A matrix file with its includes: plain `data`, and the node tree with the place of each
    value.

    `where(path)` walks the tree only when a message needs a place, so a correct file costs nothing
    extra.
    """

    name: str
    data: dict[str, Any]
    files: tuple[str, ...]
    _root: yaml.MappingNode

    def node(self, path: Sequence[str | int]) -> yaml.Node:
        """Return the node at `path`, or the deepest existing node on the way to it."""
        return self._walk(path)[0]

    def where(self, path: Sequence[str | int], *, key: bool = False) -> Mark:
        """Return the place of the value at `path`. With `key`, the place of its key or list
        item.
        """
        node, holder = self._walk(path)
        return _mark(holder if key else node)

    def relative(self, file: str) -> str:
        """Return a file's name relative to the folder of the first file, wherever the command
        runs.
        """
        folder = self.name.rpartition("/")[0]
        return file.removeprefix(f"{folder}/") if folder else file

    def within(self, path: Sequence[str | int], offset: int) -> Mark:
        """Return the place `offset` characters into the string at `path`."""
        node = self.node(path)
        mark = _mark(node)
        # YAML folds the lines of a longer text, so that offsets in it are no columns.
        if node.start_mark.line != node.end_mark.line:
            return mark
        is_quoted = getattr(node, "style", None) in ("'", '"')  # the text begins behind the quote
        return Mark(mark.file, mark.line, mark.column + offset + is_quoted)

    def _walk(self, path: Sequence[str | int]) -> tuple[yaml.Node, yaml.Node]:
        """Return the node at `path`, or the deepest one on the way, and the key or item that holds
        it.
        """
        node: yaml.Node = self._root
        holder: yaml.Node = self._root
        for step in path:
            if step == node.tag:  # in the data, a tag is a key
                continue
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    if _scalar_text(key) == str(step):
                        holder, node = key, value
                        break
            elif (
                isinstance(node, yaml.SequenceNode)
                and isinstance(step, int)
                and step < len(node.value)
            ):
                holder = node = node.value[step]
        return node, holder

    def without(self, paths: Collection[tuple[str | int, ...]], minimum: dict[str, Any]) -> Source:
        """Return this source without the values at `paths`.

        Keys that then lack are filled in from `minimum`.
        """
        node, data = _cut(self._root, self.data, paths)
        return Source(self.name, {**minimum, **data}, self.files, node)


def _cut(node: Any, data: Any, paths: Collection[tuple[str | int, ...]]) -> tuple[Any, Any]:
    """Copy a node and its data without the values at `paths`."""
    if node.tag in TAGS:
        return node, data
    removed = {path[0] for path in paths if len(path) == 1}
    deeper: dict[str | int, list[tuple[str | int, ...]]] = {}
    for path in paths:
        if len(path) > 1:
            deeper.setdefault(path[0], []).append(path[1:])
    if not removed and not deeper:
        return node, data
    if isinstance(node, yaml.MappingNode):
        return _cut_mapping(node, data, removed, deeper)
    items, values = [], []
    for index, child in enumerate(node.value):
        if index not in removed:
            item, value = _cut(child, data[index], deeper.get(index, ()))
            items.append(item)
            values.append(value)
    return _with_children(node, items), values


def _cut_mapping(
    node: yaml.MappingNode,
    data: dict[str, object],
    removed: Collection[str | int],
    deeper: Mapping[str | int, Collection[tuple[str | int, ...]]],
) -> tuple[yaml.MappingNode, dict[str, object]]:
    """Copy a mapping without the keys `removed`, and with its values cut at the paths `deeper`."""
    pairs, values = [], {}
    for key, child in node.value:
        name = key.value
        if name not in removed:
            value_node, values[name] = _cut(child, data[name], deeper.get(name, ()))
            pairs.append((key, value_node))
    return _with_children(node, pairs), values


def _with_children(node: Any, children: list[Any]) -> Any:
    return type(node)(node.tag, children, node.start_mark, node.end_mark)


def load(path: str | Path, name: str | None = None) -> Source:
    """Read `path` and its includes.

    Raises `MatrixError` with every mistake of YAML. Mistakes in the language of the matrix are
    noted later.
    """
    reader = _Reader()
    path = Path(path)
    name = name or _show(path)
    root = reader.file(path, name, chain=(), included_at=None)
    if reader.problems or root is None:
        raise MatrixError(reader.problems)
    data = _construct(root, reader.problems, path.parent)
    if reader.problems:
        raise MatrixError(reader.problems)
    return Source(name=name, data=data, files=tuple(reader.files), _root=root)


class _Reader:
    """Read files and merge the included ones. Collect all problems instead of stopping at the
    first.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.files: list[str] = []
        self._seen: set[Path] = set()

    def file(
        self, path: Path, name: str, chain: tuple[tuple[Path, str], ...], included_at: Mark | None
    ) -> yaml.MappingNode | None:
        """Return the merged root mapping of one file, or None if nothing in it is usable."""
        here = included_at or Mark(name)
        resolved = _real(path)
        # A file that includes itself, perhaps through others, would never end.
        if any(resolved == earlier for earlier, _ in chain):
            names = [shown for _, shown in chain] + [name]
            self._problem(
                here,
                "include",
                f"include cycle: {' -> '.join(names)}",
                "files that do not include each other",
            )
            return None
        # A file that two others include counts once.
        if resolved in self._seen:
            return yaml.MappingNode(_CORE + "map", [])
        self._seen.add(resolved)
        self.files.append(name)
        text = self._text(path, name, included_at)
        root = None if text is None else self._compose(text, name)
        if root is None:
            return None
        return self._with_includes(root, path, name, (*chain, (resolved, name)))

    def _text(self, path: Path, name: str, included_at: Mark | None) -> str | None:
        """Return the text of a file. None, with a problem noted, if it cannot be read."""
        place = included_at or Mark(name)
        at = "include" if included_at else ""
        try:
            # A pipe or a device may have no end, and a folder no text.
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                self._problem(
                    place, at, f"cannot read {name}: it is no regular file", "a file of YAML"
                )
                return None
            size = status.st_size
            if size > MAX_BYTES:
                limit = f"at most {MAX_BYTES >> 20} MiB: split it, or generate fewer entries"
                self._problem(Mark(name), "", f"the file has {size / 2**20:.1f} MiB", limit)
                return None
            raw = path.read_bytes()
        except FileNotFoundError:
            wanted = "a matrix; `matrix-gen init FOLDER` makes a project with one"
            if included_at:
                wanted = "a path relative to the file that names it"
            self._problem(place, at, f"there is no file {name}", wanted)
            return None
        except OSError as error:
            self._problem(place, at, f"cannot read {name}: {error.strerror}")
            return None
        try:
            # with or without the mark that editors of Windows write at the beginning
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            before = raw[: error.start]
            mark = Mark(name, before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1)
            self._problem(
                mark, "", f"byte 0x{raw[error.start]:02x} is not UTF-8", "a file saved as UTF-8"
            )
            return None

    def _compose(self, text: str, name: str) -> yaml.MappingNode | None:
        """Return the root mapping of a text. None, with a problem noted, if it has none."""
        loader = _Loader(_Text(text, name))
        try:
            # before the nodes are built, which recurses
            deep = _too_deep(text)
            if deep is not None:
                self._problem(
                    Mark(name, deep.line + 1, deep.column + 1),
                    "",
                    f"nested deeper than {MAX_DEPTH} levels",
                )
                return None
            root = loader.get_single_node()
        except yaml.MarkedYAMLError as error:
            self.problems.append(_syntax_problem(error, text, name))
            return None
        except (yaml.YAMLError, RecursionError) as error:
            position = getattr(error, "position", 0)
            before = text[:position] if isinstance(position, int) else ""
            what = f"not readable as YAML: {getattr(error, 'reason', error)}"
            self._problem(
                Mark(name, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1),
                "",
                what,
            )
            return None
        finally:
            loader.dispose()
        if root is None:
            self._problem(
                Mark(name), "", "the file is empty", "at least `version: 1` and `families:`"
            )
            return None
        # Tags and duplicate keys are mistakes of this file, which then merges nothing.
        count = len(self.problems)
        self._inspect(root)
        if len(self.problems) > count:
            return None
        if not isinstance(root, yaml.MappingNode):
            self._problem(
                _mark(root),
                "",
                "the file is not a mapping",
                "sections such as `checks:` and `families:`",
            )
            return None
        return root

    def _inspect(self, root: yaml.Node) -> None:
        """Refuse tags, duplicate keys, endless aliases and alias bombs."""
        # An alias is its node once more. So a node is looked at once, by its identity, and counts
        # wherever it stands.
        sizes: dict[int, int] = {}
        ancestors: set[int] = set()

        def size(node: yaml.Node, depth: int) -> int:
            """Return how many nodes there are below a node, and itself."""
            known_size = sizes.get(id(node))
            if known_size is not None:
                return known_size
            if id(node) in ancestors:
                self._problem(
                    _mark(node), "", "an alias that contains itself", "a finite structure"
                )
                return 1
            if depth > MAX_DEPTH:  # only aliases nest so deep, as the text does not
                self._problem(_mark(node), "", f"nested deeper than {MAX_DEPTH} levels")
                return 1
            ancestors.add(id(node))
            self._refuse_tag(node)
            total = 1
            if isinstance(node, yaml.MappingNode):
                self._refuse_duplicates(node)
                for key, value in node.value:
                    total += size(key, depth + 1) + size(value, depth + 1)
            elif isinstance(node, yaml.SequenceNode):
                for item in node.value:
                    total += size(item, depth + 1)
            ancestors.discard(id(node))
            sizes[id(node)] = total
            return total

        total = size(root, 0)
        if total > MAX_NODES:
            self._problem(
                Mark(str(root.start_mark.name)),
                "",
                f"aliases make {total:,} values of this file",
                f"at most {MAX_NODES:,}",
            )

    def _refuse_tag(self, node: yaml.Node) -> None:
        """Note a tag that stands for no value of an argument, or not before such a node."""
        if node.tag in _KINDS[type(node)]:
            return
        known = TAGS.get(node.tag)
        if known is None:
            tag = node.tag.removeprefix(_CORE)
            tag = f"!!{tag}" if tag != node.tag else tag
            what = f"the tag {tag} is not allowed: a matrix holds data, not objects"
            self._problem(_mark(node), "", what, f"a plain value, or one of {', '.join(TAGS)}")
        elif isinstance(node, yaml.SequenceNode) is not known.takes_list:
            self._problem(
                _mark(node), "", f"{node.tag} stands before another kind of value", known.expected
            )

    def _refuse_duplicates(self, node: yaml.MappingNode) -> None:
        """Note keys of a mapping that stand twice, or that are no scalars."""
        seen: dict[str, Mark] = {}
        for key, _ in node.value:
            mark = _mark(key)
            if not isinstance(key, yaml.ScalarNode) or key.tag in TAGS:
                self._problem(mark, "", "a key that is a list, a mapping or has a tag", "a name")
                continue
            first = seen.setdefault(key.value, mark)
            if first is not mark:
                self._problem(
                    mark,
                    key.value,
                    f'duplicate key "{key.value}" (first at {first.short})',
                    "each key once",
                )

    def _with_includes(
        self, root: yaml.MappingNode, path: Path, name: str, chain: tuple[tuple[Path, str], ...]
    ) -> yaml.MappingNode:
        """Merge the sections of the included files with those of `root`: mappings by key, lists by
        appending.
        """
        # Included files first, so that a contradiction is a mistake of the file that includes.
        sections: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in root.value:
            if key.value == "include":
                for item in self._include_items(value):
                    other = self.file(
                        path.parent / item.value, _join_names(name, item.value), chain, _mark(item)
                    )
                    if other is None:
                        continue
                    for other_key, other_value in other.value:
                        self._merge(sections, other_key, other_value)
        for key, value in root.value:
            if key.value != "include":
                self._merge(sections, key, value)
        return yaml.MappingNode(root.tag, list(sections.values()), root.start_mark, root.end_mark)

    def _include_items(self, value: yaml.Node) -> list[yaml.ScalarNode]:
        """Return the file names of an `include:`, which may be one name or a list."""
        items = value.value if isinstance(value, yaml.SequenceNode) else [value]
        names = []
        for item in items:
            if isinstance(item, yaml.ScalarNode) and item.tag == _CORE + "str":
                names.append(item)
                continue
            self._problem(
                _mark(item), "include", "not a file name", "a list of paths relative to this file"
            )
        return names

    def _merge(
        self, sections: dict[str, tuple[yaml.Node, yaml.Node]], key: yaml.Node, value: yaml.Node
    ) -> None:
        """Add a section to those that are there: mappings by key, lists by appending."""
        if key.value not in sections:
            sections[key.value] = (key, value)
            return
        first_key, first = sections[key.value]
        # Two files may both have a section, if both have a mapping or a list there.
        if type(first) is not type(value):
            self._problem(
                _mark(value), key.value, f"another kind of value than at {_mark(first).short}"
            )
            return
        if isinstance(value, yaml.ScalarNode):
            if first.value != value.value:
                self._problem(_mark(value), key.value, f"contradicts {_mark(first).short}")
            return
        if isinstance(value, yaml.MappingNode):
            names = {item.value: _mark(item) for item, _ in first.value}
            for item, _ in value.value:
                if item.value in names:
                    what = f'duplicate key "{item.value}" (first at {names[item.value].short})'
                    self._problem(_mark(item), f"{key.value}.{item.value}", what, "each key once")
        both = type(value)(
            value.tag, [*first.value, *value.value], first.start_mark, first.end_mark
        )
        sections[key.value] = (first_key, both)

    def _problem(self, mark: Mark, path: str, what: str, expected: str = "") -> None:
        self.problems.append(Problem(mark, path, what, expected))


def _construct(root: yaml.Node, problems: list[Problem], folder: Path) -> Any:
    """Return the plain data of a node. Values that are none of their type are noted as problems.
    `folder`: of the matrix, below which its files are.
    """

    def tagged(node: yaml.Node) -> dict[str, Any]:
        """Return what stands behind a tag, as a mapping of the tag: `{"!tuple": [2, 3]}`."""
        known = TAGS[node.tag]
        content: Any = node.value
        content = list(map(build, content)) if known.takes_list else known.read(content)
        if not known.holds(content, folder):
            what = f"{content!r:.60} is no value of {node.tag}"
            problems.append(Problem(_mark(node), "", what, known.expected))
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
            return _SCALARS[node.tag](node.value)
        except (ValueError, KeyError):
            kind = node.tag.removeprefix(_CORE)
            problems.append(
                Problem(_mark(node), "", f'"{node.value[:40]}" is not a value of type {kind}')
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
    _CORE + "null": lambda text: None,
    _CORE + "bool": _boolean,
    _CORE + "int": _integer,
    _CORE + "float": _float,
    _CORE + "str": str,
}


def _mark(node: yaml.Node) -> Mark:
    start = node.start_mark
    return Mark(str(start.name), start.line + 1, start.column + 1)


def _scalar_text(node: yaml.Node) -> str | None:
    """Return the text of a key. None if the key is a list or a mapping."""
    return node.value if isinstance(node, yaml.ScalarNode) else None


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, name: str) -> Problem:
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


def _too_deep(text: str) -> Any:
    """Return the place where collections nest too deep.

    It uses the parser's events, since its node builder recurses and would crash.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                return event.start_mark
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return None


def _join_names(name: str, relative: str) -> str:
    """Return the name of an included file, relative to what the including `name` is relative to."""
    folder = name.rpartition("/")[0]
    if not folder or relative.startswith("/"):
        return relative
    return f"{folder}/{relative}"


def _real(path: Path) -> Path:
    """Return the path without links. A loop of links stays as it is, and cannot be read."""
    return Path(os.path.realpath(path))


def _show(path: Path) -> str:
    try:
        return _real(path).relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)
