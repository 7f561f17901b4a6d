"""Comparison with what standards and documentation say of special points: entry by entry, NaN with
NaN, infinities with infinities, and zeros by their sign where a standard gives it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from gen.checks.compare import Tally
from gen.checks.pipelines import Program
from gen.outcomes import Mismatch, Unsuitable
from gen.reference.special import POINTWISE
from gen.reference.standard import Standard, is_known, numbers
from gen.samples.samples import Sample

__all__ = ["compare_with_standard"]

Tensor = torch.Tensor
RTOL = {torch.float64: 1e-9, torch.float32: 3e-5}
ULPS = 8  # of 1: sums of numbers of that size may cancel


def compare_with_standard(
    program: Program, sample: Sample, actual: Sequence[Tensor], tally: Tally, label: str
) -> None:
    """Raise Mismatch unless each entry is what the tables say. Entries of which they say nothing
    are counted as unknown."""
    if not is_known(sample.op.name):
        raise Unsuitable(f"no table has {sample.op.name}")
    inputs = [numbers(x.cpu()) for x in program.inputs]
    # a target for these stages alone
    expected = program.over(Standard(sample))(*inputs)  # type: ignore[arg-type]
    if len(expected) != len(actual):
        raise Mismatch(f"{label}: {len(actual)} outputs, expected {len(expected)}")
    rule = POINTWISE.get(sample.op.name)
    signed = rule is not None and rule.signed and len(program.inputs) == len(sample.inputs)
    for place, (a, e) in enumerate(zip(actual, expected, strict=True)):
        where = f"{label}: output {place} of {len(actual)}"
        if tuple(a.shape) != e.shape:
            raise Mismatch(f"{where} has shape {list(a.shape)}, expected {list(e.shape)}")
        pairs = list(zip(a.detach().reshape(-1).tolist(), e.reshape(-1).tolist(), strict=True))
        known = [k for k, (_, y) in enumerate(pairs) if _is_said(y, a.dtype)]
        tally.entries += len(known)
        tally.unknown += len(pairs) - len(known)
        tally.nonzero += sum(pairs[k][0] != 0 or pairs[k][1] != 0 for k in known)
        wrong = [k for k in known if not _is_same(*pairs[k], a.dtype, signed)]
        if wrong:
            raise Mismatch(f"{where}: {_described(wrong, pairs, program.inputs, a)}")


def _is_said(e: Any, dtype: torch.dtype) -> bool:
    """Whether something is said of an entry, in a dtype that has it."""
    return e is not None and (e == e or dtype.is_floating_point)


def _is_same(a: Any, e: Any, dtype: torch.dtype, signed: bool) -> bool:
    """Whether a result is the expected number, as its dtype has it."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return bool(a == (bool(e) if dtype is torch.bool else e))
    rounded = torch.tensor(e, dtype=torch.float64).to(dtype).item()
    if math.isnan(rounded) or math.isnan(a):
        return math.isnan(rounded) and math.isnan(a)
    if a == rounded:
        return not signed or a != 0 or math.copysign(1, a) == math.copysign(1, rounded)
    if math.isinf(rounded):
        return False
    allowed = RTOL[dtype] * abs(rounded) + ULPS * torch.finfo(dtype).eps
    return math.isfinite(a) and abs(a - rounded) <= allowed


def _described(
    wrong: Sequence[int], pairs: Sequence[tuple[Any, Any]], inputs: Sequence[Tensor], a: Tensor
) -> str:
    k = wrong[0]
    alike = all(x.numel() == a.numel() for x in inputs)
    shown = [x.reshape(-1)[k].item() for x in inputs] if alike else [x.tolist() for x in inputs]
    return (
        f"{len(wrong)} of {len(pairs)} entries are off; the first is entry {k}, at {shown}: "
        f"got {pairs[k][0]}, by the tables {pairs[k][1]}"
    )
