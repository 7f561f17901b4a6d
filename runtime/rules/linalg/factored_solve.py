"""Solve linear systems by factors of their matrix, with derivatives by the matrix.

ATen's solve takes only the factors of a matrix. A derivative by them would have to go back through
the factorization. The op here takes the matrix and its factors. Its kernel reads the factors, its
derivatives are by the matrix, and each derivative is one more solve with the same factors.
"""

from __future__ import annotations

from typing import Any

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ..derive.batch_rules import expand
from ..derive.matrix_rules import adjoint_if, contiguous_stacks, lined_up
from ..derive.optional import add_present, map_optional
from ..record import register

aten = torch.ops.aten
Tensor = torch.Tensor

_LIBRARY = torch.library.Library("torch_transform_matrix", "DEF")
_LIBRARY.define(
    "solve_factored(Tensor A, Tensor LU, Tensor pivots, Tensor B, bool left, "
    "bool adjoint) -> Tensor"
)


def solve_by_factors(
    A: Tensor, LU: Tensor, pivots: Tensor, B: Tensor, left: bool, adjoint: bool
) -> Tensor:
    """Return what the op does, in ATen's ops: it reads the factors, and not the matrix."""
    solution: Tensor = aten.linalg_lu_solve(
        contiguous_stacks(LU), pivots, B, left=left, adjoint=adjoint
    )
    return solution


_LIBRARY.impl("solve_factored", solve_by_factors, "CompositeExplicitAutograd")
SOLVE_FACTORED = torch.ops.torch_transform_matrix.solve_factored.default


def solve_factored(
    A: Tensor, LU: Tensor, pivots: Tensor, B: Tensor, left: bool, adjoint: bool
) -> Tensor:
    """Return X with ``A X = B``, or with ``X A = B`` if not ``left``.

    ``adjoint``: with the conjugate transpose of A in place of A. ``LU`` and ``pivots`` are
    ``linalg.lu_factor(A)``. B is a matrix, or a stack of matrices whose leading dimensions
    broadcast with those of A.
    """
    solution: Tensor = SOLVE_FACTORED(A, LU, pivots, B, left, adjoint)
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
    # X = A⁻¹·B, so B has the cotangent A⁻ᴴ·g, and A has -A⁻ᴴ·g·Xᴴ
    by_b = solve_factored(A, LU, pivots, g, left, not adjoint)
    by_a = None
    if "A" in needs:
        by_a = adjoint_if(adjoint, -on_side(by_b, result.mH, left))
    # none by the factors: the op depends on them only as far as they depend on A
    return by_a, None, by_b


def on_side(A: Tensor, x: Tensor, left: bool) -> Tensor:
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
    # A·X = B, so A·X_t = B_t - A_t·X
    change = map_optional(lambda t: -on_side(adjoint_if(adjoint, t), result, left), A_t)
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
    # a system for each element of the batch; the last two of `batched` are those of flags
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
