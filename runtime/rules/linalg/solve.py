"""Register inverses, solutions of linear systems, also from factors of the matrix, and least
squares.

Formulas after M. Giles, "An extended collection of matrix derivative results for forward and
reverse mode algorithmic differentiation" (2008). Formulas use the matrix itself, not the
factorization that an op also returns, so that higher derivatives by the matrix are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ..derive.batch_rules import expand, insert_dims, trailing, with_flags_of_keywords
from ..derive.matrix_rules import (
    adjoint_if,
    columns,
    contiguous_stacks,
    eye_like,
    is_vector_rhs,
    leading,
    lined_up,
    one_rhs_per_matrix,
    solve_triangular,
    triangle,
    uncolumned,
)
from ..derive.optional import add_present, map_optional
from ..record import register

# --- solutions from factors -----------------------------------------------------------------------
#
# ATen's solve takes only the factors of a matrix. A derivative by them would have to go back
# through the factorization. The op here takes the matrix and its factors. Its kernel reads the
# factors, its derivatives are by the matrix, and each derivative is one more solve with the same
# factors.

aten = torch.ops.aten
Tensor = torch.Tensor

_LIBRARY = torch.library.Library("torch_transform_matrix", "DEF")
_LIBRARY.define(
    "solve_factored(Tensor A, Tensor LU, Tensor pivots, Tensor B, bool left, "
    "bool adjoint) -> Tensor"
)


def _kernel(A: Tensor, LU: Tensor, pivots: Tensor, B: Tensor, left: bool, adjoint: bool) -> Tensor:
    solution: Tensor = aten.linalg_lu_solve(
        contiguous_stacks(LU), pivots, B, left=left, adjoint=adjoint
    )
    return solution


_LIBRARY.impl("solve_factored", _kernel, "CompositeExplicitAutograd")
_op = torch.ops.torch_transform_matrix.solve_factored.default


def solve_factored(
    A: Tensor, LU: Tensor, pivots: Tensor, B: Tensor, left: bool, adjoint: bool
) -> Tensor:
    """Return X with ``A X = B``, or with ``X A = B`` if not ``left``.

    ``adjoint``: with the conjugate transpose of A in place of A. ``LU`` and ``pivots`` are
    ``linalg.lu_factor(A)``. B is a matrix, or a stack of matrices whose leading dimensions
    broadcast with those of A.
    """
    solution: Tensor = _op(A, LU, pivots, B, left, adjoint)
    return solution


def _vjp(
    g: Tensor,
    A: Tensor,
    LU: Tensor,
    pivots: Tensor,
    left: bool,
    adjoint: bool,
    result: Tensor,
    needs: frozenset[str],
) -> tuple[object, ...]:
    """Return the gradients by A and B: one more solve, with the adjoint, and its product with X."""
    by_b = solve_factored(A, LU, pivots, g, left, not adjoint)
    by_a = None
    if "A" in needs:
        by_a = adjoint_if(adjoint, -_on_side(by_b, result.mH, left))
    return by_a, None, by_b


def _on_side(A: Tensor, x: Tensor, left: bool) -> Tensor:
    """Return ``A @ x``, or ``x @ A`` for a system with ``A`` on the right."""
    if left:
        return A @ x
    return x @ A


def _jvp(
    A: Tensor,
    LU: Tensor,
    pivots: Tensor,
    left: bool,
    adjoint: bool,
    A_t: object,
    LU_t: object,
    B_t: object,
    result: Tensor,
) -> object:
    """Return the tangent of X. A tangent of ``LU`` is ignored, because ``LU`` depends on ``A`` and
    moves with it."""
    change = map_optional(lambda t: -_on_side(adjoint_if(adjoint, t), result, left), A_t)
    rhs = add_present(change, B_t)
    return map_optional(lambda b: solve_factored(A, LU, pivots, b, left, adjoint), rhs)


def join_columns(B: Tensor, left: bool) -> Tensor:
    """Return all right-hand sides of one matrix as one matrix: ``(size, …, n, k)`` -> ``(…, n,
    k·size)``. If not ``left``: with more rows."""
    if left:
        return B.movedim(0, -1).flatten(-2)
    return B.movedim(0, -2).flatten(-3, -2)


def split_columns(X: Tensor, like: Tensor, left: bool) -> Tensor:
    """Return the inverse of :func:`join_columns`, contiguous. ``like``: the argument of that
    call."""
    dim = -2
    if left:
        dim = -1
    split: Tensor = X.unflatten(dim, (like.shape[dim], like.shape[0])).movedim(dim, 0)
    return split.contiguous()


def _batch(func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords) -> Any:
    """Solve a batch of systems. With one matrix for all, the right-hand sides are solved
    together."""
    A, LU, pivots, B, left, adjoint = args
    if not batched[0]:
        # expanded factors of one matrix, as the batched solve returns them
        if batched[1] and LU.stride(0) == 0:
            LU, pivots, batched = LU[0], pivots[0], (False, False, False, batched[3])
        if batched[3] and not batched[1] and B.dim() > A.dim():
            joined = func(A, LU, pivots, join_columns(B, left), left, adjoint)
            return split_columns(joined, B, left)
    # a system for each element of the batch
    # the last two of `batched` are those of flags
    physical = [
        expand(tensor, is_batched, size)
        for tensor, is_batched in zip((A, LU, pivots, B), batched, strict=False)
    ]
    return func(*lined_up((2, 2, 1, 2), size, (True,) * 4, physical), left, adjoint)


register(
    "torch_transform_matrix::solve_factored",
    vjp={("A", "LU", "B"): _vjp},
    jvp=_jvp,
    batch=_batch,
    family="linalg",
)


# --- inverses, solutions and least squares --------------------------------------------------------

Pair = tuple[Any, Any]


# ---- raising the errors that the _ex ops report


def _check_errors(
    func: Kernel, size: int, batched: object, args: Arguments, kwargs: Keywords
) -> None:
    """Raise for a batch as ATen does for a stack of matrices."""
    func(*args, **(kwargs | {"is_matrix": False}))


register("_linalg_check_errors", nondiff=True, batch=_check_errors, family="linalg")


# ---- inverse

register(
    "linalg_inv_ex",
    vjp={"A": lambda g, result: -(result.mH @ g @ result.mH)},
    jvp=lambda A_t, result: (-(result @ A_t @ result), None),
    batch=trailing,
    nondiff=(1,),
    cost="high",
    family="linalg",
)


# ---- general systems


def _solve_vjp(
    g: torch.Tensor, A: torch.Tensor, result: torch.Tensor, result1: torch.Tensor,
    result2: torch.Tensor, B_shape: Sequence[int], left: bool, needs: frozenset[str],
) -> Pair:  # fmt: skip
    """Return the gradients by A and B. A solution is a vector where B is one."""
    vector = is_vector_rhs(A.shape, B_shape)
    x = columns(result, vector)
    # X = A⁻¹·B: the cotangent of B is A⁻ᴴ·g, by the factors of the forward pass
    by_b = solve_factored(A, result1, result2, columns(g, vector), left, True)
    by_a = None
    if "A" in needs:
        by_a = -_on_side(by_b, x.mH, left)
    return by_a, uncolumned(by_b, vector)


def _solve_jvp(
    A: torch.Tensor,
    A_t: object,
    B_t: object,
    B_shape: Sequence[int],
    result: torch.Tensor,
    result1: torch.Tensor,
    result2: torch.Tensor,
    left: bool,
) -> object:
    """Return the tangent of the solution: ``A X_t = B_t - A_t X``."""
    vector = is_vector_rhs(A.shape, B_shape)
    x = columns(result, vector)
    rhs = add_present(
        map_optional(lambda t: -_on_side(t, x, left), A_t),
        map_optional(lambda t: columns(t, vector), B_t),
    )
    x_t = solve_factored(A, result1, result2, rhs, left, False)
    return uncolumned(x_t, vector), None, None, None


def _solve_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Solve a batch. If one matrix has a batch of right-hand sides, they become more columns of one
    right-hand side. The matrix is factored once."""
    a, b = args[:2]
    if not batched[0]:
        vector = is_vector_rhs(a.shape, b.shape[1:])
        rhs = columns(b, vector)
        # a matrix with more leading dimensions than its right-hand sides broadcasts against them
        if rhs.dim() - 1 >= a.dim():
            left = kwargs.get("left", True)
            x, lu, pivots, info = func(a, join_columns(rhs, left), **kwargs)
            # one factorization stands for all: an expanded one, which `_batch` above recognizes
            lu, pivots, info = (expand(result, False, size) for result in (lu, pivots, info))
            x = uncolumned(split_columns(x, rhs, left), vector)
            return x, lu, pivots, info.contiguous()
    a, b, vector = one_rhs_per_matrix(size, batched, args)
    x, lu, pivots, info = func(a, b, **kwargs)
    shape = (size, *args[0].shape[int(batched[0]) :])
    return (
        uncolumned(x, vector),
        lu.reshape(shape),
        pivots.reshape(shape[:-1]),
        info.reshape(shape[:-2]),
    )


