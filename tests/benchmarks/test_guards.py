"""The benchmark of guards measures functions and modules."""

from __future__ import annotations

import os

import pytest

from benchmarks.guards import PROGRAMS, Program, measure, without_native_part
from runtime.native.library import VARIABLE, library


@pytest.mark.parametrize("program", PROGRAMS[:2], ids=lambda program: program.name)
def test_functions_and_modules_have_all_figures(program: Program) -> None:
    found = measure(program, 0.01)
    ratios = {"guard ÷ in Python", "guard ÷ call", "guard ÷ eager"}
    assert found.keys() == {"guard", "in Python", "call", "eager", "first call", *ratios}
    assert min(found.values()) > 0


def test_the_switch_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("folder", None):
        monkeypatch.delenv(VARIABLE, raising=False)
        if value is not None:
            monkeypatch.setenv(VARIABLE, value)
        with pytest.raises(KeyError), without_native_part():
            assert library().module is None
            raise KeyError
        assert os.environ.get(VARIABLE) == value
