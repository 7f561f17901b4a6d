"""What the schema of an op says of its results."""

from __future__ import annotations

from typing import Any


def is_view(func: Any) -> bool:
    """Whether a result shares memory with an argument that the op does not write to."""
    aliases = [result.alias_info for result in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def writes(func: Any) -> bool:
    """Whether the op writes to an argument."""
    return bool(func._schema.is_mutable)
