"""Linear algebra against torch's engine; and against finite differences where torch's own
forward mode is wrong."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from runtime import func
from runtime.errors import MissingRule
from tests.runtime.of_torch import CHOLESKY_HAS_A_FORMULA
from tests.runtime.rules.agreement import CHECKS, check, check_problem, problems

DTYPES = (torch.float64, torch.complex128)
OPS = (
    "geqrf",
    "linalg.cond",
    "linalg.det",
    "linalg.eig",
    "linalg.eigvals",
    "linalg.householder_product",
    "linalg.inv_ex",
    "linalg.lstsq",
    "linalg.lu",
    "linalg.lu_factor_ex",
    "linalg.lu_solve",
    "linalg.matrix_norm",
    "linalg.pinv",
    "linalg.qr",
    "linalg.slogdet",
    "linalg.solve_ex",
    "linalg.solve_triangular",
    "linalg.svd",
    "linalg.svdvals",
    "linalg.tensorsolve",
    "logdet",
    "lu_unpack",
    "matrix_exp",
    "ormqr",
)
UNDIFFERENTIABLE = ("geqrf",)
WITHOUT_JVP = tuple(c for c in CHECKS if "jvp" not in c)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPS)
def test_agrees_with_the_engine(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, limit=3, checks=("vmap",) if name in UNDIFFERENTIABLE else CHECKS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name",
    (
        *(("cholesky",) if CHOLESKY_HAS_A_FORMULA else ()),  # not of torch 2.14
        "linalg.cholesky_ex",
        "linalg.eigh",
        "linalg.eigvalsh",
        "linalg.pinv hermitian",
    ),
)
def test_hermitian_arguments(name: str, dtype: torch.dtype) -> None:
    op, _, variant = name.partition(" ")
    for p in problems(op, dtype, variant, 3):
        check_problem(replace(p, f=lambda x, *rest, f=p.f: f(x + x.mH, *rest)))


def _factor(x: torch.Tensor, upper: bool) -> torch.Tensor:
    """A triangular matrix with a real diagonal."""
    strict = x.triu(1) if upper else x.tril(-1)
    return strict + torch.diag_embed(torch.real(x.diagonal(0, -2, -1)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "at"), (("cholesky_inverse", 0), ("cholesky_solve", 1), ("triangular_solve", 1))
)
def test_triangular_arguments(name: str, at: int, dtype: torch.dtype) -> None:
    """By vjp only: torch's forward mode reads beyond the triangle, and conjugates
    where it should not."""
    for p in problems(name, dtype, limit=4):
        upper = bool(p.inputs[at].numel()) and bool((p.inputs[at].tril(-1) == 0).all())
        f = p.f

        def of_factors(*inputs: torch.Tensor, f: Any = f, upper: bool = upper) -> Any:
            return f(*(_factor(x, upper) if i == at else x for i, x in enumerate(inputs)))

        check_problem(replace(p, f=of_factors), checks=WITHOUT_JVP)


@pytest.mark.parametrize("name", ("linalg.ldl_factor_ex", "linalg.ldl_solve", "linalg.matrix_rank"))
def test_batches_without_derivative(name: str) -> None:
    check(name, torch.float64, limit=3, checks=("vmap",), singly=name != "linalg.matrix_rank")


# ---- higher order


def _spd(a: torch.Tensor) -> torch.Tensor:
    return a @ a.mH + torch.eye(a.shape[-1], dtype=a.dtype)


def _right(a: torch.Tensor) -> torch.Tensor:
    return a[:2]


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "det": torch.linalg.det,
    "slogdet": lambda a: torch.linalg.slogdet(a)[1] + torch.linalg.slogdet(a)[0],
    "inv": torch.linalg.inv,
    "solve": lambda a: torch.linalg.solve(a, a.mT[:, :2]),
    "solve from the right": lambda a: torch.linalg.solve(a, a.mT[:2], left=False),
    "solve for a vector": lambda a: torch.linalg.solve(a, a[0]),
    "solve_triangular": lambda a: torch.linalg.solve_triangular(
        a, a[:, :2] * 2, upper=True, unitriangular=True
    ),
    "triangular_solve": lambda a: torch.triangular_solve(a[:, :2], a, transpose=True)[0],
    "cholesky": lambda a: torch.linalg.cholesky(_spd(a)),
    "cholesky upper": lambda a: torch.linalg.cholesky(_spd(a), upper=True),
    "cholesky_inverse": lambda a: torch.cholesky_inverse(_factor(a, False)),
    "cholesky_solve": lambda a: torch.cholesky_solve(a[:, :2], _factor(a, True), upper=True),
    "lu": lambda a: torch.cat(torch.linalg.lu(a)[1:]),
    "lu tall": lambda a: torch.cat(torch.linalg.lu(a[:, :2])[1:]),
    "lu wide": lambda a: torch.cat(torch.linalg.lu(_right(a))[1:], 1),
    "lu_factor": lambda a: torch.linalg.lu_factor(a)[0],
    "lu_solve": lambda a: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), a[:, :2], adjoint=True),
    "lu_solve from the right": lambda a: torch.linalg.lu_solve(
        *torch.linalg.lu_factor(a), a[:2], left=False
    ),
    "qr": lambda a: torch.cat(torch.linalg.qr(a)),
    "qr tall": lambda a: torch.cat(torch.linalg.qr(a[:, :2])),
    "qr wide": lambda a: torch.cat(torch.linalg.qr(_right(a)), 1),
    "householder_product": lambda a: torch.linalg.householder_product(a, a[0]),
    "ormqr": lambda a: torch.ormqr(a, a[0], a[:2], left=False, transpose=True),
    "eigh": lambda a: torch.linalg.eigh(_spd(a))[1].abs() + torch.linalg.eigh(_spd(a))[0],
    "eig": lambda a: torch.linalg.eig(a)[1].abs() + torch.linalg.eig(a)[0],
    "svd": lambda a: (
        torch.linalg.svd(a)[0].abs() + torch.linalg.svd(a)[1] + torch.linalg.svd(a)[2].abs()
    ),
    "svd wide": lambda a: torch.linalg.svd(_right(a), full_matrices=False)[2].abs(),
    "pinv": lambda a: torch.linalg.pinv(a[:, :2]),
    "pinv of rank one": lambda a: torch.linalg.pinv(a[:, :1] @ a[:1]),
    "lstsq": lambda a: torch.linalg.lstsq(a[:, :2], a[:, 2]).solution,
    "residuals of lstsq": lambda a: (
        torch.linalg.lstsq(a[:, :2], a[:, 1:], driver="gelsd").residuals
    ),
    "matrix_exp": torch.linalg.matrix_exp,
}


def _matrix(dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 3, dtype=dtype, generator=generator)


def _slope(
    f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, t: torch.Tensor
) -> torch.Tensor:
    """Central difference of fourth order."""
    h = 1e-3
    return (8 * (f(x + h * t) - f(x - h * t)) - (f(x + 2 * h * t) - f(x - 2 * h * t))) / (12 * h)


def _jvp(
    f: Callable[[torch.Tensor], torch.Tensor], t: torch.Tensor
) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: func.jvp(f, (x,), (t,))[1]


def _vjp(f: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The gradient of a fixed combination of the results."""

    def gradient(x: torch.Tensor) -> torch.Tensor:
        result, pull = func.vjp(f, x)
        weights = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).reshape(result.shape)
        gradient: torch.Tensor = pull(
            (weights * (1 - 0.5j if result.is_complex() else 1)).to(result.dtype)
        )[0]
        return gradient

    return gradient


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives_are_slopes_of_first_ones(name: str, dtype: torch.dtype) -> None:
    f, x, s, t = FUNCTIONS[name], *(_matrix(dtype, i) for i in range(3))
    s, t = s / 4, t / 4
    x = x + 2 * torch.eye(3)
    torch.testing.assert_close(_jvp(f, s)(x), _slope(f, x, s), rtol=1e-6, atol=1e-6)
    for first in (_jvp(f, s), _vjp(f)):
        torch.testing.assert_close(_jvp(first, t)(x), _slope(first, x, t), rtol=1e-6, atol=1e-6)
        mixed, along = _vjp(first), _jvp(first, t)(x)
        weights = torch.linspace(-1, 1, along.numel(), dtype=torch.float64).reshape(along.shape)
        weights = weights * (1 - 0.5j if along.is_complex() else 1)
        torch.testing.assert_close(
            (mixed(x).conj() * t).sum().real, (weights.conj() * along).sum().real
        )


