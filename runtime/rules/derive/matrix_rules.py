"""Run ops on stacks of matrices on batches, and share the small matrix helpers of their
formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from .batch_rules import BatchRule, expand, insert_dims, trailing


def leading(*cores: int) -> BatchRule:
    """Return the batch rule of ops that broadcast the leading dimensions of several stacks.
    ``cores[i]``: the rank of one item of argument ``i``."""

    def rule(
        func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
    ) -> object:
        return func(*lined_up(cores, size, batched, args), *args[len(cores) :], **kwargs)

    return rule


def lined_up(
    cores: Sequence[int], size: int, batched: BatchFlags, args: Arguments
) -> list[torch.Tensor]:
    """Return the first ``len(cores)`` arguments, reshaped so that the batch stands before all
    leading dimensions and they broadcast.

    Example: with ``cores=(2, 2)`` a batch of matrices (B, n, n), beside a stack (k, n, m) without a
    batch, becomes (B, 1, n, n).
    """
    extra = [
        argument.dim() - (is_batched is True) - core
        for argument, is_batched, core in zip(args, batched, cores, strict=False)
    ]
    # without a batch the leading dimensions broadcast from the right by themselves
    widest = max(extra)
    lined = list(args[: len(extra)])
    for index, n in enumerate(extra):
        if batched[index] is True:
            lined[index] = insert_dims(args[index], size, widest - n)
    return lined


def contiguous_stacks(matrices: torch.Tensor) -> torch.Tensor:
    """Return ``matrices`` with the strides of a contiguous tensor, if a leading dimension has size
    1.

    If such a dimension has another stride, ``linalg.lu_solve`` of torch 2.13 reads factors in
    column order wrongly (docs/findings.md, F23).
    """
    if 1 in matrices.shape[:-2]:
        return matrices.clone(memory_format=torch.contiguous_format)
    return matrices


def trailing_or_empty(
    func: object, size: int, batched: object, args: object, kwargs: object
) -> object:
    """Run an op as ``trailing`` does. It returns an empty vector in place of a matrix that the
    caller did not ask for."""
    outputs = trailing(func, size, batched, args, kwargs)
    return tuple(_with_batch(output, size) for output in outputs)


def _with_batch(out: torch.Tensor, size: int) -> torch.Tensor:
    """Return a result, or an empty vector per element for one that was not asked for."""
    if out.dim() == 1:
        return out.new_empty((size, 0))
    return out


def is_vector_rhs(matrix_shape: Sequence[int], rhs_shape: Sequence[int]) -> bool:
    """Return whether ``linalg.solve`` and ``lstsq`` treat a right-hand side of this shape as
    vectors: one vector, or one per matrix."""
    return len(rhs_shape) == 1 or tuple(rhs_shape) == tuple(matrix_shape[:-1])


def one_rhs_per_matrix(
    size: int, batched: Any, args: Any
) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Return the physical matrix, the physical right-hand side as a matrix, and whether it was a
    vector. Both have the batch and broadcast.

    The right-hand side becomes a matrix because its physical shape alone does not tell
    vectors from matrices.
    """
    a, b = expand(args[0], batched[0], size), expand(args[1], batched[1], size)
    vector = is_vector_rhs(a.shape[1:], b.shape[1:])
    if vector:
        b = b.unsqueeze(-1)
    a, b = lined_up((2, 2), size, (True, True), (a, b))
    return a, b, vector


def columns(t: torch.Tensor, vector: bool) -> torch.Tensor:
    """Return ``t``, or with ``vector`` each vector as a matrix of one column."""
    if vector:
        return t.unsqueeze(-1)
    return t


def uncolumned(t: torch.Tensor, vector: bool) -> torch.Tensor:
    """Return the inverse of :func:`columns`."""
    if vector:
        return t.squeeze(-1)
    return t


def adjoint_if(condition: bool, t: torch.Tensor) -> torch.Tensor:
    """Return the conjugate transpose of each matrix if ``condition`` is true, else ``t``."""
    if condition:
        return t.mH
    return t


def triangle(t: torch.Tensor, upper: bool, unit: bool = False) -> torch.Tensor:
    """Return the triangle of a matrix that a triangular op reads, with zeros elsewhere. ``unit``:
    without the diagonal."""
    if upper:
        return t.triu(int(unit))
    return t.tril(-int(unit))


def eye_like(t: torch.Tensor, n: int, m: int | None = None) -> torch.Tensor:
    """Return an identity matrix with the dtype and device of ``t``, without leading dimensions. Its
    shape is (n, m), or (n, n) for None."""
    if m is None:
        m = n
    return torch.eye(n, m, dtype=t.dtype, device=t.device)


def differences(x: torch.Tensor) -> torch.Tensor:
    """Return ``F[i, j] = 1 / (x[j] - x[i])``, zero on the diagonal."""
    # Ones on the diagonal of the denominator: a quotient 1/0 that is masked afterwards would put
    # NaN into derivatives.
    one = eye_like(x, x.shape[-1])
    return (1 - one) / (x.unsqueeze(-2) - x.unsqueeze(-1) + one)


def diagonal(t: torch.Tensor) -> torch.Tensor:
    """Return the diagonals of a stack of matrices."""
    return t.diagonal(0, -2, -1)


def matrix_of(d: torch.Tensor) -> torch.Tensor:
    """Return a diagonal matrix for each vector of diagonals."""
    return torch.diag_embed(d)


def hermitian_part(t: torch.Tensor) -> torch.Tensor:
    """Return the Hermitian part of each matrix."""
    return (t + t.mH) / 2


def solve_triangular(
    a: torch.Tensor, b: torch.Tensor, upper: bool, left: bool = True, unit: bool = False
) -> torch.Tensor:
    """Return X with ``a X = b``, or with ``X a = b`` if not ``left``, as
    ``torch.linalg.solve_triangular``. ``b`` is a matrix or a stack of them.

    ``upper``: which triangle of ``a`` is read. ``unit``: its diagonal counts as ones.
    """
    solution: torch.Tensor = torch.linalg.solve_triangular(
        a, b, upper=upper, left=left, unitriangular=unit
    )
    return solution
