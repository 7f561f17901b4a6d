"""The helpers of the runtime's tests can fail: each one distinguishes a wrong program
from a right one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import dropin

from . import scenarios, view_scenarios
from .aot.capture.boundary_helpers import equal
from .autograd import duals, functions
from .dropin import compare
from .rules import agreement


class TestScenarios:
    def test_what_both_return_is_returned_as_plain_numbers(self) -> None:
        found = scenarios.same(
            lambda lib: {"sum": lib.tensor([1.0, 2.0], requires_grad=True).sum(), "both": (1, [2])}
        )
        assert found == {"sum": 3.0, "both": [1, [2]]}

    @pytest.mark.parametrize(
        "scenario",
        [
            lambda lib: lib.name,
            lambda lib: lib.tensor([1.0 if lib.name == "torch" else 2.0]),
            lambda lib: [1 / (lib.name == "torch")],
        ],
        ids=["texts", "numbers", "one error"],
    )
    def test_another_outcome_is_a_failure(self, scenario: Callable[[Any], Any]) -> None:
        with pytest.raises(AssertionError, match="ours:"):
            scenarios.same(scenario)

    def test_errors_are_the_same_by_type_and_fault(self) -> None:
        def scenario(lib: Any) -> None:
            raise ValueError(f"no such leaf. {lib.name} gives advice")

        assert scenarios.same(scenario) == ("ValueError", "no such leaf")


class TestViewScenarios:
    def test_the_leaves_of_both_libraries_hold_the_same(self) -> None:
        ours, theirs = view_scenarios.OURS.leaf(2, 3), view_scenarios.TORCH.leaf(2, 3)
        assert view_scenarios.shown(ours) == view_scenarios.shown(theirs)
        assert view_scenarios.shown(theirs) == ([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], torch.float64)

    @pytest.mark.parametrize(
        "scenario",
        [
            lambda lib: lib is view_scenarios.OURS,
            lambda lib: lib.leaf(2).to(
                torch.float32 if lib is view_scenarios.OURS else torch.float64
            ),
        ],
        ids=["values", "dtypes"],
    )
    def test_another_outcome_is_a_failure(self, scenario: Callable[[Any], Any]) -> None:
        with pytest.raises(AssertionError):
            view_scenarios.same(scenario)

    @pytest.mark.parametrize("fails", [False, True])
    def test_an_error_must_be_announced(self, fails: bool) -> None:
        def scenario(lib: Any) -> Any:
            return lib.leaf(2).add_(1) if fails else lib.leaf(2)

        view_scenarios.same(scenario, error=fails)
        with pytest.raises(AssertionError):
            view_scenarios.same(scenario, error=not fails)


class TestFunctions:
    def test_the_classes_of_both_libraries_do_the_same_by_default(self) -> None:
        functions.of_both(
            lambda base, autograd, x: autograd.grad(functions.made(base).apply(x).sum(), x)
        )

    @pytest.mark.parametrize(
        "program",
        [
            lambda base, autograd, x: autograd.__name__,
            lambda base, autograd, x: x.detach() * len(autograd.__name__),
            lambda base, autograd, x: [x.detach()] * (1 + (base is functions.BASES["runtime"])),
        ],
        ids=["texts", "numbers", "structures"],
    )
    def test_another_outcome_is_a_failure(self, program: Callable[[Any, Any, Any], Any]) -> None:
        with pytest.raises(AssertionError):
            functions.of_both(program)


def test_another_gradient_than_torchs_is_a_failure(both: Callable[..., None]) -> None:
    both(lambda x: x.sin().sum(), torch.ones(2))
    with pytest.raises(AssertionError):
        both(
            lambda x: (
                x
                if type(x) is torch.Tensor
                else x.detach() + x - x.detach() * 1 + 0 * x * x + x - x.detach()
            ).sum(),
            torch.ones(2),
        )


def test_torchs_own_dual_tensors_are_the_oracle_of_forward_mode() -> None:
    x, t = duals.rand(3), duals.rand(3, seed=1)
    primal, tangent = duals.through_torch(torch.sin, x, t)
    duals.close(primal, x.sin())
    duals.close(tangent, x.cos() * t)
    assert duals.through_torch(torch.sign, x, t)[0].equal(torch.ones(3, dtype=torch.float64))


class TestAgreement:
    @staticmethod
    def problem(reference: Callable[..., Any]) -> agreement.Problem:
        inputs = (
            torch.tensor([0.5, 1.5], dtype=torch.float64),
            torch.tensor([2.0, 0.25], dtype=torch.float64),
        )
        return agreement.Problem(
            lambda x, y: ((x * y).sin(),), inputs, (0, 1), "sin of a product", reference
        )

    @pytest.mark.parametrize("check", agreement.CHECKS)
    def test_every_check_finds_a_wrong_function(self, check: str) -> None:
        agreement.check_problem(self.problem(lambda x, y: ((x * y).sin(),)), [check])
        with pytest.raises(AssertionError, match="sin of a product"):
            agreement.check_problem(self.problem(lambda x, y: ((x * y).sin() * 1.001,)), [check])

    def test_a_pushforward_by_transposing_the_pullback_is_that_of_forward_mode(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def lacking(*args: Any) -> Any:
            raise NotImplementedError

        def f(x: torch.Tensor, y: torch.Tensor) -> agreement.Tensors:
            return (x * y).exp(), x.sum()

        inputs = self.problem(f).inputs
        tangents = (torch.ones(2, dtype=torch.float64), inputs[0])
        expected = agreement.engine_jvp(f, inputs, tangents)
        monkeypatch.setattr(agreement.forward_ad, "make_dual", lacking)
        for found, want in zip(agreement.engine_jvp(f, inputs, tangents), expected, strict=True):
            torch.testing.assert_close(found, want)

    def test_samples_are_spread_over_all_that_there_are(self) -> None:
        few, many = (
            agreement.problems("nn.functional.conv2d", torch.float64, limit=limit)
            for limit in (2, 100)
        )
        assert len(few) == 2 < len(many)
        assert few[0].what == many[0].what
        assert few[1].what not in (many[0].what, many[1].what)

    def test_an_unknown_op_is_an_error(self) -> None:
        with pytest.raises(LookupError, match="no OpInfo 'sinn'"):
            agreement.opinfo("sinn")


class TestCompare:
    @pytest.mark.parametrize(
        ("x", "y"),
        [
            (torch.ones(2), torch.ones(2, requires_grad=True)),
            (torch.ones(2), torch.ones(2, dtype=torch.float64)),
            (torch.ones(2), torch.ones(1, 2)),
            (torch.ones(2), torch.tensor([1.0, 1.1])),
            (torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2))),
            ([torch.ones(2)], {"a": torch.ones(2)}),
        ],
        ids=["requires_grad", "dtype", "shape", "values", "kind", "structure"],
    )
    def test_what_differs_is_described_differently(self, x: Any, y: Any) -> None:
        assert compare.described(x) == compare.described(x)
        assert compare.described(x) != compare.described(y)

    def test_the_random_state_after_a_program_counts(self) -> None:
        assert compare.outcome(lambda: None) == compare.outcome(lambda: None)
        assert compare.outcome(lambda: None) != compare.outcome(lambda: torch.rand(1) and None)

    def test_a_program_runs_under_the_drop_in_first_of_the_two(self) -> None:
        (ours, _), (theirs, _) = compare.both(dropin.is_installed)
        assert (ours, theirs) == (True, False)


def test_equal_of_the_boundary_tests_sees_values_and_numbers_of_results() -> None:
    assert equal((torch.ones(2), [1, None]), (torch.ones(2), [1, None]))
    assert (
        not equal(torch.ones(2), torch.zeros(2))
        and not equal((1,), (1, 2))
        and not equal([True], [False])
    )