@pytest.mark.parametrize("name", ("det", "solve", "inv", "cholesky", "matrix_exp"))
def test_third_derivatives(name: str) -> None:
    f, x, s, t = FUNCTIONS[name], *(_matrix(torch.float64, i) / 4 for i in range(3))
    x = x + 2 * torch.eye(3)
    second = _jvp(_vjp(f), s)
    torch.testing.assert_close(_jvp(second, t)(x), _slope(second, x, t), rtol=1e-6, atol=1e-6)


# ---- corners


def test_determinant_of_a_singular_matrix() -> None:
    """Its gradient is the matrix of cofactors, which needs no inverse."""
    a = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]], dtype=torch.float64)
    rows = [[i for i in range(3) if i != k] for k in range(3)]
    cofactors = [
        [(-1) ** (i + j) * torch.det(a[rows[i]][:, rows[j]]) for j in range(3)] for i in range(3)
    ]
    torch.testing.assert_close(
        func.grad(torch.det)(a), torch.tensor(cofactors, dtype=torch.float64), rtol=1e-6, atol=1e-6
    )
    zero = torch.zeros(1, 1, dtype=torch.float64)
    assert func.grad(torch.det)(zero).item() == 1


@pytest.mark.parametrize("shape", ((0, 0), (2, 0, 0)))
@pytest.mark.parametrize(
    "name", ("det", "inv", "cholesky", "eigh", "svd", "solve", "pinv", "matrix_exp", "slogdet")
)
def test_matrices_without_elements(name: str, shape: tuple[int, ...]) -> None:
    a = torch.zeros(shape, dtype=torch.float64)
    ops = {
        "solve": lambda x: torch.linalg.solve(x, x),
        "slogdet": lambda x: torch.linalg.slogdet(x)[1],
        "svd": lambda x: torch.linalg.svd(x)[1],
        "eigh": lambda x: torch.linalg.eigh(x)[0],
    }
    f = ops.get(name) or getattr(torch.linalg, name)
    assert func.grad(lambda x: f(x).sum())(a).shape == shape
    assert func.jvp(f, (a,), (a,))[1].shape == f(a).shape


