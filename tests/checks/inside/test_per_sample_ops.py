"""Every op that can be asked for answers about per-sample gradients is asked.

Inside: gen.checks.instances and the samples of a cell. Ops are not run here: a kernel with too few
integers may write outside of its memory, so samples are looked at before any call.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gen.audit.generated_modules import load_modules
from gen.checks.case import Case, Claim
from gen.checks.case.chosen_samples import chosen_samples
from gen.checks.instances import instances
from gen.outcomes import Unsuitable
from gen.reference import Loop
from tests.checks.cells import case
from tests.checks.gone import gone

_GENERATED = Path(__file__).parents[3] / "generated_tests"


def _has_a_batch_and_a_parameter(made: Case) -> bool:
    """Of real tensors. With too few integers, such as pivots, some kernels write outside of their
    memory, so such calls are not tried."""
    chosen, _ = chosen_samples(made.subject, Claim("per_sample", "loop"), made.axes)
    for turn, sample in enumerate(chosen):
        if not all(x.is_floating_point() for x in sample.inputs):
            continue
        try:
            if list(instances(sample, ("per_sample",), made.axes, turn == 0, 0, {}, False)):
                return True
        except (Unsuitable, RuntimeError):  # no batch, or the reference refuses one sample of it
            continue
    return False


NORMS = {"of": "norms", "run_on": "sample"}


@pytest.mark.filterwarnings("ignore")
def test_every_op_with_a_batch_and_a_parameter_is_asked() -> None:
    checks, lacking = load_modules(_GENERATED), gone()
    asked = {
        cell.op
        for check in checks
        if check.name == "per_sample_answers"
        for cell in check.cells.at("full")
    }
    others = {
        cell.op: check.family
        for check in checks
        if check.name == "vjp"
        for cell in check.cells.at("full")
        if cell.op not in lacking
    }
    missing = [
        op
        for op, family in others.items()
        if op not in asked
        and not op.startswith("torch.ops.")  # overloads of the others
        and family.name != "modules"  # tests/runtime/per_sample/zoo.py has whole models
        and _has_a_batch_and_a_parameter(case(op, target=Loop(), axes=NORMS, family=family))
    ]
    assert missing == [], "name them in matrix.yaml, under per_sample_answers"
