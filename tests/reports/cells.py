"""Which cell of the matrix notices each report: the contents of cells.yaml."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def _file() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("cells.yaml").read_text("utf-8"))
    return read


def noticed() -> dict[str, str]:
    """The cell that notices a report, by the report's number."""
    found: dict[str, str] = _file()["noticed"]
    return found


def unnoticed() -> dict[str, str]:
    """Why no cell notices a report, by the report's number."""
    return {number: group["reason"] for group in _file()["unnoticed"] for number in group["reports"]}
