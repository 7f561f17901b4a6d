"""Answers about per-sample gradients: right ones pass in every layout, wrong ones fail, and every
op that can be asked is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gen.audit.generated_modules import load_modules
from gen.audit.planted import ANSWERS
from gen.checks import Case, Cell, Family
from gen.checks.instances import instances
from gen.language.axes import Axes
from gen.language.pipeline import parse
from gen.outcomes import Lacking, Mismatch, Unsuitable
from gen.reference import Loop
from gen.targets import load
from gen.targets.runtime_target import RuntimeTarget
from gen.targets.torch_target import TorchTarget
from tests.checks.gone import gone

_GENERATED = Path(__file__).parents[2] / "generated_tests"
Answer = tuple[torch.Tensor, ...]


def case(op: str, target: Any, family: Family | None = None, **axes: str) -> Case:
    cell = Cell(op, "float64", Axes.varying(axes), "full", ())
    return Case(cell, "per_sample_answers", family or Family("tests", {}), target)


@pytest.mark.parametrize("cotangents", ["contiguous", "transposed", "noncontiguous", "expanded"])
@pytest.mark.parametrize("of", ANSWERS)
def test_right_answers_pass(of: str, cotangents: str) -> None:
    for run_on in ("batch", "sample"):
        made = case(
            "torch.nn.functional.linear",
            load("runtime"),
            of=of,
            cotangents=cotangents,
            run_on=run_on,
        )
        made.assert_same("per_sample", against="loop")
        assert made.compared


class _Wrong(RuntimeTarget):
    """Answers of the reference, each with one mistake."""

    def per_sample_answer(
        self, f: Any, batch: Any, params: Any, *, of: str, given: Any, each: bool
    ) -> Answer:
        if of == "clipped_sum":  # too large a bound
            return Loop().per_sample_answer(f, batch, params, of=of, given=1.01 * given, each=each)
        found = Loop().per_sample_answer(f, batch, params, of=of, given=given, each=each)
        return tuple(x.flip(0) for x in found)  # the answers of other samples


@pytest.mark.parametrize("of", ANSWERS)
def test_wrong_answers_fail(of: str) -> None:
    with pytest.raises(Mismatch):
        case("torch.nn.functional.linear", _Wrong(), of=of).assert_same(
            "per_sample", against="loop"
        )


class _Half(RuntimeTarget):
    """Projects by a matrix of other size, which is as linear."""

    def per_sample_answer(
        self, f: Any, batch: Any, params: Any, *, of: str, given: Any, each: bool
    ) -> Answer:
        return tuple(
            x / 2
            for x in super().per_sample_answer(f, batch, params, of=of, given=given, each=each)
        )


def test_a_projection_of_another_size_fails() -> None:
    with pytest.raises(Mismatch):
        case("torch.nn.functional.linear", _Half(), of="project").assert_same(
            "per_sample", against="loop"
        )


def test_a_target_without_answers_is_lacking() -> None:
    with pytest.raises(Lacking, match="target torch lacks per_sample_answer"):
        case("torch.nn.functional.linear", TorchTarget(), of="norms").assert_same(
            "per_sample", against="loop"
        )


def _has_a_batch_and_a_parameter(made: Case) -> bool:
    """Of real tensors. With too few integers, such as pivots, some kernels write outside of their
    memory, so such calls are not tried."""
    chosen, _ = made._samples(parse("per_sample"), ("loop",), made.axes)
    for turn, sample in enumerate(chosen):
        if not all(x.is_floating_point() for x in sample.inputs):
            continue
        try:
            if list(instances(sample, ("per_sample",), made.axes, turn == 0, 0, {}, False)):
                return True
        except (Unsuitable, RuntimeError):  # no batch, or the reference refuses one sample of it
            continue
    return False


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
        and _has_a_batch_and_a_parameter(case(op, Loop(), family, of="norms", run_on="sample"))
    ]
    assert missing == [], "name them in matrix.yaml, under per_sample_answers"
