"""What the installed torch has no more."""

from __future__ import annotations

from pathlib import Path

import yaml

from gen.plan import catalog

_MATRIX = Path(__file__).parents[2] / "matrix.yaml"


def gone() -> set[str]:
    """The ops of the version that the matrix names which the installed torch lacks, as far as both
    are written down."""
    pinned = yaml.safe_load(_MATRIX.read_text("utf-8"))["torch"]
    installed = catalog.torch_version()
    if installed not in catalog.versions():
        return set()
    return {*catalog.load(Path(), pinned).ops} - {*catalog.load(Path(), installed).ops}
