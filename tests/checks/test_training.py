"""Training: each word of the axes has a step or an optimizer, right targets pass, and each kind of
mistake in a step is seen and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gen.checks import Case, Cell, Family
from gen.language.axes import AXES, Axes
from gen.outcomes import Lacking, Mismatch, Vacuous
from gen.reference import Loop
from gen.targets import load
from gen.targets.runtime_target import RuntimeTarget

Tensor = torch.Tensor
MODULES = {
    f"programs.third_party.modules.{name}": {
        "call": f"programs.third_party.modules:{name}",
        "samples": f"programs.third_party.modules:samples_of_{name}",
    }
    for name in ("linear", "layer_norm")
}


def case(target: Any, op: str = "linear", **axes: str) -> Case:
    name = op if op.startswith("torch.") else f"programs.third_party.modules.{op}"
    cell = Cell(name, "float64", Axes.varying(axes), "full", ())
    return Case(cell, "training", Family("tests", MODULES), target)


def train(target: Any, op: str = "linear", pipeline: str = "training", **axes: str) -> int:
    made = case(target, op, **axes)
    made.assert_same(pipeline, against="upstream")
    return made.compared


@pytest.mark.parametrize("optimizer", AXES["optimizer"])
def test_each_word_names_an_optimizer(optimizer: str) -> None:
    assert train(load("runtime"), optimizer=optimizer, trains="eagerly") == 1


@pytest.mark.parametrize("step", AXES["step"])
def test_each_word_names_a_step(step: str) -> None:
    assert train(load("runtime"), optimizer="momentum", step=step, trains="jitted") == 1


@pytest.mark.parametrize("trains", AXES["trains"])
@pytest.mark.parametrize("step", ["plain", "scaled", "resized", "stateful"])
def test_a_right_target_passes(step: str, trains: str) -> None:
    assert train(load("runtime"), "layer_norm", step=step, optimizer="momentum", trains=trains) == 1


def test_a_model_may_be_a_pipeline() -> None:
    assert (
        train(load("runtime"), pipeline="training . vmap", optimizer="adam", trains="jitted") == 1
    )


def test_a_model_of_one_input_learns_that_input() -> None:
    assert train(load("runtime"), "torch.sin", optimizer="momentum", trains="eagerly") == 1


class _Forgetful(RuntimeTarget):
    """Has no state of the optimizer from step to step."""

    def training(
        self, train: Callable[..., Any], parameters: Sequence[Tensor], *, session: bool
    ) -> tuple[Tensor, ...]:
        handle = register_optimizer_step_pre_hook(
            lambda optimizer, args, kwargs: optimizer.state.clear()
        )
        try:
            return super().training(train, parameters, session=session)
        finally:
            handle.remove()


def test_a_step_that_forgets_momentum_is_seen() -> None:
    with pytest.raises(
        Mismatch, match=r"\(parameter 0 after step 1\) of 40, float64\[2, 3\]: largest error"
    ):
        train(_Forgetful(), optimizer="momentum", trains="eagerly")
    with pytest.raises(Mismatch, match=r"\(parameter 0 after step 1\)"):
        train(_Forgetful(), optimizer="adam", trains="eagerly")


class _Changed(RuntimeTarget):
    """Its jit is right but for what `after` does to the leaves and results of a call, by the
    number of the call."""

    def __init__(self, after: Callable[[int, Sequence[Tensor], Any], Any]) -> None:
        self.after = after
        self.leaves: Sequence[Tensor] = ()

    def training(
        self, train: Callable[..., Any], parameters: Sequence[Tensor], *, session: bool
    ) -> tuple[Tensor, ...]:
        def watched(leaves: Sequence[Tensor]) -> Any:
            self.leaves = leaves
            return train(leaves)

        return super().training(watched, parameters, session=session)

    def jit(self, f: Callable[..., Any], *, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        run = super().jit(f, donate=donate)
        calls: list[None] = []

        def g(*args: Any) -> Any:
            found = self.after(len(calls), self.leaves, run(*args))
            calls.append(None)
            return found

        return g


def _without_a_gradient(k: int, leaves: Sequence[Tensor], found: Any) -> Any:
    leaves[1].grad = None
    return found


def _off_by_a_little(k: int, leaves: Sequence[Tensor], found: Any) -> Any:
    with torch.no_grad():
        leaves[0][0, 0] += 1e-6 if k == 2 else 0.0
    return found


def _frozen(k: int, leaves: Sequence[Tensor], found: Any) -> Any:
    leaves[0].requires_grad_(k < 3)
    return found


FAULTS = {
    "a gradient that is not assigned": (
        _without_a_gradient,
        r"\(\.grad of parameter 1 after step 0\) has shape \[0\], expected \[2\]",
    ),
    "a parameter off by 1e-6": (
        _off_by_a_little,
        (
            r"\(parameter 0 after step 2\) of 40, float64\[2, 3\]: "
            r"largest error 1e-06 at index \[0, 0\]"
        ),
    ),
    "a frozen parameter": (_frozen, r"\(flag of parameter 0 after step 3\)"),
    "the loss of another call": (
        lambda k, leaves, found: (found[0] * (1 + 1e-6 * k),),
        r"\(result 0 of step 1\)",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_mistake_of_a_call_is_seen_and_named(fault: str) -> None:
    after, message = FAULTS[fault]
    with pytest.raises(Mismatch, match=message):
        train(_Changed(after), optimizer="momentum", trains="jitted")


def test_the_same_calls_without_a_mistake_pass() -> None:
    assert (
        train(_Changed(lambda k, leaves, found: found), optimizer="momentum", trains="jitted") == 1
    )


class _Eager(RuntimeTarget):
    """Its jit captures nothing, so torch's plain engine would be compared with itself."""

    def jit(self, f: Callable[..., Any], *, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        return f


class _Greedless(RuntimeTarget):
    """Takes no memory of donated arguments."""

    def jit(self, f: Callable[..., Any], *, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        return super().jit(f)


def test_a_step_that_is_not_captured_is_no_jitted_one() -> None:
    with pytest.raises(Mismatch, match="the last of 4 steps ran the code of the step"):
        train(_Eager(), optimizer="momentum", trains="jitted")


def test_memory_that_is_not_taken_is_seen() -> None:
    with pytest.raises(
        Mismatch,
        match=r"\(memory of donated parameter 0 after step 0\) has shape \[2, 3\], expected \[0\]",
    ):
        train(_Greedless(), optimizer="momentum", step="donated", trains="jitted")
    assert train(load("runtime"), optimizer="momentum", step="donated", trains="jitted") == 1


def test_training_that_changes_nothing_is_vacuous() -> None:
    with pytest.raises(Vacuous, match=r"step 1 of training\(torch.floor\) changes nothing"):
        train(load("runtime"), "torch.floor", optimizer="momentum", trains="eagerly")


def test_a_step_that_needs_two_parameters_says_so() -> None:
    with pytest.raises(Vacuous, match="one parameter makes no two groups"):
        train(load("runtime"), "torch.sin", optimizer="momentum", step="groups", trains="eagerly")


@pytest.mark.parametrize("target", ["torch", "aot_eager"])
def test_targets_that_train_as_the_reference_does_lack_it(target: str) -> None:
    with pytest.raises(Lacking, match="lacks training"):
        train(load(target), optimizer="momentum", trains="eagerly")


def test_the_reference_takes_the_memory_of_donated_lists() -> None:
    given, kept = [torch.ones(2)], [torch.ones(2)]
    (total,) = Loop().jit(lambda xs, ys: (xs[0] + ys[0],), donate=(0,))(given, kept)
    assert total.tolist() == [2.0, 2.0] and given[0].shape == (0,) and kept[0].shape == (2,)
