"""The benchmark of guards measures functions and modules."""

from __future__ import annotations

import pytest

from benchmarks.guards import PROGRAMS, Program, measure


@pytest.mark.parametrize("program", PROGRAMS[:2], ids=lambda program: program.name)
def test_functions_and_modules_have_all_figures(program: Program) -> None:
    found = measure(program, 0.01)
    ratios = {"guard ÷ call", "guard ÷ eager"}
    assert found.keys() == {"guard", "call", "eager", "first call", *ratios}
    assert min(found.values()) > 0
