"""The gallery of `jit`: each program gives jitted what it gives as it is, and what
torch.func gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from examples import jitted
from runtime import jit


@pytest.mark.parametrize("program", jitted.GALLERY, ids=lambda f: f.__name__)
def test_a_program_of_the_gallery(
    program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = jitted.GALLERY[program]
    compiled = jit(program)
    found = [compiled(*args) for _ in range(2)]
    plain = program(*args)
    monkeypatch.setattr(jitted, "grad", torch.func.grad)
    monkeypatch.setattr(jitted, "vmap", torch.func.vmap)
    # torch.func.jvp fails in mse_loss ("ZeroTensors are immutable"); a Hessian is symmetric
    monkeypatch.setattr(
        jitted, "jvp", lambda f, primals, tangents: (None, torch.func.vjp(f, *primals)[1](tangents))
    )
    expected = pytree.tree_leaves(program(*args))
    for result in (*found, plain):
        leaves = pytree.tree_leaves(result)
        assert len(leaves) == len(expected)
        for a, b in zip(leaves, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_training_step_leaves_the_weights_of_eager_steps() -> None:
    x, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])

    def trained(jits: bool) -> list[torch.Tensor]:
        training = jitted.Training()
        step = jit(training.step) if jits else training.step
        losses = [step(x, labels) for _ in range(5)]
        return [*losses, *(p.detach() for p in training.model.parameters())]

    for a, b in zip(trained(True), trained(False), strict=True):
        assert torch.equal(a, b)
