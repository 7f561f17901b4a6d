"""The catalogue is stored per torch version, and rebuilt if the stored file cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from gen import catalog
from gen.catalog import SCHEMA, Catalog, torch_version

load = catalog.load  # before the fixture of conftest puts the small one in its place


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch, small: Catalog) -> list[int]:
    """How often the catalogue was built, with the small one in place of torch's."""
    count: list[int] = []

    def build() -> Catalog:
        count.append(1)
        return small

    monkeypatch.setattr(catalog, "build", build)
    return count


def test_it_is_built_once_and_then_read(tmp_path: Path, builds: list[int], small: Catalog) -> None:
    assert load(tmp_path) == small
    assert load(tmp_path) == small
    assert builds == [1]
    assert [path.name for path in tmp_path.iterdir()] == [f"opinfo-{torch_version()}-{SCHEMA}.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"torch": "2"}', '{"torch": "2", "ops": [{"name": "a"}]}'])
def test_an_unreadable_one_is_built_anew(tmp_path: Path, builds: list[int], small: Catalog, text: str) -> None:
    (tmp_path / f"opinfo-{torch_version()}-{SCHEMA}.json").write_text(text)
    assert load(tmp_path) == small
    assert load(tmp_path) == small
    assert builds == [1]


def test_another_version_of_torch_has_its_own(tmp_path: Path, builds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    load(tmp_path)
    monkeypatch.setattr(catalog, "torch_version", lambda: "9.9")
    load(tmp_path)
    assert builds == [1, 1]
