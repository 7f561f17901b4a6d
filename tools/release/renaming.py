"""Change the names of modules in a file, as a wheel has them inside of one package.

    from gen.checks import cases        # before
    from torch_transform_matrix.gen.checks import cases

Imports are found by the syntax tree. What strings and comments say is changed as well where it
names a module: ``"-m", "gen.cluster.serving"``, ``python -m gen check``, ``:mod:`runtime.func```.
Changes stay within their lines, so that the lines of a traceback are those of the checkout. What
cannot be changed so is refused with its line: a build fails, and no wheel has a wrong name.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator
from dataclasses import dataclass

__all__ = ["Renaming", "RenamingError"]


class RenamingError(Exception):
    """A line has a name in a form that the build does not change."""


@dataclass(frozen=True, order=True)
class Edit:
    """A replacement of characters in one line. ``line``: from 1; ``begin`` and ``end``: from 0."""

    line: int
    begin: int
    end: int
    text: str


class Renaming:
    """Puts packages inside of another one.

    ``outer``: the package that gets them, such as "torch_transform_matrix". ``inside``: dotted
    names of two parts that stand for themselves, such as "gen.checks" or "runtime.jit". A text is
    changed where it has one of them.
    """

    def __init__(self, outer: str, inside: Collection[str]) -> None:
        packages: dict[str, list[str]] = {}
        for name in sorted(inside):
            package, _, second = name.partition(".")
            packages.setdefault(package, []).append(re.escape(second))
        anything = "|".join(packages)
        names = "|".join(
            rf"{package}\.(?:{'|'.join(seconds)})" for package, seconds in packages.items()
        )
        self._outer = outer
        self._packages = frozenset(packages)
        self._named = re.compile(rf"\b(?:{anything})\b")
        # A part of a path, and an attribute such as `x.gen.checks`, are no modules.
        # An escaped end of a line in the source of a string is no part of a word.
        self._in_texts = re.compile(
            rf"(?:(?<![\w.:/\\-])|(?<=\\n))(?=(?:{names})\b)"
            rf"|(?<=-m )(?=(?:{anything})\b)"
            rf"|(?<=\bfrom )(?=(?:{anything}) import\b)"
            rf"|(?<=\bimport )(?=(?:{anything})\b)"
        )

    def text(self, text: str) -> str:
        """Return a text, such as a template, with the new names."""
        return self._in_texts.sub(f"{self._outer}.", text)

    def python(self, source: str, file: str) -> str:
        """Return the source of a module with the new names. Each line stays in its place.

        Raises :class:`RenamingError` for a form that it does not change.
        """
        if self._named.search(source) is None:
            return source
        lines = source.splitlines(keepends=True)
        tree = ast.parse(source, file)
        edits = {*self._edits_of_imports(tree, lines, file), *self._edits_of_texts(source)}
        for edit in sorted(edits, reverse=True):
            line = lines[edit.line - 1]
            lines[edit.line - 1] = line[: edit.begin] + edit.text + line[edit.end :]
        renamed = "".join(lines)
        self._refuse_rest(renamed, file)
        return renamed

    def _edits_of_imports(self, tree: ast.AST, lines: list[str], file: str) -> Iterator[Edit]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and self._is_ours(node.module):
                yield self._edit_of_from(node, lines, file)
            if isinstance(node, ast.Import):
                yield from self._edits_of_import(node, lines, file)
            if isinstance(node, ast.FormattedValue):
                self._refuse_in_braces(node, file)

    def _edit_of_from(self, node: ast.ImportFrom, lines: list[str], file: str) -> Edit:
        """Return the edit of ``from gen.checks import cases``."""
        begin = _column(lines, node.lineno, node.col_offset) + len("from ")
        module = str(node.module)
        if not lines[node.lineno - 1].startswith(f"{module} ", begin):
            raise RenamingError(f"{file}:{node.lineno}: write `from {module} import …` in one line")
        return Edit(node.lineno, begin, begin, f"{self._outer}.")

    def _edits_of_import(self, node: ast.Import, lines: list[str], file: str) -> Iterator[Edit]:
        """Yield the edits of ``import runtime`` and ``import gen.checks as c``.

        ``import gen.checks`` defines the name ``gen``, which one line cannot do any more.
        """
        for name in node.names:
            if not self._is_ours(name.name):
                continue
            begin = _column(lines, name.lineno, name.col_offset)
            if name.asname is not None:
                yield Edit(name.lineno, begin, begin, f"{self._outer}.")
            elif "." not in name.name and len(node.names) == 1:
                start = _column(lines, node.lineno, node.col_offset)
                text = f"from {self._outer} import "
                yield Edit(node.lineno, start, start + len("import "), text)
            else:
                raise RenamingError(
                    f"{file}:{node.lineno}: write `from {name.name} import …` or give it a name "
                    "by `as`; a wheel has it inside of another package"
                )

    def _edits_of_texts(self, source: str) -> Iterator[Edit]:
        """Yield the edits of strings and comments."""
        kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type not in kinds or self._named.search(token.string) is None:
                continue
            row, column = token.start
            # the token as it stands in the source: what 3.12 says of `{{` has one brace
            for index, line in enumerate(token.string.splitlines()):
                for match in self._in_texts.finditer(line):
                    begin = match.start() + (column if index == 0 else 0)
                    yield Edit(row + index, begin, begin, f"{self._outer}.")

    def _refuse_rest(self, renamed: str, file: str) -> None:
        """Refuse names that only the pieces of a string make together."""
        for node in ast.walk(ast.parse(renamed, file)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                whole = self._in_texts.search(node.value)
                if whole is not None:
                    raise RenamingError(
                        f"{file}:{node.lineno}: the name of a module is cut: …"
                        f"{node.value[max(0, whole.start() - 10) : whole.start() + 30]}…"
                    )

    def _refuse_in_braces(self, node: ast.FormattedValue, file: str) -> None:
        """Refuse a package in the braces of an f-string: before Python 3.12, its tokens do not tell
        code from text.
        """
        names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
        if names & self._packages:
            raise RenamingError(
                f"{file}:{node.lineno}: a package in the braces of an f-string; "
                "give the value a name before"
            )

    def _is_ours(self, module: str | None) -> bool:
        return module is not None and module.partition(".")[0] in self._packages


def _column(lines: list[str], line: int, offset: int) -> int:
    """Return the place of a character in its line. A syntax tree counts bytes."""
    return len(lines[line - 1].encode()[:offset].decode())