@pytest.mark.parametrize(
    "solver", (torch.linalg.solve, lambda a, b: torch.linalg.lstsq(a, b).solution)
)
@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    (((3, 3), (3,)), ((2, 3, 3), (2, 3)), ((3, 3), (3, 3)), ((3, 3, 3), (3, 3))),
)
@pytest.mark.parametrize("dims", ((0, 0), (0, None), (None, 0)))
def test_batches_of_right_hand_sides_stay_what_they_are(
    solver: Any, a_shape: Any, b_shape: Any, dims: Any
) -> None:
    """Physical shapes of a batch of vectors may be those of one matrix."""
    n, generator = 3, torch.Generator().manual_seed(0)
    shapes = [s if d is None else (n, *s) for s, d in zip((a_shape, b_shape), dims, strict=True)]
    a, b = (torch.randn(s, dtype=torch.float64, generator=generator) for s in shapes)
    expected = torch.stack(
        [
            solver(*(x if d is None else x[i] for x, d in zip((a, b), dims, strict=True)))
            for i in range(n)
        ]
    )
    torch.testing.assert_close(func.vmap(solver, dims)(a, b), expected)


def test_solve_broadcasts_inside_a_batch() -> None:
    a, b = (
        _matrix(torch.float64, 0).expand(4, 3, 3) + torch.eye(3),
        torch.ones(4, 2, 3, 1, dtype=torch.float64),
    )
    expected = torch.stack([torch.linalg.solve(x, y) for x, y in zip(a, b, strict=True)])
    torch.testing.assert_close(func.vmap(torch.linalg.solve)(a, b), expected)
    columns = torch.stack(
        [torch.linalg.solve_triangular(x, y, upper=True) for x, y in zip(a, b, strict=True)]
    )
    torch.testing.assert_close(
        func.vmap(lambda x, y: torch.linalg.solve_triangular(x, y, upper=True))(a, b), columns
    )


