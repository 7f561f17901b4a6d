"""Lazy conjugation and negation inside transforms: values have the same flags as torch's, and
nothing is conjugated twice."""

from typing import Any

import pytest
import torch

from runtime.func import functionalize, grad, jvp, linearize, vmap

X = torch.randn(2, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
Y = torch.randn(2, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
TRANSFORMS: dict[str, Any] = {
    "vmap": lambda f: vmap(f)(X),
    "vmap of vmap": lambda f: vmap(vmap(f))(X[None]),
    "grad": lambda f: grad(f)(X[0]),
    "grad of grad": lambda f: grad(lambda x: grad(f)(x).abs().sum())(X[0]),
    "vmap of grad": lambda f: vmap(grad(f))(X),
    "grad of vmap": lambda f: grad(lambda x: vmap(f)(x).sum())(X),
    "jvp": lambda f: jvp(f, (X[0],), (Y[0],)),
    "vmap of jvp": lambda f: vmap(lambda x, y: jvp(f, (x,), (y,)))(X, Y),
    "jvp of vmap": lambda f: jvp(vmap(f), (X,), (Y,)),
    "linearize": lambda f: linearize(f, X[0])[1](Y[0]),
    "functionalize": lambda f: functionalize(f)(X[0]),
    "vmap of functionalize": lambda f: vmap(functionalize(f))(X),
}


def _bits(x: Any) -> list[bool]:
    """What is lazy of what is made from ``x``."""
    c = x.conj()
    conjugates = [
        x,
        c,
        c.conj(),
        c[0],
        c.view(-1),
        c.resolve_conj(),
        c.clone(),
        c * 1,
        c.sin(),
        torch.conj_physical(c),
    ]
    parts = [
        x.real,
        x.imag,
        c.real,
        c.imag,
        c.imag.neg(),
        c.imag.resolve_neg(),
        torch._neg_view(x.real),
        torch._neg_view(x.real).clone(),
    ]
    return (
        [v.is_conj() for v in conjugates]
        + [v.is_neg() for v in parts]
        + [torch.is_conj(c), torch.is_neg(c.imag)]
    )


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
@pytest.mark.parametrize("given", [lambda x: x, torch.conj], ids=["plain", "conjugated"])
def test_values_show_their_lazy_bits(transform: Any, given: Any) -> None:
    seen = []

    def f(x: Any) -> Any:
        seen.append(_bits(given(x)))
        return x.abs().sum()

    transform(f)
    assert seen and all(bits == _bits(given(X[0])) for bits in seen)


def _formula(x: Any) -> Any:
    c = x.conj()
    lazy = (
        (c * x).sum()
        + (c.imag * x.real).sum()
        + 2 * torch.conj_physical(c).sum()
        + 3 * c.resolve_conj().sum()
        + c.view(-1).conj().sum()
    )
    more = (
        (c.clone() * 2j).sum()
        + torch.view_as_real(c.resolve_conj()).pow(2).sum()
        + c.dot(x)
        + torch.outer(c, x).mH.sum()
    )
    written = c.clone()
    written[1] = c[0]
    view = written.conj()
    view.mul_(2 + 1j)
    return ((lazy + more + written.sum()) * (1 + 0.5j)).real


def _eager(x: Any) -> Any:
    """The same with every conjugate computed at once."""
    c = torch.complex(x.real, -x.imag)
    lazy = (c * x).sum() + (-x.imag * x.real).sum() + 2 * x.sum() + 3 * c.sum() + x.sum()
    more = (
        (c * 2j).sum()
        + x.real.pow(2).sum()
        + x.imag.pow(2).sum()
        + (c * x).sum()
        + (x[:, None] * c[None, :]).sum()
    )
    written = torch.stack([c[0], c[0], c[2]]) * (2 - 1j)
    return ((lazy + more + written.sum()) * (1 + 0.5j)).real


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_nothing_is_conjugated_twice(transform: Any) -> None:
    torch.testing.assert_close(transform(_formula), transform(_eager))


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_a_view_of_pairs_needs_memory_that_is_conjugated(transform: Any) -> None:
    """As in torch: the view would show the other half of the numbers."""
    with pytest.raises(
        RuntimeError, match="view_as_real doesn't work on unresolved conjugated tensors"
    ):
        transform(lambda x: torch.view_as_real(x.conj()).sum())
    torch.testing.assert_close(
        transform(lambda x: torch.view_as_real(x.conj().resolve_conj()).sum()),
        transform(lambda x: x.real.sum() - x.imag.sum()),
    )
