"""End a case early that its target, the installed torch or the device cannot run.

Each function raises Lacking with the reason. No text names the installed torch or another thing
that differs between machines: two runs that lack the same compare as equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gen.checks.needed_words import lacking_among, needed_words
from gen.devices.place import Place
from gen.language.axes import Axes
from gen.language.pipeline import Pipeline
from gen.outcomes import Lacking
from gen.samples import opinfo
from gen.targets.lacking_words import FAMILY
from gen.targets.protocol import Target
from gen.versions import is_for_installed

if TYPE_CHECKING:
    from gen.torch_private.test_helpers import OpInfo

__all__ = [
    "HOST",
    "require_device",
    "require_op_of_target",
    "require_op_of_torch",
    "require_words",
]

HOST = "cpu"
"""The device of samples and references, whatever that of the target is."""


def require_words(
    target: Target, family: str, pipeline: Pipeline, axes: Axes, references: Sequence[str]
) -> None:
    """Raise Lacking if the target lacks a stage or another method that the case needs."""
    needed = [*needed_words(pipeline.stages, axes, references), FAMILY + family]
    if lacking := lacking_among(needed, target.lacks):
        raise Lacking(f"target {target.name} lacks {', '.join(lacking)}")


def require_op_of_torch(op: str, row: Mapping[str, Any], dtype: str, pipeline: Pipeline) -> None:
    """Raise Lacking if the installed torch lacks what the row needs.

    The matrix names the version of torch that it was written for. The installed one may lack the
    op, or its derivatives, or samples of the dtype, or a row is for other versions.
    """
    if not is_for_installed(row.get("torch")):
        raise Lacking(f"the row is for torch {row['torch']}, and another one runs")
    if not opinfo.may_have(op, row):
        return
    of_database = row.get("samples", "opinfo") == "opinfo"
    info = opinfo.lookup(op)
    # A row with samples of its own needs no entry in the database, but torch has to have its op.
    if info is None and (of_database or not opinfo.is_there(op)):
        raise Lacking(f"this torch has no {op}")
    # samples of a row's own may have dtypes that the database does not claim
    if info is not None and of_database:
        _require_dtype_of_torch(info, op, dtype, pipeline)


def _require_dtype_of_torch(info: OpInfo, op: str, dtype: str, pipeline: Pipeline) -> None:
    """Raise Lacking if the op does not take the dtype, or has no derivative of it."""
    dtype_of_torch = getattr(torch, dtype)
    if dtype_of_torch not in info.supported_dtypes(HOST):
        raise Lacking(f"this torch has no {op} of {dtype}")
    if not pipeline.differentiates:
        return
    if not opinfo.differentiates(info, dtype_of_torch, HOST):
        raise Lacking(f"this torch has no derivative of {op} of {dtype}")


def require_op_of_target(target: Target, op: str, axes: Axes, references: Sequence[str]) -> None:
    """Raise Lacking if a target with ops of its own does not run this case.

    Such a target runs the ops that it has, without effect on their arguments. Error inputs are for
    ops in torch.
    """
    # A target without `op` runs the ops of torch.
    implementation = getattr(target, "op", None)
    if implementation is None:
        return
    if implementation(op) is None:
        raise Lacking(f"target {target.name} has no {op}")
    if axes.form != "functional" or axes.values == "ill_formed" or "raises" in references:
        raise Lacking(
            f"target {target.name} has ops of its own: no variants that write, no documented errors"
        )


def require_device(place: Place | None, device: str, dtype: str, axes: Axes) -> None:
    """Raise Lacking if the device does not hold the dtype, or the check is about the CPU.

    `place` is None on the device of the samples, which holds every dtype.
    """
    if place is None:
        return
    refusal = place.refusal_of(getattr(torch, dtype))
    if refusal:
        raise Lacking(f"device {device} holds no tensors of {dtype}: {refusal}")
    if axes.form in ("autocast", "autocast_half"):
        raise Lacking("which ops autocast casts is known of the CPU, and each device has a list")