def test_batched_tolerances_of_pinv() -> None:
    a = torch.diag(torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64)).expand(2, 3, 3)
    cutoffs = torch.tensor([0.2, 0.7], dtype=torch.float64)
    expected = torch.stack([torch.linalg.pinv(x, atol=c) for x, c in zip(a, cutoffs, strict=True)])
    torch.testing.assert_close(
        func.vmap(lambda x, c: torch.linalg.pinv(x, atol=c))(a, cutoffs), expected
    )
    stacks = a.expand(2, 2, 3, 3)
    # a tolerance for each matrix of an element
    found = func.vmap(lambda x: torch.linalg.pinv(x, atol=cutoffs))(stacks)
    torch.testing.assert_close(
        found, torch.stack([torch.linalg.pinv(x, atol=cutoffs) for x in stacks])
    )


def test_factors_that_are_not_unique_have_no_derivative() -> None:
    a = _matrix(torch.float64, 0)
    with pytest.raises(RuntimeError, match="mode='r'"):
        func.grad(lambda x: torch.linalg.qr(x, "r")[1].sum())(a)
    with pytest.raises(RuntimeError, match="nrows > ncols"):
        func.grad(lambda x: torch.linalg.qr(x, "complete")[0].sum())(a[:, :2])
    with pytest.raises(MissingRule, match="geqrf"):
        func.grad(lambda x: torch.geqrf(x)[0].sum())(a)


def test_a_singular_matrix_in_a_batch_is_the_error_that_it_is_alone() -> None:
    with pytest.raises(RuntimeError, match="singular") as alone:
        torch.linalg.inv(torch.zeros(2, 2))
    with pytest.raises(RuntimeError, match="singular") as in_a_batch:
        func.vmap(torch.linalg.inv)(torch.stack([torch.eye(2), torch.zeros(2, 2)]))
    assert (in_a_batch.type, str(in_a_batch.value)) == (alone.type, str(alone.value))


def test_matrix_exp_of_a_batch_with_any_strides() -> None:
    a = torch.stack([_matrix(torch.float64, i) for i in range(4)]).reshape(2, 2, 3, 3)
    torch.testing.assert_close(
        func.vmap(torch.linalg.matrix_exp, 1, 1)(a), torch.linalg.matrix_exp(a)
    )


