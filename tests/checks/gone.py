"""What the installed torch has no more."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import yaml

_ROOT = Path(__file__).parents[2]


def gone() -> set[str]:
    """Return the ops of the version that the matrix names which the installed torch lacks, as far
    as both are written down."""
    pinned = yaml.safe_load((_ROOT / "matrix.yaml").read_text("utf-8"))["torch"]
    installed = _ops(version("torch").partition("+")[0])
    return _ops(pinned) - installed if installed else set()


def _ops(torch: str) -> set[str]:
    """Return the ops of a version of torch by its catalogue, and none if it has no catalogue."""
    path = _ROOT / f"gen/plan/catalogs/torch-{torch}.json"
    if not path.exists():
        return set()
    return {op["name"] for op in json.loads(path.read_text("utf-8"))["ops"]}
