"""Read the steps of a page: the files that it writes, and the commands that it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```(\{code-block\} \w+|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CAPTION = re.compile(r":caption: ([\w./]+)(?:, from (\w+:) on)?\n+")
_REST = "…"


@dataclass(frozen=True)
class Write:
    """Write a file; or only what follows the first line ``since``, and keep the rest."""

    name: str
    text: str
    since: str | None = None

    def into(self, folder: Path) -> None:
        """Write the file below `folder`."""
        path, before = folder / self.name, ""
        if self.since is not None:
            before = path.read_text("utf-8").partition(f"\n{self.since}\n")[0] + "\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(before + self.text, "utf-8")


@dataclass(frozen=True)
class Run:
    """Run a command, which prints the lines `expected`. In these «…» stands for any text."""

    command: str
    expected: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """What the output is to match."""
        parts = map(re.escape, self.expected.strip().split(_REST))
        return re.compile(".*".join(parts), re.DOTALL)


Step = Write | Run


def steps_of(text: str) -> Iterator[Step]:
    """Yield the steps of a page, in order."""
    for kind, content in _BLOCK.findall(text):
        if kind == "console":
            yield from _runs(content)
        else:
            yield _file(content)


def _file(content: str) -> Write:
    """Return the file of a block. Its first line says the name."""
    caption = _CAPTION.match(content)
    assert caption is not None, f"a block without the name of a file: {content[:40]!r}"
    return Write(caption[1], content[caption.end() :], caption[2])


def _runs(content: str) -> Iterator[Run]:
    """Yield the commands of a block, each with what it prints."""
    for block in re.split(r"^\$ ", content, flags=re.MULTILINE)[1:]:
        command, _, expected = block.partition("\n")
        yield Run(command, expected)