register(
    "_linalg_solve_ex",
    vjp={("A", "B"): _solve_vjp},
    jvp=_solve_jvp,
    batch=_solve_batch,
    nondiff=(1, 2, 3),
    cost="high",
    family="linalg",
)


# ---- triangular systems


def _triangular_vjp(
    g: torch.Tensor,
    self: torch.Tensor,
    result: torch.Tensor,
    upper: bool,
    left: bool,
    unitriangular: bool,
    needs: frozenset[str],
) -> Pair:
    """Return the gradients by the matrix, of which the op reads a triangle, and by B."""
    by_b = solve_triangular(self.mH, g, upper=not upper, left=left, unit=unitriangular)
    if "self" not in needs:
        return None, by_b
    by_a = triangle(-_on_side(by_b, result.mH, left), upper, unitriangular)
    return by_a, by_b


def _triangular_jvp(
    self: torch.Tensor,
    self_t: Tensor | None,
    B_t: object,
    result: torch.Tensor,
    upper: bool,
    left: bool,
    unitriangular: bool,
) -> torch.Tensor:
    """Return the tangent of the solution."""
    change = None
    if self_t is not None:
        change = -_on_side(triangle(self_t, upper, unitriangular), result, left)
    rhs = add_present(change, B_t)
    return solve_triangular(self, rhs, upper=upper, left=left, unit=unitriangular)


