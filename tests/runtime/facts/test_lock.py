"""A version of torch has facts of its own, or those of the nearest older one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.facts import lock
from runtime.facts.derivatives import formulas, has_formula


@pytest.fixture(autouse=True)
def _stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Facts of two versions."""
    monkeypatch.setattr(lock, "LOCKS", tmp_path)
    for version in ("1.0.0", "1.10.0"):
        (tmp_path / f"torch-{version}.json").write_text(json.dumps({"torch": version}))


def test_a_version_without_facts_has_those_of_the_nearest_older_one() -> None:
    assert lock.versions() == ["1.0.0", "1.10.0"]
    assert lock.nearest("1.9.7") == "1.0.0" and lock.nearest("3.0") == "1.10.0"
    assert lock.nearest("0.9") == "1.0.0"


def test_a_torch_that_nobody_has_run_is_named_and_an_older_one_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock, "installed", lambda: "1.11.0")
    with pytest.warns(UserWarning, match=r"torch 1\.11\.0: it takes that for 1\.10\.0.*gen facts"):
        lock.check_version()
    monkeypatch.setattr(lock, "installed", lambda: "0.9.1")
    with pytest.raises(ImportError, match=r"supports torch 1\.0\.0 and later, not 0\.9\.1"):
        lock.check_version()
    monkeypatch.setattr(lock, "installed", lambda: "1.10.3")
    lock.check_version()


def test_torchs_list_says_which_arguments_have_a_formula() -> None:
    assert formulas()["mul.Tensor"] == ("self", "other")
    assert formulas()["index_select.default"] == ("self",)
    assert has_formula("sum.dim_IntList") and not has_formula("argmax.default")
