"""What gaussian_nll_loss asks of the elements of its variance is asked of a whole batch, and by
each call of a captured program."""

from typing import Any

import pytest
import torch
from torch.nn.functional import gaussian_nll_loss

from runtime import jit
from runtime.func import grad, vmap


def _arguments(bad: int | None = None) -> list[torch.Tensor]:
    x, target, variance = (
        torch.linspace(-1, 1, 12).view(4, 3),
        torch.zeros(4, 3),
        torch.linspace(0.5, 1, 12).view(4, 3).clone(),
    )
    if bad is not None:
        variance[bad, 1] = -1
    return [x, target, variance]


@pytest.mark.parametrize("captured", [False, True])
def test_each_loss_of_a_batch_is_that_of_its_element(captured: bool) -> None:
    def f(*args: torch.Tensor) -> Any:
        return vmap(gaussian_nll_loss)(*args), vmap(grad(gaussian_nll_loss))(*args)

    losses, gradients = (jit(f) if captured else f)(*_arguments())
    for loss, gradient, x, target, variance in zip(losses, gradients, *_arguments(), strict=True):
        x.requires_grad_()
        expected = gaussian_nll_loss(x, target, variance)
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(gradient, torch.autograd.grad(expected, x)[0])


@pytest.mark.parametrize("bad", [0, 3])
def test_a_negative_variance_of_one_element_is_refused_as_by_a_loop(bad: int) -> None:
    with pytest.raises(ValueError, match="var has negative entry"):
        vmap(gaussian_nll_loss)(*_arguments(bad))
    captured = jit(vmap(gaussian_nll_loss))
    captured(*_arguments())
    with pytest.raises(ValueError, match="var has negative entry"):
        captured(*_arguments(bad))
