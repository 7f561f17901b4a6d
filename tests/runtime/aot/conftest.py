"""Tests of compiled programs check the generated code at the first call already, as most
of them call once."""

import pytest

from runtime.aot.compilers import boxed
from runtime.aot.compilers.replay import as_python


@pytest.fixture(autouse=True)
def generated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call does what the second one does otherwise. `compilers/test_staged.py` is about
    the calls as they are."""
    monkeypatch.setattr(boxed, "Staged", as_python)
