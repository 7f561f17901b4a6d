"""Which cell of the matrix notices each report: the contents of cells.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def _file() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("cells.yaml").read_text("utf-8"))
    return read


@dataclass(frozen=True)
class Cell:
    """A cell, ``test_CHECK[CASE]``, and the target on which it fails."""

    name: str
    target: str = "torch"

    def __str__(self) -> str:
        return self.name if self.target == "torch" else f"{self.name} on target {self.target}"


def noticed() -> dict[str, Cell]:
    """The cell that notices a report, by the report's number. A group of the file stands
    for each target."""
    found: dict[str, dict[str, str]] = _file()["noticed"]
    return {
        number: Cell(name, target)
        for target, cells in found.items()
        for number, name in cells.items()
    }


def unnoticed() -> dict[str, str]:
    """Why no cell notices a report, by the report's number."""
    return {
        number: group["reason"] for group in _file()["unnoticed"] for number in group["reports"]
    }
