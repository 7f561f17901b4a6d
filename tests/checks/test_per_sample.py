"""Answers about per-sample gradients: right ones pass in every layout, and wrong ones
fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gen.checks import Case
from gen.language.axes import AXES
from gen.outcomes import Lacking, Mismatch
from gen.reference import Loop
from gen.targets import load
from gen.targets.runtime_target import RuntimeTarget
from gen.targets.torch_target import TorchTarget
from tests.checks import cells

Answer = tuple[torch.Tensor, ...]


def case(op: str, target: Any, **axes: str) -> Case:
    return cells.case(op, target=target, axes=axes)


@pytest.mark.parametrize("cotangents", ["contiguous", "transposed", "noncontiguous", "expanded"])
@pytest.mark.parametrize("of", AXES["of"])
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


@pytest.mark.parametrize("of", AXES["of"])
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
