"""Arguments that share memory show it in one form: a dtype, a conjugate, a negative. Where the
tensor whose views they are has another form, a write to one of them is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import runtime
from runtime import jit

PAIRS = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64)
FORMS: dict[str, Callable[[Any], Any]] = {
    "complex of pairs": lambda x: torch.view_as_complex(x * 1),
    "conjugate": lambda x: torch.view_as_complex(x * 1).conj(),
    "negative": lambda x: torch.view_as_complex(x * 1).conj().imag,
}


def scaled(a: Tensor, b: Tensor) -> Tensor:
    b.mul_(2)
    return a * 1


@pytest.mark.parametrize("form", FORMS)
def test_a_write_to_views_in_another_form_than_their_base_is_refused(form: str) -> None:
    x = runtime.wrap(PAIRS, requires_grad=True)
    a = FORMS[form](x)
    with pytest.raises(RuntimeError, match=r"They show a .* tensor as .* Pass one tensor and"):
        jit(scaled)(a, a.view(-1))


@pytest.mark.parametrize("form", FORMS)
def test_without_a_gradient_the_form_is_kept(form: str) -> None:
    a = FORMS[form](PAIRS)
    expected = (a * 2).clone()
    result = jit(scaled)(a, a.view(-1))
    assert torch.equal(result, expected)
    assert torch.equal(a, expected)


@pytest.mark.parametrize("view", [lambda x: x, lambda x: torch.view_as_complex(x).real])
def test_views_in_the_form_of_their_base_are_written(view: Callable[[Any], Any]) -> None:
    x = runtime.wrap(PAIRS, requires_grad=True)
    jitted, eager = view(x * 1), view(x * 1)
    results = [f(a, a.view(-1)) for f, a in ((jit(scaled), jitted), (scaled, eager))]
    assert torch.equal(*results)
    gradients = [runtime.autograd.grad(result.sum(), [x])[0] for result in results]
    assert torch.equal(*gradients)