def factored(run: Any) -> tuple[Any, int]:
    """What `run()` returns, and how many matrices ATen's kernels factored for it."""
    # torch 2.12 warns once that a second cycle would clear the events, unless they are kept
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True
    ) as measured:
        result = run()
    shapes = [e.input_shapes[0] for e in measured.events() if e.name == "aten::linalg_lu_factor_ex"]
    return result, sum(math.prod(shape[:-2]) for shape in shapes)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: func.grad(lambda a, b: f(a, b).sin().sum(), (0, 1)),
        lambda f: lambda a, b: func.jvp(f, (a, b), (b, a)),
        lambda f: func.jacrev(f, (0, 1)),
        lambda f: func.jacfwd(f, (0, 1)),
        lambda f: func.hessian(f, (0, 1)),
        lambda f: lambda a, b: func.vmap(f, (None, 0))(a, torch.stack([b, b + 1, b.mT])),
        lambda f: (
            lambda a, b: func.vmap(func.jacrev(f, (0, 1)), (None, 0))(a, torch.stack([b, b + 1]))
        ),
    ],
    ids=["grad", "jvp", "jacrev", "jacfwd", "hessian", "vmap", "vmap jacrev"],
)
def test_one_matrix_is_factored_once(transform: Any, left: bool) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 3, 3, dtype=torch.float64)

    def solve(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        solution: torch.Tensor = torch.linalg.solve(a, b, left=left)
        return solution

    def inverse(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        inv: torch.Tensor = torch.linalg.inv(a)
        return inv @ b if left else b @ inv

    transform(solve)(a, b)  # vmap asks one element before it first meets a signature
    actual, matrices = factored(lambda: transform(solve)(a, b))
    assert matrices == 1
    torch.testing.assert_close(actual, transform(inverse)(a, b))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(
    ("matrix", "rhs"),
    [
        ((1, 1, 5, 5), (1, 1, 5, 5)),
        ((5, 5), (2, 5, 3)),
        ((2, 1, 5, 5), (1, 3, 5, 2)),
        ((0, 0), (0, 1)),
    ],
)
@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0)])
def test_the_gradient_of_a_batch_of_solves_is_a_loop_whatever_dimensions_broadcast(
    dtype: Any, matrix: Any, rhs: Any, in_dims: Any
) -> None:
    torch.manual_seed(0)
    A = torch.randn(3, *matrix, dtype=dtype) + 3 * torch.eye(matrix[-1], dtype=dtype)
    B = torch.randn(3, *rhs, dtype=dtype)

    def gradient(A: torch.Tensor, B: torch.Tensor) -> Any:
        out, pullback = func.vjp(torch.linalg.solve, A, B)
        return pullback(torch.ones_like(out))

    given = [t if d == 0 else t[0] for t, d in zip((A, B), in_dims, strict=True)]
    each = [
        gradient(*(t[i] if d == 0 else t for t, d in zip(given, in_dims, strict=True)))
        for i in range(3)
    ]
    expected = tuple(map(torch.stack, zip(*each, strict=True)))
    torch.testing.assert_close(func.vmap(gradient, in_dims)(*given), expected)


def _solved(upper: bool, unit: bool) -> Any:
    return lambda a: torch.linalg.solve_triangular(
        a, torch.ones(3, 2, dtype=a.dtype), upper=upper, unitriangular=unit
    )


_TAU = torch.tensor([0.5, 0.25, 1.5], dtype=torch.float64)


@pytest.mark.parametrize(
    # what is read are the diagonals from ``first`` on, downwards; of an upper factor upwards
    ("f", "first"),
    [
        (lambda a: torch.cholesky_solve(torch.ones(3, 2, dtype=a.dtype), a), 0),
        (lambda a: torch.cholesky_solve(torch.ones(3, 2, dtype=a.dtype), a.mT, upper=True), 0),
        (lambda a: torch.cholesky_inverse(a), 0),
        (lambda a: torch.cholesky_inverse(a.mT, upper=True), 0),
        (_solved(False, False), 0),
        (_solved(False, True), 1),
        (lambda a: _solved(True, False)(a.mT), 0),
        (lambda a: _solved(True, True)(a.mT), 1),
        (
            lambda a: (
                torch.triangular_solve(
                    torch.ones(3, 2, dtype=a.dtype), a, upper=False, transpose=True
                ).solution
            ),
            0,
        ),
        (lambda a: torch.linalg.householder_product(a, _TAU), 1),
        (lambda a: torch.ormqr(a, _TAU, torch.ones(3, 2, dtype=a.dtype)), 1),
    ],
)
def test_what_an_op_does_not_read_of_a_factor_has_no_gradient_and_no_say(
    f: Any, first: int
) -> None:
    read = torch.ones(3, 3, dtype=torch.bool).tril(-first)
    factor = torch.randn(
        3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ) + 3 * torch.eye(3, dtype=torch.float64)
    direction = torch.arange(9, dtype=torch.float64).reshape(3, 3) * read

    def derivatives(unread: float) -> list[torch.Tensor]:
        a = torch.where(read, factor, unread)
        g = func.grad(lambda x: (f(x) ** 2).sum())
        return [g(a), func.grad(lambda x: (g(x) * direction).sum())(a)]

    for clean, odd in zip(derivatives(0.0), derivatives(math.nan), strict=True):
        assert clean.any() and (clean[~read] == 0).all()
        torch.testing.assert_close(odd, clean, rtol=0, atol=0)