register(
    "linalg_solve_triangular",
    vjp={("self", "B"): _triangular_vjp},
    jvp=_triangular_jvp,
    batch=leading(2, 2),
    cost="high",
    family="linalg",
)


def _triangular_solve(
    self: torch.Tensor,
    A: torch.Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the solution, and the matrix that was used, expanded."""
    a = A
    if transpose:
        a = A.mT  # of complex matrices the transpose, not the adjoint
    x = solve_triangular(a, self, upper=upper != transpose, unit=unitriangular)
    return x, A.expand(*x.shape[:-2], *A.shape[-2:]).clone()


register(
    "triangular_solve",
    decomposition=_triangular_solve,
    batch=leading(2, 2),
    cost="high",
    family="linalg",
)


# ---- systems whose matrix is given by its factors: products of triangular solves


def _by_pivots_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Solve a batch of systems with factors and pivots."""
    physical = [
        expand(argument, is_batched, size)
        for argument, is_batched in zip(args, batched, strict=True)
    ]
    factors, pivots, rhs = lined_up((2, 1, 2), size, (True,) * 3, physical)
    return func(contiguous_stacks(factors), pivots, rhs, **kwargs)


def _by_cholesky_factor(by_a: torch.Tensor, factor: torch.Tensor, upper: bool) -> torch.Tensor:
    """Return the gradient by the factor, from the gradient by A = L·Lᴴ (or Uᴴ·U)."""
    # dA = dL·Lᴴ + L·dLᴴ, so ⟨G, dA⟩ = ⟨(G + Gᴴ)·L, dL⟩
    both, factor = by_a + by_a.mH, triangle(factor, upper)
    return triangle(_on_side(factor, both, upper), upper)


def _cholesky_solve_vjp(
    g: torch.Tensor, input2: torch.Tensor, upper: bool, result: torch.Tensor, needs: frozenset[str]
) -> Pair:
    """Return the gradients by B and by the factor."""
    by_b = torch.cholesky_solve(g, input2, upper)
    if "input2" not in needs:
        return by_b, None
    return by_b, _by_cholesky_factor(-(by_b @ result.mH), input2, upper)


def _cholesky_inverse_vjp(
    g: torch.Tensor, self: torch.Tensor, upper: bool, result: torch.Tensor
) -> torch.Tensor:
    return _by_cholesky_factor(-(result @ g @ result), self, upper)


def _lu_solve_vjp(
    g: torch.Tensor,
    LU: torch.Tensor,
    pivots: torch.Tensor,
    left: bool,
    adjoint: bool,
    result: torch.Tensor,
    needs: frozenset[str],
) -> tuple[object, object, object]:
    """Return the gradients by the packed factors, the pivots (none) and B."""
    by_b = aten.linalg_lu_solve(LU, pivots, g, left=left, adjoint=not adjoint)
    if "LU" not in needs:
        return None, None, by_b
    by_a = -_on_side(by_b, result.mH, left)
    # through A = P L U to the triangles of the packed factors
    by_permuted = aten.lu_unpack(LU, pivots, False, True)[0].mT @ adjoint_if(adjoint, by_a)
    lower, upper = LU.tril(-1) + eye_like(LU, LU.shape[-1]), LU.triu()
    # the packed factors have L below the diagonal, without its ones, and U on and above it
    by_factors = (by_permuted @ upper.mH).tril(-1) + (lower.mH @ by_permuted).triu()
    return by_factors, None, by_b


register(
    "cholesky_solve",
    vjp={("self", "input2"): _cholesky_solve_vjp},
    batch=leading(2, 2),
    cost="high",
    family="linalg",
)
register(
    "cholesky_inverse",
    vjp={"self": _cholesky_inverse_vjp},
    batch=trailing,
    cost="high",
    family="linalg",
)
register(
    "linalg_lu_solve",
    vjp={("LU", "pivots", "B"): _lu_solve_vjp},
    batch=_by_pivots_batch,
    cost="high",
    family="linalg",
)
# torch has no derivative for these either; a gradient raises MissingRule
register("linalg_ldl_factor_ex", batch=trailing, cost="high", family="linalg")
register("linalg_ldl_solve", batch=_by_pivots_batch, cost="high", family="linalg")


# ---- pseudoinverse and least squares: derivatives of G. Golub and V. Pereyra (1973), valid if the
# rank is locally constant


def _pinv_vjp(g: torch.Tensor, self: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    a, p = self, result
    # the three terms of Golub and Pereyra: within the range, and what leaves range and kernel
    outside_range = g.mH - a @ (p @ g.mH)
    outside_kernel = g.mH - (g.mH @ p) @ a
    return -(p.mH @ g @ p.mH) + outside_range @ p @ p.mH + p.mH @ p @ outside_kernel


def _pinv_jvp(self_t: torch.Tensor, self: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    a, p, t = self, result, self_t
    outside_range = t.mH - (t.mH @ a) @ p
    outside_kernel = t.mH - p @ (a @ t.mH)
    return -(p @ t @ p) + p @ (p.mH @ outside_range) + (outside_kernel @ p.mH) @ p


@with_flags_of_keywords
def _pinv_batch(
    func: Kernel,
    size: int,
    batched: BatchFlags,
    args: Arguments,
    kwargs: Keywords,
    named: Any = None,
) -> object:
    """Run ``pinv`` on a batch. Tolerances broadcast with the leading dimensions of the matrices,
    and may have more of these dimensions."""
    a = expand(args[0], batched[0], size)
    tolerances = {}
    for name in ("atol", "rtol"):
        if kwargs.get(name) is not None:
            tolerances[name] = expand(kwargs[name], named[name], size)
    # all get as many leading dimensions behind the batch
    widest = max([a.dim() - 2, *(tensor.dim() for tensor in tolerances.values())])
    a = insert_dims(a, size, widest - (a.dim() - 2))
    for name, tensor in tolerances.items():
        tolerances[name] = insert_dims(tensor, size, widest - tensor.dim())
    return func(a, **(kwargs | tolerances))


register(
    "linalg_pinv.atol_rtol_tensor",
    vjp={"self": _pinv_vjp},
    jvp={"self": _pinv_jvp},
    batch=_pinv_batch,
    cost="high",
    family="linalg",
)


def _residual(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ x - b


def _lstsq_vjp(
    gs: Sequence[Tensor | None],
    self: torch.Tensor,
    b: torch.Tensor,
    result0: torch.Tensor,
    needs: frozenset[str],
) -> Pair:
    """Return the gradients by the matrix and by the right-hand side.

    The solution is ``pinv(self)·b``. It minimizes the residuals, so their first derivative by the
    solution is zero.
    """
    vector = is_vector_rhs(self.shape, b.shape)
    x, rhs = columns(result0, vector), columns(b, vector)
    # through the solution
    by_a = by_b = None
    if gs[0] is not None:
        p = torch.linalg.pinv(self)
        g = columns(gs[0], vector)
        by_b = p.mH @ g
        if "self" in needs:
            by_a = _pinv_vjp(g @ rhs.mH, self, p)
    # through the residuals |A x - b|², with x held fixed
    if gs[1] is not None and gs[1].numel():
        r = 2 * _residual(self, x, rhs) * gs[1].unsqueeze(-2)
        by_a, by_b = add_present(by_a, r @ x.mH), add_present(by_b, -r)
    return by_a, map_optional(lambda t: uncolumned(t, vector), by_b)


def _lstsq_jvp(
    self: torch.Tensor,
    b: torch.Tensor,
    self_t: object,
    b_t: object,
    result0: torch.Tensor,
    result1: torch.Tensor,
) -> object:
    """Return the tangents of the solution and of the residuals."""
    vector = is_vector_rhs(self.shape, b.shape)
    x, rhs = columns(result0, vector), columns(b, vector)
    p = torch.linalg.pinv(self)
    rhs_t = map_optional(lambda t: columns(t, vector), b_t)
    # the solution is pinv(self)·b, by the product rule
    x_t = add_present(
        map_optional(lambda t: _pinv_jvp(t, self, p) @ rhs, self_t),
        map_optional(lambda t: p @ t, rhs_t),
    )
    # of |A·x - b|²; the part by x is zero, as x minimizes it
    residuals_t = None
    if result1.numel():
        r = _residual(self, x, rhs)
        r_t = add_present(map_optional(lambda t: t @ x, self_t), map_optional(torch.neg, rhs_t))
        residuals_t = 2 * torch.real(r.conj() * r_t).sum(-2)
    return uncolumned(x_t, vector), residuals_t, None, None


def _lstsq_batch(func: Kernel, size: int, batched: object, args: Any, kwargs: Keywords) -> object:
    """Run ``lstsq`` on a batch, with equal leading dimensions of matrices and right-hand sides."""
    a, b, vector = one_rhs_per_matrix(size, batched, args)
    # `lstsq` does not broadcast leading dimensions
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*lead, *a.shape[-2:]), b.expand(*lead, *b.shape[-2:])
    x, *others = func(a, b, *args[2:], **kwargs)

    def with_batch(t: Tensor) -> Tensor:
        if t.shape == (0,) and lead != (0,):  # some drivers return empty results
            return t.new_empty((size, 0))
        return t

    return uncolumned(x, vector), *(map(with_batch, others))


register(
    "linalg_lstsq",
    vjp={("self", "b"): _lstsq_vjp},
    jvp=_lstsq_jvp,
    batch=_lstsq_batch,
    nondiff=(2, 3),
    cost="high",
    family="linalg",
)
