"""The catalogue is stored per torch version, and rebuilt if the stored file cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from gen.plan import catalog
from gen.plan.catalog import SCHEMA, Catalog, torch_version

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
    assert load(tmp_path).ops == small.ops
    assert load(tmp_path).ops == small.ops
    assert builds == [1]
    assert [path.name for path in tmp_path.iterdir()] == [f"opinfo-{torch_version()}-{SCHEMA}.json"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"torch": "2"}', '{"torch": "2", "ops": [{"name": "a"}]}']
)
def test_an_unreadable_one_is_built_anew(
    tmp_path: Path, builds: list[int], small: Catalog, text: str
) -> None:
    (tmp_path / f"opinfo-{torch_version()}-{SCHEMA}.json").write_text(text)
    assert load(tmp_path).ops == small.ops
    assert load(tmp_path).ops == small.ops
    assert builds == [1]


def test_another_version_of_torch_has_its_own(
    tmp_path: Path, builds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "torch.sin" in load(tmp_path).ops
    monkeypatch.setattr(catalog, "torch_version", lambda: "9.9")
    assert "torch.sin" in load(tmp_path).ops
    assert builds == [1, 1]


def test_an_op_of_ones_own_needs_none(tmp_path: Path, builds: list[int]) -> None:
    assert "mine.swish" not in load(tmp_path).ops and load(tmp_path).ops.get("mine.swish") is None
    assert builds == [] and not list(tmp_path.iterdir())
