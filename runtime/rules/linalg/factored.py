"""Solves a system from the factors of its matrix, with derivatives by the matrix itself.

ATen's solve takes only the factors. A derivative by them would have to go back through the
factorization. The op here takes the matrix and its factors. Its kernel reads the factors, its
derivatives are by the matrix, and each derivative is one more solve with the same factors."""

from __future__ import annotations

from typing import Any

import torch

from ..derive.batch_rules import expand
from ..derive.matrix_rules import added, contiguous_stacks, lined_up
from ..record import register

aten = torch.ops.aten
Tensor = torch.Tensor

_LIBRARY = torch.library.Library("runtime", "DEF")
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
_op = torch.ops.runtime.solve_factored.default


def solve_factored(
    A: Tensor, LU: Tensor, pivots: Tensor, B: Tensor, left: bool, adjoint: bool
) -> Tensor:
    """X with ``A X = B``, or with ``X A = B`` if not ``left``. ``adjoint``: with the conjugate
    transpose of A in place of A.

    ``LU`` and ``pivots`` are ``linalg.lu_factor(A)``. B is a matrix, or a stack of matrices whose
    leading dimensions broadcast with those of A.
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
    needs: Any,
) -> tuple[Any, ...]:
    by_b = solve_factored(A, LU, pivots, g, left, not adjoint)
    by_a = None
    if "A" in needs:
        factors = (by_b, result.mH) if left else (result.mH, by_b)
        by_a = -(factors[0] @ factors[1])
        by_a = by_a.mH if adjoint else by_a
    return by_a, None, by_b


def _jvp(
    A: Tensor,
    LU: Tensor,
    pivots: Tensor,
    left: bool,
    adjoint: bool,
    A_t: Any,
    LU_t: Any,
    B_t: Any,
    result: Tensor,
) -> Any:
    """The tangent of X. A tangent of ``LU`` is ignored, because ``LU`` depends on ``A``
    and moves with it."""
    change = None
    if A_t is not None:
        a_t = A_t.mH if adjoint else A_t
        change = -(a_t @ result) if left else -(result @ a_t)
    rhs = added(change, B_t)
    return None if rhs is None else solve_factored(A, LU, pivots, rhs, left, adjoint)


def join_columns(B: Tensor, left: bool) -> Tensor:
    """All right-hand sides of one matrix as one matrix: ``(size, …, n, k)`` -> ``(…, n, k·size)``.
    If not ``left``: with more rows."""
    return B.movedim(0, -1).flatten(-2) if left else B.movedim(0, -2).flatten(-3, -2)


def split_columns(X: Tensor, size: int, many: int, left: bool) -> Tensor:
    """The inverse of :func:`join_columns`, contiguous. ``many``: the number of columns (rows if not
    ``left``) per element."""
    apart: Tensor = (
        X.unflatten(-1, (many, size)).movedim(-1, 0)
        if left
        else X.unflatten(-2, (many, size)).movedim(-2, 0)
    )
    return apart.contiguous()


def _batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    A, LU, pivots, B, left, adjoint = args
    if not batched[0]:
        # expanded factors of one matrix, as the batched solve returns them
        if batched[1] and LU.stride(0) == 0:
            LU, pivots, batched = LU[0], pivots[0], (False, False, False, batched[3])
        if batched[3] and not batched[1] and B.dim() > A.dim():
            return split_columns(
                func(A, LU, pivots, join_columns(B, left), left, adjoint),
                size,
                B.shape[-1 if left else -2],
                left,
            )
    physical = [expand(t, b, size) for t, b in zip((A, LU, pivots, B), batched, strict=False)]
    return func(*lined_up((2, 2, 1, 2), size, (True,) * 4, physical), left, adjoint)


register(
    "runtime::solve_factored", vjp={("A", "LU", "B"): _vjp}, jvp=_jvp, batch=_batch, family="linalg"
)
