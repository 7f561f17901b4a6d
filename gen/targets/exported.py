"""Write an exported program to a file and read it, for targets whose exports are
``torch.export.ExportedProgram``.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch


def reloaded(program: torch.export.ExportedProgram) -> Callable[..., Any]:
    """Return the module of `program` after ``torch.export.save`` and ``torch.export.load``."""
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()
