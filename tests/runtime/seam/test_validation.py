"""Distributions with their usual validation, in a program that is captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch import distributions as dist

from runtime import jit
from runtime.aot import aot_function, nop

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


def test_a_branch_of_the_users_on_a_tensor_is_refused_as_before() -> None:
    compiled = jit(lambda x: x * 2 if torch._is_all_true(x > 0) else x)
    with pytest.raises(RuntimeError, match="asks for the elements of a tensor"):
        compiled(GOOD)


def test_torchs_methods_are_its_own_outside_of_captures() -> None:
    before = dist.Distribution.__init__, dist.Geometric.__init__
    jit(PROGRAMS["a scale"])(GOOD)
    assert before == (dist.Distribution.__init__, dist.Geometric.__init__)
