"""What can become of a comparison other than passing."""

from __future__ import annotations

__all__ = ["Lacking", "Mismatch", "Unsuitable", "Vacuous"]


class Mismatch(AssertionError):
    """Target and reference differ; the message says where and by how much."""


class Vacuous(AssertionError):
    """Nothing was compared, or only zeros with zeros; the message says why."""


class Lacking(Exception):
    """The target does not offer a stage of the pipeline, or the meta device no value that the op needs; the message says which."""


class Unsuitable(Exception):
    """One sample, or one in_dims pattern of it, cannot carry the check; a case whose samples all are is vacuous."""
