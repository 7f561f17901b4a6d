"""Choose the samples on which a case runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gen.checks.case.claim import Claim
from gen.checks.case.evidence import asks_beside_values
from gen.checks.case.preconditions import HOST
from gen.language.axes import Axes
from gen.samples import choice, points, special_points
from gen.samples.samples import STORE, Sample, candidates, make_op

__all__ = ["Subject", "chosen_samples"]

# Words of `values` for calls that may be refused.
_REFUSED = (
    "ill_formed", "out_of_range", "no_index", "wrong_call", "wrong_number", "neighbours",
    "overloads", "wrong_arguments",
)  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """An op of a family at a dtype, with its row."""

    family: str
    op: str
    row: Mapping[str, Any]
    dtype: str
    # A capture costs more than a call, so it gets fewer and smaller samples.
    few: bool
    # Whether no limit holds.
    every: bool


def chosen_samples(subject: Subject, claim: Claim, axes: Axes) -> tuple[list[Sample], list[Sample]]:
    """Return the samples to run, and a few more for the case that these compare nothing, or only
    zeros with zeros."""
    dtype = getattr(torch, subject.dtype)
    pool = STORE.pool(
        subject.family, subject.op, subject.row, dtype, HOST, wrapped=claim.parsed.differentiates
    )
    if axes.values == "special":
        return special_points.chosen(pool), []
    pool = choice.made_by(pool, axes.made)
    # These checks choose inputs by their numbers, so further calls of the op show more.
    settled = "definition" in claim.references or axes.values in (*points.NUMBERS, *_REFUSED)
    more = _settings(subject, dtype) if settled else []
    if axes.values in points.NUMBERS and pool and points.is_scalar(pool[0]):
        return points.chosen([*pool, *more]), []
    limit = choice.budget(claim.parsed, claim.references, refused=axes.values in _REFUSED)
    if asks_beside_values(axes, claim.references):
        limit = limit.at_most(*choice.BESIDE_VALUES)
    if subject.few:
        limit = limit.at_most(*choice.JITTED)
    return choice.pick(pool, more, limit, every=subject.every)


def _settings(subject: Subject, dtype: torch.dtype) -> list[Sample]:
    """Return the further calls that the row names for checks at degenerate points."""
    settings = subject.row.get("settings")
    if not settings:
        return []
    op = make_op(subject.op, subject.row)
    return candidates(op, {"samples": settings}, dtype, HOST, wrapped=False)
