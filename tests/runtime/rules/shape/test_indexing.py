"""Gathers, scatters, masks and advanced indexing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime import autograd, func
from runtime.errors import BatchingError
from tests.runtime.rules.agreement import Problem, check, check_problem, problems

OPS = (
    "index_select",
    "index_add",
    "index_copy",
    "index_fill",
    "gather",
    "scatter",
    "scatter_add",
    "take",
    "put",
    "masked_fill",
    "masked_scatter",
    "take_along_dim",
    "where",
)


@pytest.mark.parametrize("dtype", (torch.float64, torch.complex128))
@pytest.mark.parametrize("name", OPS)
def test_agrees_with_the_engine(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, limit=3)


@pytest.mark.parametrize("mode", ("sum", "mean", "amax", "amin"))
def test_scatter_reduce(mode: str) -> None:
    check("scatter_reduce", torch.float64, mode, limit=3)


@pytest.mark.parametrize("dtype", (torch.float64, torch.complex128))
def test_index_put(dtype: torch.dtype) -> None:
    """Samples with a mask are left out: a batch of masks is refused, see below."""
    for p in problems("index_put", dtype, limit=6):
        if not any(x.dtype is torch.bool for x in p.inputs):
            check_problem(p)


@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta:UserWarning")
@pytest.mark.parametrize("mode", ("mean", "amax", "amin", "prod"))
def test_index_reduce(mode: str) -> None:
    check(
        "index_reduce", torch.float64, mode, limit=3, checks=("vjp", "vmap", "vmap_vjp", "vjp_vmap")
    )


def test_products_scattered_together_have_the_tangent_that_differences_show() -> None:
    """torch's own forward mode of ``scatter_reduce(prod)`` gives zero here, so this one is compared
    with central differences."""
    for p in problems("scatter_reduce", torch.float64, "prod", 3):
        chosen = tuple(p.inputs[i] for i in p.differentiable)
        directions = tuple(torch.randn_like(x) for x in chosen)

        def f(*floating: torch.Tensor, p: Problem = p) -> torch.Tensor:
            values = iter(floating)
            return p.f(
                *(next(values) if i in p.differentiable else x for i, x in enumerate(p.inputs))
            )[0]

        step = 1e-6
        ahead = f(*(x + step * d for x, d in zip(chosen, directions, strict=True)))
        behind = f(*(x - step * d for x, d in zip(chosen, directions, strict=True)))
        torch.testing.assert_close(
            func.jvp(f, chosen, directions)[1], (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-5
        )


@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta:UserWarning")
@pytest.mark.parametrize("include_self", (True, False))
@pytest.mark.parametrize("source", ([0.0, 0.0], [0.0, 0.0, 0.0, 2.0], [1.5, 0.0, 0.0, 2.0, 3.0]))
@pytest.mark.parametrize("reduce", (torch.scatter_reduce, torch.index_reduce))
def test_products_that_meet_several_zeros_have_derivatives_of_every_order(
    reduce: Any, source: list[float], include_self: bool
) -> None:
    """torch refuses the second derivative where a source is zero, so central
    differences are the oracle."""
    x = runtime.wrap(torch.tensor([1.3, 0.0], dtype=torch.float64), True)
    s = runtime.wrap(torch.tensor(source, dtype=torch.float64), True)
    index = torch.tensor([0, 0, 0, 1, 0])[: len(source)]

    def f(x: Any, s: Any) -> Any:
        return reduce(x, 0, index, s, "prod", include_self=include_self)

    def by_source(x: Any, s: Any) -> Any:
        return autograd.grad(f(x, s).sum(), s, create_graph=True)[0]

    assert autograd.gradcheck(f, (x, s))
    assert autograd.gradgradcheck(f, (x, s))
    assert autograd.gradgradcheck(by_source, (x, s))


@pytest.mark.parametrize("x_dim, index_dim", ((0, 0), (0, None), (None, 0)))
@pytest.mark.parametrize("apart", (False, True))
def test_batches_of_indices(x_dim: int | None, index_dim: int | None, apart: bool) -> None:
    """Adjacent indices keep their place in the result, separated ones go to the front; so too in
    every element of a batch."""
    x = (
        torch.randn(2, 4, 5, 6, dtype=torch.float64)
        if x_dim == 0
        else torch.randn(4, 5, 6, dtype=torch.float64)
    )
    index = torch.randint(0, 4, (2, 3) if index_dim == 0 else (3,))

    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i, :, i] if apart else x[:, i, i]

    def put(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        indices = [i, None, i] if apart else [None, i, i]
        values = f(x, i) * 2
        written: torch.Tensor = torch.ops.aten.index_put(x, indices, values, True)
        return written

    for g in (f, put):
        rows = [
            g(x[b] if x_dim == 0 else x, index[b] if index_dim == 0 else index) for b in range(2)
        ]
        torch.testing.assert_close(func.vmap(g, (x_dim, index_dim))(x, index), torch.stack(rows))


@pytest.mark.parametrize("name", ("index_add", "index_copy"))
def test_batches_of_rows(name: str) -> None:
    x, source = torch.randn(2, 4, 5), torch.randn(2, 4, 3)
    index = torch.stack([torch.randperm(5)[:3] for _ in range(2)])

    def f(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        written: torch.Tensor = getattr(x, name)(1, i, s)
        return written

    expected = torch.stack([f(x[b], index[b], source[b]) for b in range(2)])
    torch.testing.assert_close(func.vmap(f)(x, index, source), expected)


@pytest.mark.parametrize("accumulate", (False, True))
def test_writing_one_row_where_a_batch_of_masks_is_true(accumulate: bool) -> None:
    x, row = torch.randn(2, 4, 5), torch.randn(2, 5)

    def f(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return x.index_put((x[:, 0] > 0,), row, accumulate)

    torch.testing.assert_close(
        func.vmap(f)(x, row), torch.stack([f(a, b) for a, b in zip(x, row, strict=True)])
    )


def test_a_batch_of_repeats_with_a_known_total() -> None:
    x, repeats = torch.randn(2, 3), torch.tensor([[1, 0, 3], [2, 1, 1]])

    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(n, output_size=4)

    torch.testing.assert_close(
        func.vmap(f)(x, repeats), torch.stack([f(a, n) for a, n in zip(x, repeats, strict=True)])
    )
    with pytest.raises(BatchingError, match="output_size"):
        func.vmap(lambda x, n: x.repeat_interleave(n))(x, repeats)
    for wrong, message in (
        (repeats + 1, "allocated size does not match"),
        (repeats - torch.tensor([2, -2, 0]), "can not be negative"),
    ):
        with pytest.raises(RuntimeError, match=message):
            func.vmap(f)(x, wrong)


def test_batches_of_masks_are_refused_with_advice() -> None:
    x = torch.randn(2, 3)
    with pytest.raises(BatchingError, match="masked_fill"):
        func.vmap(lambda x: x[x > 0])(x)


def _set(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    x[:, i] = s
    return x


INPLACE: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index_add_": lambda x, i, s: x.index_add_(1, i, s),
    "index_copy_": lambda x, i, s: x.index_copy_(1, i, s),
    "index_fill_": lambda x, i, s: x.index_fill_(1, i, s.sum()),
    "index_put_": _set,
    "scatter_": lambda x, i, s: x.scatter_(1, i.expand(4, 3), s),
    "scatter_add_": lambda x, i, s: x.scatter_add_(1, i.expand(4, 3), s),
    "scatter_reduce_": lambda x, i, s: x.scatter_reduce_(1, i.expand(4, 3), s, "amax"),
    "put_": lambda x, i, s: x.put_(i, s[0]),
    "masked_scatter_": lambda x, i, s: x.masked_scatter_(torch.arange(5) < 3, s),
    "tril_": lambda x, i, s: x.tril_(-1).add_(s.sum()),
}


@pytest.mark.parametrize("form", ("whole", "view"))
@pytest.mark.parametrize("name", INPLACE)
def test_in_place_forms_have_the_derivatives_of_their_functional_ops(name: str, form: str) -> None:
    x, s, index = (
        torch.randn(4, 5, dtype=torch.float64),
        torch.randn(4, 3, dtype=torch.float64),
        torch.tensor([4, 0, 2]),
    )

    def f(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        if form == "whole":
            return INPLACE[name](y, index, s) * x
        z = torch.stack([y, y])
        INPLACE[name](z[1], index, s)
        return z * x

    leaves = x.clone().requires_grad_(), s.clone().requires_grad_()
    outs = f(*leaves)
    g = torch.randn_like(outs)
    expected = torch.autograd.grad(outs, leaves, g)
    ours, pullback = func.vjp(f, x, s)
    torch.testing.assert_close(ours, outs.detach())
    torch.testing.assert_close(pullback(g), expected)
    rows = (torch.stack([x, 2 * x]), torch.stack([s, s - 1]))
    torch.testing.assert_close(
        func.vmap(f)(*rows), torch.stack([f(a, b) for a, b in zip(*rows, strict=True)])
    )
    step = 1e-6
    ahead, behind = f(x + step * x, s + step * s), f(x - step * x, s - step * s)
    torch.testing.assert_close(
        func.jvp(f, (x, s), (x, s))[1], (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("op", [torch.scatter, torch.scatter_add])
@pytest.mark.parametrize(
    ("shape", "index", "source"), [((3,), (1,), ()), ((), (1,), ()), ((0, 3), (0, 3), ())]
)
def test_a_source_of_another_rank_than_the_index_has_its_gradient(
    op: Any, shape: Any, index: Any, source: Any
) -> None:
    def loss(x: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = op(x, 0, torch.zeros(index, dtype=torch.long), src)
        return out.sin().sum()

    x, src = torch.ones(shape, requires_grad=True), torch.full(source, 0.5, requires_grad=True)
    expected = torch.autograd.grad(loss(x, src), (x, src))
    torch.testing.assert_close(func.grad(loss, (0, 1))(x.detach(), src.detach()), expected)
