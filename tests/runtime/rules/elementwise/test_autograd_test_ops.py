"""The ops with which ATen tests registries of derivatives have the derivatives that torch's
registry gives them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import unwrap, wrap
from runtime.autograd import grad
from runtime.func import jvp, vmap

OPS: dict[str, Callable[[Any], Any]] = {
    "an entry for each dispatch key": torch._test_autograd_multiple_dispatch,
    "an entry for nested tensors alone": lambda x: torch._test_autograd_multiple_dispatch(x, True),
    "a view": torch._test_autograd_multiple_dispatch_view,
    "the copy of a view": torch._test_autograd_multiple_dispatch_view_copy,
}


@pytest.mark.parametrize("name", OPS)
def test_the_gradient_is_that_of_the_registry(name: str) -> None:
    op, x = OPS[name], torch.randn(2, 3)
    g = torch.randn(op(x).shape)
    leaf, mine = x.clone().requires_grad_(), wrap(x, True)
    theirs, ours = op(leaf), op(mine)
    assert (ours.shape, ours._is_view()) == (theirs.shape, theirs._is_view())
    torch.testing.assert_close(
        unwrap(grad(ours, mine, g)[0]), torch.autograd.grad(theirs, leaf, g)[0]
    )


@pytest.mark.parametrize("name", OPS)
def test_the_tangent_is_the_op_of_the_tangent(name: str) -> None:
    op, x, t = OPS[name], torch.randn(2, 3), torch.randn(2, 3)
    torch.testing.assert_close(jvp(op, (x,), (t,)), (op(x), op(t)))


@pytest.mark.parametrize("name", OPS)
def test_a_batch_is_the_loop(name: str) -> None:
    op, x = OPS[name], torch.randn(4, 2, 3)
    torch.testing.assert_close(vmap(op)(x), torch.stack([op(e) for e in x]))


def test_a_warning_from_a_rule_reaches_whoever_asks_for_the_gradient() -> None:
    x = wrap(torch.zeros(()), True)
    y = torch.ops.aten._test_warn_in_autograd(x)
    with pytest.warns(UserWarning, match="Warn from backward"):
        (g,) = grad(y, x)
    assert g.item() == 1
