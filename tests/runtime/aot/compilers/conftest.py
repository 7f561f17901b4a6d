"""What tests of compilers share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Return a folder for Inductor's files that is new in this run.

    In a folder without any, it compiles the headers of torch first, which takes ten seconds. So the
    workers share one.
    """
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    shared = folder / "kernels"
    shared.mkdir(exist_ok=True)
    return shared
