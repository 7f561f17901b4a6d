"""The catalogue of a version of torch is a file of the package, or is built once and stored.

Inside: gen.plan.catalog. A command builds a catalogue only for an installed torch of which none is
stored, and building takes seconds. So the tests put another version and a small build in its place.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gen.cli import main
from gen.plan import catalog
from gen.plan.catalog import (
    SCHEMA,
    Catalog,
    Facts,
    UnknownTorch,
    stored_at,
    torch_version,
    versions,
)

load = catalog.load
SIN = Facts(
    "torch.sin", "sin", "", "unary", ("float32", "float64"), ("float64",), ("autograd", "opinfo")
)
DET = Facts(
    "torch.linalg.det", "linalg.det", "", "other", ("float64",), ("float64",), ("autograd",)
)


@pytest.fixture
def small() -> Catalog:
    """A catalogue of two ops."""
    return Catalog.of("2.13.0", [SIN, DET])


@pytest.fixture
def builds(
    monkeypatch: pytest.MonkeyPatch, small: Catalog, tmp_path_factory: pytest.TempPathFactory
) -> list[int]:
    """How often the catalogue was built, with the small one in place of torch's, and none stored in
    the package."""
    count: list[int] = []

    def build() -> Catalog:
        count.append(1)
        return small

    monkeypatch.setattr(catalog, "build", build)
    monkeypatch.setattr(catalog, "STORED", tmp_path_factory.mktemp("catalogs"))
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


def test_a_matrix_names_its_version_and_the_installed_one_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "torch_version", lambda: "9.9")
    found = load(tmp_path, "2.13.0")
    assert found.torch == "2.13.0" and "torch.cholesky" in found.ops
    assert not list(tmp_path.iterdir())


def test_a_version_that_is_neither_stored_nor_installed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownTorch, match=r"no catalog of torch 2\.13\.1.*did you mean 2\.13\.0"):
        load(tmp_path, "2.13.1")


def test_what_is_stored_is_what_the_installed_torch_says() -> None:
    if torch_version() not in versions():
        pytest.skip(f"no catalog of torch {torch_version()} is stored")
    assert stored_at(torch_version()).read_text() == catalog._as_json(catalog.build())


def test_the_command_writes_the_catalog_of_the_installed_torch(
    tmp_path: Path, builds: list[int], small: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "torch.json"
    assert main(["catalog", "--out", str(out)]) == 0
    assert catalog._read(out.read_text()).ops == small.ops
    assert f"{len(small.ops)} ops of torch" in capsys.readouterr().out
