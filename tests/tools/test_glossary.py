"""The glossary of the project is current. Mistakes in a table are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.glossary import main

ROOT = Path(__file__).parents[2]
TABLE = """\
runtime:
  - term: tree
    means: What has leaves.
    code: collections.OrderedDict
    torch: PyTree
  - term: leaf
    means: What has none.
"""


def test_terms_stand_by_name_with_their_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "terms.yaml"
    table.write_text(TABLE, encoding="utf-8")
    assert main(["--table", str(table)]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "|---|---|---|---|---|",
        "| **leaf** | What has none. |  |  |  |",
        "| **tree** | What has leaves. | `collections.OrderedDict` |  | PyTree |",
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("OrderedDict", "Tree", "'tree' is said to be collections.Tree, which is not there"),
        ("term: leaf", "term: tree", "'tree' stands twice"),
        ("torch:", "numpy:", "needs `term` and `means`, and has of"),
        ("means: What has none.", "torch: leaf", "needs `term` and `means`"),
        ("runtime:", "other:", "['other'] is no section"),
    ],
)
def test_a_mistake_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    table, page = tmp_path / "terms.yaml", tmp_path / "page.md"
    table.write_text(TABLE.replace(old, new), encoding="utf-8")
    assert main(["--table", str(table), "--out", str(page)]) == 2
    assert message in capsys.readouterr().err
    assert not page.exists()


def test_the_page_in_docs_is_current(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["--out", str(tmp_path / "page.md")]) == 0
    page = (ROOT / "docs/glossary.md").read_text("utf-8")
    assert page == (tmp_path / "page.md").read_text("utf-8"), "make docs writes it anew"
