"""Arguments of classes of the user: those whose results would be of the class are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import runtime.dropin
from runtime import jit


class Length(Tensor):
    """Leaves its calls to torch, which gives results the same class."""


class Weight(nn.Parameter):
    """Gives plain tensors, as each parameter does."""


def program(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize("is_installed", [False, True])
def test_an_argument_whose_results_would_be_of_its_class_is_refused(is_installed: bool) -> None:
    with runtime.dropin.installed() if is_installed else torch.enable_grad():
        lengths = torch.ones(3).as_subclass(Length)
        with pytest.raises(
            RuntimeError, match=r"a Length, .* Pass x\.as_subclass\(torch\.Tensor\)"
        ):
            jit(program)(lengths)
        plain = lengths.as_subclass(torch.Tensor)
        assert jit(program)(plain).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("is_installed", "requires_grad"), [(False, False), (True, False), (True, True)]
)
def test_a_program_of_plain_tensors_is_not_run_for_others(
    is_installed: bool, requires_grad: bool
) -> None:
    with runtime.dropin.installed() if is_installed else torch.enable_grad():
        jitted = jit(program)
        for _ in range(3):
            jitted((torch.ones(3, requires_grad=requires_grad) * 1).detach_())
            jitted(torch.ones(3, requires_grad=requires_grad) * 1)
        x = torch.ones(3, requires_grad=requires_grad) * 1
        with pytest.raises(RuntimeError, match="a Length"):
            jitted(x.as_subclass(Length))


def test_a_class_of_parameters_is_taken() -> None:
    result = jit(program)(Weight(torch.ones(3)))
    assert type(result) is not Weight
    assert result.tolist() == [2.0, 2.0, 2.0]
