"""Sparse tensors: what they are made of, and what is made of them. torch's engine is the oracle."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import unwrap, wrap
from runtime.aot import aot_function, make_fx, nop
from runtime.autograd import Function, backward, grad, gradcheck, gradgradcheck
from runtime.func import vjp

INDICES = torch.tensor([[0, 0, 1], [1, 1, 2]])
MASK = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 3.0]], dtype=torch.float64)

PROGRAMS: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "made_of_values": ((3, 2), lambda v: torch.sparse_coo_tensor(INDICES, v, (2, 3, 2)).to_dense()),
    "made_of_a_number": (
        (2,),
        lambda v: torch.sparse_coo_tensor(torch.empty(0, 2, dtype=torch.long), v, ()).to_dense(),
    ),
    "coalesced": (
        (3,),
        lambda v: torch.sparse_coo_tensor(INDICES, v, (2, 3)).coalesce().to_dense(),
    ),
    "values": ((3,), lambda v: torch.sparse_coo_tensor(INDICES, v, (2, 3)).coalesce().values()),
    "values_of_rows": ((2, 3), lambda x: x.to_sparse_csr().values()),
    "product_of_rows": ((2, 2), lambda x: (x.to_sparse_csr() @ (x * x).to_sparse_csr()).to_dense()),
    "product_with_columns": ((2, 3), lambda x: x @ x.t().contiguous().to_sparse_csc()),
    "product_of_dense_and_rows": ((2, 2), lambda x: x @ (x * x).to_sparse_csr()),
    "masked": ((2, 3), lambda x: x.sparse_mask(MASK.to_sparse()).to_dense()),
}

PLACES = torch.tensor([[0, 0, 1, 2], [1, 1, 2, 0]])  # one of them twice
BANDED = (torch.eye(3) + torch.ones(3, 3).triu(2)).double()


def _matrix(v: Any) -> Any:
    return torch.sparse_coo_tensor(PLACES, v, (3, 3))


def _hybrid(v: Any) -> Any:
    return torch.sparse_coo_tensor(PLACES, v.unsqueeze(1) * v, (3, 3, 4))


OF_FOUR_VALUES: dict[str, Callable[[Any], Any]] = {
    "times_a_sparse_constant": lambda v: torch.sparse.mm(_matrix(v), BANDED.to_sparse()).to_dense(),
    "a_sparse_constant_times": lambda v: torch.sparse.mm(BANDED.to_sparse(), _matrix(v)).to_dense(),
    "product_of_two": lambda v: torch.sparse.mm(
        _matrix(v).coalesce(), _matrix(v * v).coalesce()
    ).to_dense(),
    "product_with_dense": lambda v: torch.sparse.addmm(
        v[0] * BANDED, _matrix(v), v[:3].outer(v[1:]), beta=2, alpha=3
    ),
    "softmax_of_rows": lambda v: torch.sparse.softmax(_matrix(v), 1).to_dense(),
    "softmax_of_columns": lambda v: torch.sparse.softmax(_matrix(v), 0).to_dense(),
    "softmax_of_dense_parts": lambda v: torch.sparse.softmax(_hybrid(v), 2).to_dense(),
    "log_softmax_of_rows": lambda v: torch.sparse.log_softmax(_matrix(v), -1).to_dense(),
    "log_softmax_of_hybrids": lambda v: torch.sparse.log_softmax(_hybrid(v), 1).to_dense(),
    "sum_of_rows": lambda v: torch.sparse.sum(_matrix(v), 1).to_dense(),
    "sum_of_a_sparse_and_a_dense_dimension": lambda v: torch.sparse.sum(
        _hybrid(v), (0, -1)
    ).to_dense(),
    "sum_of_all_sparse_dimensions": lambda v: torch.sparse.sum(_hybrid(v), (0, 1)),
}
PROGRAMS |= {name: ((4,), program) for name, program in OF_FOUR_VALUES.items()}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("name", OF_FOUR_VALUES)
def test_second_derivatives_through_sparse_tensors_are_those_of_differences(name: str) -> None:
    v = wrap(torch.rand(4, dtype=torch.float64), True)
    assert gradcheck(OF_FOUR_VALUES[name], (v,))
    assert gradgradcheck(OF_FOUR_VALUES[name], (v,))


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(
    "name", ["product_of_two", "sum_of_rows", "sum_of_a_sparse_and_a_dense_dimension"]
)
def test_derivatives_of_complex_sparse_tensors_are_those_of_differences(name: str) -> None:
    v = wrap(torch.rand(4, dtype=torch.complex128), True)
    assert gradcheck(OF_FOUR_VALUES[name], (v,))
    assert gradgradcheck(OF_FOUR_VALUES[name], (v,))


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.sparse.softmax(x, 1),
        lambda x: torch.sparse.mm(x, x),
        lambda x: torch.sparse.sum(x, 0),
    ],
)
def test_a_sparse_cotangent_does_what_the_dense_one_does(f: Any) -> None:
    x = wrap(MASK[:, :2].to_sparse(), True)
    y = f(x)
    g = torch.rand(y.shape, dtype=torch.float64).sparse_mask(unwrap(y).coalesce())
    by_sparse, by_dense = grad(y, x, g)[0], grad(f(x).to_dense(), x, g.to_dense())[0]
    assert by_dense.layout is torch.sparse_coo  # as the leaf
    torch.testing.assert_close(unwrap(by_sparse.to_dense()), unwrap(by_dense.to_dense()))


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_through_sparse_tensors_are_those_of_torch(name: str) -> None:
    shape, program = PROGRAMS[name]
    x = torch.rand(shape, dtype=torch.float64)

    def gradient(x: Any, by: Any) -> Any:
        y = program(x)
        return by(
            (y * torch.arange(1.0, 1 + y.numel(), dtype=torch.float64).reshape(y.shape)).sum(), x
        )[0]

    expected = gradient(x.clone().requires_grad_(), torch.autograd.grad)
    torch.testing.assert_close(unwrap(gradient(wrap(x, True), grad)), expected)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_uncoalesced_values_have_no_gradient() -> None:
    x = wrap(torch.rand(3), True)
    assert not torch.sparse_coo_tensor(INDICES, x, (2, 3))._values().requires_grad


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("before", ("to_dense", "to_sparse", "to_sparse_csr", "to_sparse_csc"))
@pytest.mark.parametrize("after", ("to_sparse", "to_sparse_csr", "to_sparse_csc"))
def test_a_sparse_cotangent_of_a_conversion_returns_in_the_layout_from_before(
    before: str, after: str
) -> None:
    x = wrap(getattr(torch.rand(3, 3) + 1, before)(), True)
    g = torch.rand(3, 3) + 1
    (found,) = grad(getattr(x, after)(), x, getattr(g, after)())
    assert found.layout is x.layout
    torch.testing.assert_close(unwrap(found.to_dense()), g)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_sparse_gradient_whose_elements_share_memory_is_copied_into_the_leaf() -> None:
    class Rows(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return torch.sparse_coo_tensor(
                torch.tensor([[0, 1, 3]]), torch.ones(1, 2).expand(3, 2), (4, 2)
            )

    x = wrap(torch.rand(4, 2), True)
    backward(Rows.apply(x).sum())
    x.grad._values().mul_(3)
    torch.testing.assert_close(
        unwrap(x.grad).to_dense(), torch.tensor([3.0, 3.0, 0.0, 3.0]).unsqueeze(1).expand(4, 2)
    )


def _pattern(size: int, *, stored: int) -> torch.Tensor:
    x = torch.zeros(size, size, dtype=torch.float64)
    x.view(-1)[:stored] = torch.arange(1, stored + 1, dtype=torch.float64)
    return x


COMPRESSED = {
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((2, 2)),
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_a_compiled_product_at_the_places_of_a_sparse_tensor_are_those_of_eager(
    dynamic: bool,
) -> None:
    def f(s: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.sparse.sampled_addmm(s, a, b).to_dense().square()

    compiled = aot_function(f, nop, dynamic=dynamic)
    for stored in (4, 6):
        s = _pattern(4, stored=stored).to_sparse_csr()
        a, b = torch.randn(4, 3, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
        given, expected = ([x.clone().requires_grad_() for x in (a, b)] for _ in range(2))
        result = compiled(s, *given)
        torch.testing.assert_close(result, f(s, a, b))
        result.sum().backward()
        f(s, *expected).sum().backward()
        for x, y in zip(given, expected, strict=True):
            torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("layout", COMPRESSED)
def test_a_traced_program_knows_the_layout_of_a_compressed_tensor(layout: str) -> None:
    s = COMPRESSED[layout](_pattern(4, stored=6))
    seen = []

    def f(s: torch.Tensor) -> torch.Tensor:
        seen.append(s.layout)
        return s.to_dense() * 2

    def gradient(s: torch.Tensor, g: torch.Tensor) -> Any:
        out, pull = vjp(f, s)
        return out, pull(g)[0].to_dense()

    g = torch.ones(4, 4, dtype=torch.float64)
    graph = make_fx(gradient)(s, g)
    assert seen == [s.layout]
    torch.testing.assert_close(graph(s, g)[0], s.to_dense() * 2)
    stored = COMPRESSED[layout](_pattern(4, stored=6)).to_dense() != 0
    assert torch.equal(graph(s, g)[1][stored], torch.full((6,), 2.0, dtype=torch.float64))


@pytest.mark.parametrize(
    "read",
    [lambda s: s.values().sum() * s.values().shape[0], lambda s: s.to_dense() * s._nnz()],
    ids=["values", "nnz"],
)
@pytest.mark.parametrize(
    "convert", [lambda x: x.to_sparse().coalesce(), COMPRESSED["csr"]], ids=["coo", "csr"]
)
def test_how_many_elements_a_sparse_tensor_stores_is_no_constant_of_a_graph(
    read: Any, convert: Any
) -> None:
    s = convert(_pattern(4, stored=6))
    for dynamic in (False, True):
        with pytest.raises(
            RuntimeError, match=r"the size of what aten.* returns depends on values"
        ):
            aot_function(read, nop, dynamic=dynamic)(s)
    for mode in ("fake", "symbolic"):
        with pytest.raises(
            RuntimeError, match=r"the size of what aten.* returns depends on values"
        ):
            make_fx(read, tracing_mode=mode)(s)
    # as sizes do, it stays what it is for the examples
    torch.testing.assert_close(make_fx(read)(s)(s), read(s))


def test_a_backward_pass_counts_no_write_to_the_pattern_that_it_reads() -> None:
    pattern, x, y = (
        MASK.to_sparse_csr(),
        torch.randn(2, 4, dtype=torch.float64),
        torch.randn(4, 3, dtype=torch.float64),
    )
    _, pullback = vjp(lambda *given: torch.sparse.sampled_addmm(*given).to_dense(), pattern, x, y)
    assert torch.equal(pullback(torch.ones_like(MASK))[1], pullback(torch.ones_like(MASK))[1])
    assert pattern._version == 0
