"""Read YAML text into data in which every node has its file, line and column.

:mod:`gen.language.yaml_text` parses the text. This module adds rules that make a file safe and
unambiguous:

- Duplicate keys are mistakes, and so are tags but those of :mod:`gen.language.values`, and aliases
  that would expand to too much data.
- `include:` merges further files section by section.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gen.errors import Mark, MatrixError, Problem
from gen.language.values import TAGS
from gen.language.yaml_text import (
    CORE,
    KINDS,
    MAX_DEPTH,
    construct,
    loader_of,
    mark_of,
    scalar_text,
    syntax_problem,
    too_deep,
)

# A file of some lines can stand for a billion nodes, by anchors of anchors. These limits are far
# above those of any matrix.
MAX_BYTES = 4 * 1024 * 1024
MAX_NODES = 400_000


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
        return mark_of(holder if key else node)

    def relative(self, file: str) -> str:
        """Return a file's name relative to the folder of the first file, wherever the command
        runs.
        """
        folder = self.name.rpartition("/")[0]
        return file.removeprefix(f"{folder}/") if folder else file

    def within(self, path: Sequence[str | int], offset: int) -> Mark:
        """Return the place `offset` characters into the string at `path`."""
        node = self.node(path)
        mark = mark_of(node)
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
        # A step that leads nowhere is passed over: a message then has the place above it.
        for step in path:
            if step == node.tag:  # in the data, a tag is a key
                continue
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    if scalar_text(key) == str(step):
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
    # a part without a cut is shared with the source
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
    data = construct(root, reader.problems, path.parent)
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
            return yaml.MappingNode(CORE + "map", [])
        self._seen.add(resolved)
        self.files.append(name)
        # `text` is "" for an empty file, whose mistake is another one than that of no file
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
            # by its size, so that a huge file is not read
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
        loader = loader_of(text, name)
        try:
            # before the nodes are built, which recurses
            deep = too_deep(text)
            if deep is not None:
                self._problem(
                    Mark(name, deep.line + 1, deep.column + 1),
                    "",
                    f"nested deeper than {MAX_DEPTH} levels",
                )
                return None
            root = loader.get_single_node()
        except yaml.MarkedYAMLError as error:
            self.problems.append(syntax_problem(error, text, name))
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
                mark_of(root),
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
                    mark_of(node), "", "an alias that contains itself", "a finite structure"
                )
                return 1
            if depth > MAX_DEPTH:  # only aliases nest so deep, as the text does not
                self._problem(mark_of(node), "", f"nested deeper than {MAX_DEPTH} levels")
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
        if node.tag in KINDS[type(node)]:
            return
        known = TAGS.get(node.tag)
        if known is None:
            tag = node.tag.removeprefix(CORE)
            tag = f"!!{tag}" if tag != node.tag else tag
            what = f"the tag {tag} is not allowed: a matrix holds data, not objects"
            self._problem(mark_of(node), "", what, f"a plain value, or one of {', '.join(TAGS)}")
        elif isinstance(node, yaml.SequenceNode) is not known.takes_list:
            self._problem(
                mark_of(node), "", f"{node.tag} stands before another kind of value", known.expected
            )

    def _refuse_duplicates(self, node: yaml.MappingNode) -> None:
        """Note keys of a mapping that stand twice, or that are no scalars."""
        seen: dict[str, Mark] = {}
        for key, _ in node.value:
            mark = mark_of(key)
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
                    file_name = _join_names(name, item.value)
                    other = self.file(path.parent / item.value, file_name, chain, mark_of(item))
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
            if isinstance(item, yaml.ScalarNode) and item.tag == CORE + "str":
                names.append(item)
                continue
            self._problem(
                mark_of(item), "include", "not a file name", "a list of paths relative to this file"
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
                mark_of(value), key.value, f"another kind of value than at {mark_of(first).short}"
            )
            return
        if isinstance(value, yaml.ScalarNode):
            if first.value != value.value:
                self._problem(mark_of(value), key.value, f"contradicts {mark_of(first).short}")
            return
        if isinstance(value, yaml.MappingNode):
            names = {item.value: mark_of(item) for item, _ in first.value}
            for item, _ in value.value:
                if item.value in names:
                    what = f'duplicate key "{item.value}" (first at {names[item.value].short})'
                    self._problem(mark_of(item), f"{key.value}.{item.value}", what, "each key once")
        both = type(value)(
            value.tag, [*first.value, *value.value], first.start_mark, first.end_mark
        )
        sections[key.value] = (first_key, both)

    def _problem(self, mark: Mark, path: str, what: str, expected: str = "") -> None:
        self.problems.append(Problem(mark, path, what, expected))


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
