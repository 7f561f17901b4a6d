"""Each page for one kind of reader leads to its first result, with what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.start.page import Run, Write, steps_of
from tests.start.reader import ROOT, Reader

PAGES = sorted((ROOT / "docs/start").glob("*.md"))
PAGE = """\
```{code-block} yaml
:caption: notes/a.yaml, from more: on

more: 2
```

```console
$ cat notes/a.yaml
first: 1
more: 2
$ cd notes
$ ls; echo end
a.yaml
…
```
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_reader_gets_what_the_page_says(page: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for step in steps_of(page.read_text("utf-8")):
        reader.follow(step)


def test_a_page_has_files_and_commands() -> None:
    assert list(steps_of(PAGE)) == [
        Write("notes/a.yaml", "more: 2\n", "more:"),
        Run("cat notes/a.yaml", "first: 1\nmore: 2\n"),
        Run("cd notes", ""),
        Run("ls; echo end", "a.yaml\n…\n"),
    ]


def test_a_page_is_followed_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.yaml").write_text("first: 1\n\nmore:\n  other: 3\n")
    reader = Reader(tmp_path)
    with pytest.raises(AssertionError, match=r"cat notes/a\.yaml prints:"):
        for step in steps_of(PAGE.replace("more: 2\n$", "more: 3\n$")):
            reader.follow(step)


def test_a_block_without_the_name_of_a_file_is_an_error() -> None:
    with pytest.raises(AssertionError, match="without the name of a file"):
        list(steps_of("```{code-block} python\nprint(1)\n```\n"))
