"""Distributions with their usual validation, in a program that is captured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as dist

from runtime import jit
from runtime.aot import aot_function, inductor, nop

GOOD, BAD = torch.tensor([0.5, 1.5]), torch.tensor([0.5, -1.0])
PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "a scale": lambda x: dist.Normal(0.0, x).log_prob(x),
    "a sample": lambda x: dist.Exponential(torch.ones(2)).log_prob(x),
    "probabilities": lambda x: dist.Categorical(probs=x).log_prob(torch.tensor(1)),
    "a matrix": lambda x: dist.MultivariateNormal(torch.zeros(2), torch.diag(x)).log_prob(x),
    "a part of a mixture": lambda x: dist.MixtureSameFamily(
        dist.Categorical(torch.ones(2)), dist.Normal(0.0, x)
    ).log_prob(x),
    "a base": lambda x: dist.LogNormal(0.0, x).log_prob(x),
    "a domain of its own": lambda x: dist.Geometric(x / 3).entropy(),
    "another such domain": lambda x: dist.ContinuousBernoulli(x / 3, validate_args=True).mean,
}


@pytest.fixture(autouse=True)
def validating(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo turns the validation off for the process that imports it."""
    monkeypatch.setattr(dist.Distribution, "_validate_args", True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_call_validates(name: str) -> None:
    program = PROGRAMS[name]
    compiled = jit(program)
    for _ in range(2):
        torch.testing.assert_close(compiled(GOOD), program(GOOD))
        with pytest.raises(ValueError, match=r"invalid values|must be in") as expected:
            program(BAD)
        with pytest.raises(ValueError) as caught:
            compiled(BAD)
        assert str(caught.value).startswith(str(expected.value))  # and the user's line
    assert len(jit.explain(compiled).programs) == 1


def test_a_graph_alone_raises_where_eager_mode_would() -> None:
    program = aot_function(PROGRAMS["a scale"], nop)
    torch.testing.assert_close(program(GOOD), PROGRAMS["a scale"](GOOD))
    with pytest.raises(RuntimeError, match=r"not in its domain.*\n?.*test_validation"):
        program(BAD)


def test_a_distribution_without_validation_asks_nothing() -> None:
    program = jit(lambda x: dist.Normal(0.0, x, validate_args=False).log_prob(GOOD))
    program(GOOD)
    assert program(BAD).isnan().tolist() == [False, True]


def test_the_gradient_of_a_validated_sample_is_that_of_eager_mode() -> None:
    found = []
    for f in (PROGRAMS["a scale"], jit(PROGRAMS["a scale"])):
        x = GOOD.clone().requires_grad_()
        f(x).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)


def test_a_branch_of_the_users_has_two_sides() -> None:
    compiled = jit(lambda x: x * 2 if torch._is_all_true(x > 0) else x)
    for x in (GOOD, -GOOD, GOOD):
        torch.testing.assert_close(compiled(x), torch.where((x > 0).all(), x * 2, x))


class Notes(dist.constraints.Constraint):
    """A constraint of a user's, which keeps what it has asked."""

    total = torch.zeros(())

    def check(self, value: Tensor) -> Tensor:
        is_valid = torch.all(value > 0)
        self.total = is_valid + is_valid  # as tensors, one `or` the other
        return value > 0


def test_a_constraint_of_the_users_computes_with_tensors() -> None:
    notes = Notes()

    class Scale(dist.Distribution):
        arg_constraints = {"scale": notes}  # noqa: RUF012

        def __init__(self, scale: Tensor) -> None:
            self.scale = scale
            super().__init__(scale.shape)

    def program(x: Tensor) -> Tensor:
        Scale(x)
        return x * notes.total

    compiled = jit(program)
    for _ in range(3):
        torch.testing.assert_close(compiled(GOOD), program(GOOD))
        assert notes.total.dtype is torch.bool


def test_a_program_that_catches_the_error_has_written_what_it_writes_in_eager_mode() -> None:
    def make() -> tuple[Callable[[Tensor], Tensor], list[int], Tensor]:
        total, calls = torch.zeros(2), [0]

        def program(x: Tensor) -> Tensor:
            total.add_(x)
            calls[0] += 1
            try:
                y = PROGRAMS["a scale"](x)
            except ValueError:
                y = -x
            total.mul_(2)
            return y

        return program, calls, total

    (eager, eager_calls, expected), (f, calls, total) = make(), make()
    compiled = jit(f)
    with pytest.warns(UserWarning, match="in its graph, and not in eager mode"):
        for x in (GOOD, GOOD * 2, BAD, GOOD):
            torch.testing.assert_close(compiled(x), eager(x))
            torch.testing.assert_close(total, expected)
            assert calls == eager_calls


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Inductor's own
def test_a_graph_of_inductor_writes_nothing_before_it_has_asked() -> None:
    total = torch.zeros(2)

    def program(x: Tensor) -> Tensor:
        total.add_(1)
        return PROGRAMS["a scale"](x)

    compiled = jit(program, compiler=partial(inductor, isolated=False))
    for x, expected in ((GOOD, 1), (BAD, 2)):
        with nullcontext() if x is GOOD else pytest.raises(ValueError, match="invalid"):
            compiled(x)
        assert total.tolist() == [expected] * 2


def test_a_training_step_that_fails_leaves_the_gradients_of_the_one_before() -> None:
    def make() -> tuple[Callable[[Tensor], Tensor], nn.Parameter]:
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], 0.1)

        def step(x: Tensor) -> Tensor:
            loss = -dist.Normal(weight, x).log_prob(x).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            detached: Tensor = loss.detach()
            return detached

        return step, weight

    (eager, expected), (f, weight) = make(), make()
    compiled = jit(f)
    for x in (GOOD, BAD, GOOD):
        for step in (eager, compiled):
            with nullcontext() if x is GOOD else pytest.raises(ValueError, match="invalid"):
                step(x)
        torch.testing.assert_close(weight, expected)
        torch.testing.assert_close(weight.grad, expected.grad)


@pytest.mark.parametrize(
    "transformed",
    [
        torch.func.vmap(PROGRAMS["a scale"]),
        torch.func.grad(lambda x: PROGRAMS["a scale"](x).sum()),
    ],
)
def test_a_distribution_below_a_transform_is_validated(
    transformed: Callable[[Tensor], Tensor],
) -> None:
    compiled = jit(lambda x: transformed(x))
    for _ in range(2):
        torch.testing.assert_close(compiled(GOOD), transformed(GOOD))
        with pytest.raises(Exception) as expected:
            transformed(BAD)
        with pytest.raises(expected.type):
            compiled(BAD)


def test_the_constraints_of_a_class_of_torchs_are_state(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = jit(PROGRAMS["a scale"])
    compiled(GOOD)
    narrow = {"scale": dist.constraints.interval(0.0, 1.0)}
    monkeypatch.setattr(dist.Normal, "arg_constraints", narrow)
    with pytest.raises(ValueError, match="invalid values"):
        compiled(GOOD)


def test_torchs_methods_are_its_own_outside_of_captures() -> None:
    before = dist.Distribution.__init__, dist.Geometric.__init__
    jit(PROGRAMS["a scale"])(GOOD)
    assert before == (dist.Distribution.__init__, dist.Geometric.__init__)
