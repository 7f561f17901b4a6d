"""What the tests of the plug-in share."""

import pytest

from gen.checks import Case, Cell, Family
from gen.language.axes import USUAL
from gen.targets import load


@pytest.fixture(scope="session", autouse=True)
def loaded() -> None:
    """pytester forgets the modules that a run imported, but torch cannot be imported twice: have it
    all before the first run."""
    cell = Cell("torch.sin", "float64", USUAL, "full", ())
    Case(cell, "forward", Family("loaded"), load("torch")).assert_same("forward", against="eager")


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CI machine pytest's summary repeats whole messages; the tests count lines
    of the short one."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
