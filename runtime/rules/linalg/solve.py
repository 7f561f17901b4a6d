"""Register inverses and solutions of linear systems, also from factors of the matrix.

Formulas after M. Giles, "An extended collection of matrix derivative results for forward and
reverse mode algorithmic differentiation" (2008). Formulas use the matrix itself, not the
factorization that an op also returns, so that higher derivatives by the matrix are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ..derive.batch_rules import expand, trailing
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
from .factored_solve import join_columns, on_side, solve_factored, split_columns

aten = torch.ops.aten
Tensor = torch.Tensor
Pair = tuple[Any, Any]  # the gradients by the matrix and by the right-hand side


# ---- raising the errors that the _ex ops report


def _check_errors(
    func: Kernel, size: int, batched: object, args: Arguments, kwargs: Keywords
) -> None:
    """Raise for a batch as ATen does for a stack of matrices."""
    func(*args, **(kwargs | {"is_matrix": False}))


register("_linalg_check_errors", nondiff=True, batch=_check_errors, family="linalg")


# ---- inverse: the tangent of A⁻¹ is -A⁻¹·A_t·A⁻¹

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
    g: Tensor, A: Tensor, result: Tensor, result1: Tensor,
    result2: Tensor, B_shape: Sequence[int], left: bool, needs: frozenset[str],
) -> Pair:  # fmt: skip
    """Return the gradients by A and B. A solution is a vector where B is one."""
    vector = is_vector_rhs(A.shape, B_shape)
    x = columns(result, vector)
    # X = A⁻¹·B: the cotangent of B is A⁻ᴴ·g, by the factors of the forward pass
    by_b = solve_factored(A, result1, result2, columns(g, vector), left, True)
    by_a = None
    if "A" in needs:
        by_a = -on_side(by_b, x.mH, left)
    return by_a, uncolumned(by_b, vector)


def _solve_jvp(
    A: Tensor,
    A_t: object,
    B_t: object,
    B_shape: Sequence[int],
    result: Tensor,
    result1: Tensor,
    result2: Tensor,
    left: bool,
) -> object:
    """Return the tangent of the solution: ``A X_t = B_t - A_t X``."""
    vector = is_vector_rhs(A.shape, B_shape)
    x = columns(result, vector)
    rhs = add_present(
        map_optional(lambda t: -on_side(t, x, left), A_t),
        map_optional(lambda t: columns(t, vector), B_t),
    )
    # the factors of the forward pass solve once more
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
            # one factorization stands for all: an expanded one, which the batch rule of
            # `solve_factored` recognizes by its stride of 0
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
    g: Tensor,
    self: Tensor,
    result: Tensor,
    upper: bool,
    left: bool,
    unitriangular: bool,
    needs: frozenset[str],
) -> Pair:
    """Return the gradients by the matrix, of which the op reads a triangle, and by B."""
    # the adjoint of a lower triangle is an upper one
    by_b = solve_triangular(self.mH, g, upper=not upper, left=left, unit=unitriangular)
    if "self" not in needs:
        return None, by_b
    # the other triangle is never read, nor a diagonal of ones
    by_a = triangle(-on_side(by_b, result.mH, left), upper, unitriangular)
    return by_a, by_b


def _triangular_jvp(
    self: Tensor,
    self_t: Tensor | None,
    B_t: object,
    result: Tensor,
    upper: bool,
    left: bool,
    unitriangular: bool,
) -> Tensor:
    """Return the tangent of the solution."""
    change = None
    if self_t is not None:
        change = -on_side(triangle(self_t, upper, unitriangular), result, left)
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
    self: Tensor,
    A: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Tensor, Tensor]:
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


def _by_cholesky_factor(by_a: Tensor, factor: Tensor, upper: bool) -> Tensor:
    """Return the gradient by the factor, from the gradient by A = L·Lᴴ (or Uᴴ·U)."""
    # dA = dL·Lᴴ + L·dLᴴ, so ⟨G, dA⟩ = ⟨(G + Gᴴ)·L, dL⟩
    both, factor = by_a + by_a.mH, triangle(factor, upper)
    return triangle(on_side(factor, both, upper), upper)


def _cholesky_solve_vjp(
    g: Tensor, input2: Tensor, upper: bool, result: Tensor, needs: frozenset[str]
) -> Pair:
    """Return the gradients by B and by the factor."""
    by_b = torch.cholesky_solve(g, input2, upper)
    if "input2" not in needs:
        return by_b, None
    return by_b, _by_cholesky_factor(-(by_b @ result.mH), input2, upper)


def _cholesky_inverse_vjp(g: Tensor, self: Tensor, upper: bool, result: Tensor) -> Tensor:
    return _by_cholesky_factor(-(result @ g @ result), self, upper)


def _lu_solve_vjp(
    g: Tensor,
    LU: Tensor,
    pivots: Tensor,
    left: bool,
    adjoint: bool,
    result: Tensor,
    needs: frozenset[str],
) -> tuple[object, object, object]:
    """Return the gradients by the packed factors, the pivots (none) and B."""
    by_b = aten.linalg_lu_solve(LU, pivots, g, left=left, adjoint=not adjoint)
    if "LU" not in needs:
        return None, None, by_b
    by_a = -on_side(by_b, result.mH, left)
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
