"""Exceptions for the outcomes of a comparison that does not pass."""

from __future__ import annotations

__all__ = ["Lacking", "Mismatch", "Unsuitable", "Vacuous"]


class Mismatch(AssertionError):
    """Target and reference differ. The message says where and by how much."""


class Vacuous(AssertionError):
    """Nothing was compared, or only zeros with zeros. The message says why."""


class Lacking(Exception):
    """The target lacks a stage of the pipeline, or the meta device lacks a value that the op needs. The message says which."""


class Unsuitable(Exception):
    """The check cannot use one sample, or one in_dims pattern of it. A case is vacuous if this holds for all samples."""
