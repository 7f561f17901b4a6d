"""Record right calls of the kernels of torch's dispatcher while the samples of the matrix run, and
write a row for each op:

    python -m tests.kernel_calls.record
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from gen.checks.kernels import RIGHT_CALLS
from gen.checks.kernels.dying_calls import Death, outcomes_of
from gen.plan.matrix_ops import Op
from gen.plan.matrix_plan import load_plan
from gen.samples.samples import Sample, candidates, make_op
from gen.torch_private.aten_overloads import every_overload, has_kernel
from tests.kernel_calls.right_calls import Calls, Recording, accepted, with_guesses

ROOT = Path(__file__).parent.parent.parent
ROWS = ROOT / "matrix/kernels.yaml"
_SAMPLES = 4  # of a row, from the first to the last
_LARGEST = 1500  # elements of a sample
_SECONDS = 40.0  # of a processor for the samples of a row
_DTYPES = (("float32", "float64", "int64", "bool"), ("complex64", "complex128"))
_HEAD = """\
# yaml-language-server: $schema=../included.schema.json
#
# Kernels of torch's dispatcher, called by their own names with wrong arguments. A row has all
# overloads of its name, whose right calls stand in gen/checks/kernels/right_calls.jsonl.
# This file is written together with these calls; matrix/misuse.yaml has the check.

families:
  kernels:
    title: Kernels of torch's dispatcher by their own names
    dtypes: [float32]
    checks: [wrong_arguments]
    ops:
"""
_ROW = (
    "      - {{op: torch.ops.aten.{name}, call: gen.checks.kernels.recorded, samples: {samples}}}\n"
)


def main() -> None:
    """Record, and write the calls and the rows."""
    recording = _recorded(load_plan(ROOT / "matrix.yaml").ops)
    right = with_guesses(accepted(recording))
    lines = [json.dumps({name: right[name]}) for name in sorted(right)]
    RIGHT_CALLS.write_text("\n".join(lines) + "\n")
    ROWS.write_text(rows(sorted(right)))
    due = [name for name in every_overload() if has_kernel(name)]
    print(f"right calls of {len(right)} of {len(due)} overloads with a kernel for the CPU")


def rows(names: Sequence[str]) -> str:
    """Return the file with a row for each op of which an overload has right calls."""
    bases = dict.fromkeys(name.removeprefix("aten::").partition(".")[0] for name in names)
    samples = ["&one [{args: [{shape: [1]}]}]", *["*one"] * len(bases)]
    lines = [_ROW.format(name=base, samples=one) for base, one in zip(bases, samples, strict=False)]
    return _HEAD + "".join(lines)


def _recorded(ops: Sequence[Op]) -> Recording:
    """Return what the samples of rows call. A row that ends its process is left out."""
    recording = Recording()

    def record(number: int) -> bytes:
        """Return what the samples of one row call, as JSON."""
        of_row = Recording()
        for sample in _samples(ops[number]):
            of_row.of_sample(sample)
        return json.dumps(of_row.calls).encode()

    for outcome in outcomes_of(len(ops), record, seconds=_SECONDS):
        if not isinstance(outcome, Death):
            calls: Calls = json.loads(outcome)
            recording.merge(calls)
    return recording


def _samples(op: Op) -> list[Sample]:
    """Return a few small samples of a row, real and complex ones."""
    found: list[Sample] = []
    for names in _DTYPES:
        dtypes = [name for name in names if name in op.dtypes]
        if dtypes and op.family != "kernels":
            found += _of_dtype(op, dtypes[0])
    return found


def _of_dtype(op: Op, dtype: str) -> list[Sample]:
    """Return a few small samples of a row in a dtype. None if there are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            pool = candidates(make_op(op.name, op.row), op.row, getattr(torch, dtype), "cpu", False)
        except Exception:  # what a row lacks is for its own cells to say
            return []
    small = [sample for sample in pool if sum(x.numel() for x in sample.inputs) <= _LARGEST]
    return small[:: max(1, len(small) // _SAMPLES)][:_SAMPLES]


if __name__ == "__main__":
    main()
