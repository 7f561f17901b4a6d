"""Register factorizations with triangular or orthogonal factors: Cholesky, LU, QR, Householder
reflectors.

Each formula starts from the differential of the defining product. Multiplied by the inverse
factors, it splits into triangles. Each triangle holds the differential of one factor. The vjp is
the adjoint of this map for ``<X, Y> = Re tr(X^H Y)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..derive.batch_rules import trailing
from ..derive.families import real
from ..derive.matrix_rules import (
    adjoint_if,
    diagonal,
    eye_like,
    hermitian_part,
    matrix_of,
    solve_triangular,
    trailing_or_empty,
)
from ..derive.optional import add_present, zeros_if_none
from ..record import register

aten = torch.ops.aten


# ---- Cholesky (I. Murray, "Differentiation of the Cholesky decomposition", 2016). The argument is
# Hermitian. So its tangents are made Hermitian, and its cotangent is Hermitian.


def _lower_half(t: torch.Tensor) -> torch.Tensor:
    """Return Phi(X): the lower triangle with half the diagonal. X = Phi(X) + Phi(X)^H for Hermitian
    X."""
    return t.tril() - matrix_of(diagonal(t)) / 2


def _cholesky_vjp(g: torch.Tensor, result: torch.Tensor, upper: bool) -> torch.Tensor:
    """Return the cotangent L^-H M L^-1, where M is the Hermitian matrix with the lower triangle of
    L^H g, halved."""
    factor, g = adjoint_if(upper, result), adjoint_if(upper, g)
    middle = factor.mH @ g
    middle = (middle.tril() + middle.tril(-1).mH) / 2
    half = solve_triangular(factor.mH, middle, upper=True)
    return solve_triangular(factor, half, upper=False, left=False)


def _cholesky_jvp(self_t: torch.Tensor, result: torch.Tensor, upper: bool) -> torch.Tensor:
    factor = adjoint_if(upper, result)
    half = solve_triangular(factor, hermitian_part(self_t), upper=False)
    change = factor @ _lower_half(solve_triangular(factor.mH, half, upper=True, left=False))
    return adjoint_if(upper, change)


register(
    "cholesky",
    vjp={"self": _cholesky_vjp},
    jvp=_cholesky_jvp,
    batch=trailing,
    cost="high",
    family="linalg",
)
register(
    "linalg_cholesky_ex",
    vjp={"self": _cholesky_vjp},
    jvp=lambda self_t, result, upper: (_cholesky_jvp(self_t, result, upper), None),
    batch=trailing,
    nondiff=(1,),
    cost="high",
    family="linalg",
)


# ---- LU of any shape. For a wide or tall matrix, the leading square part is factorized. The rest
# of U or L follows from the rest of A.


def _lu_parts(l: torch.Tensor, u: torch.Tensor) -> tuple[int, torch.Tensor, torch.Tensor]:  # noqa: E741
    """Return the rank k, and the leading square parts of L and U."""
    k = l.shape[-1]
    return k, l[..., :k, :], u[..., :, :k]


def _lu_vjp(
    gl: torch.Tensor | None,
    gu: torch.Tensor | None,
    l: torch.Tensor,  # noqa: E741
    u: torch.Tensor,
) -> Any:
    """Return the cotangent of ``L U``, from those of L (below its diagonal) and U (on and
    above)."""
    if gl is None and gu is None:
        return None
    k, l1, u1 = _lu_parts(l, u)
    wide, tall = u.shape[-1] > k, l.shape[-2] > k
    gl, gu = zeros_if_none(gl, l), zeros_if_none(gu, u)
    # the triangles that hold the cotangents of L and U, see the head of this file
    below = l1.mH @ gl[..., :k, :]
    above = gu[..., :k] @ u1.mH
    if wide:
        below = below - gu[..., k:] @ u[..., k:].mH
    if tall:
        above = above - l[..., k:, :].mH @ gl[..., k:, :]
    middle = solve_triangular(u1.mH, below.tril(-1) + above.triu(), upper=False, left=False)
    # columns beyond the square belong to U alone, and rows beyond it to L
    if wide:
        return solve_triangular(l1.mH, torch.cat([middle, gu[..., k:]], -1), upper=True, unit=True)
    g = solve_triangular(l1.mH, middle, upper=True, unit=True)
    if tall:
        rest = solve_triangular(u1.mH, gl[..., k:, :], upper=False, left=False)
        return torch.cat([g, rest], -2)
    return g


def _lu_jvp(t: torch.Tensor, l: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: E741
    """Return the tangents of L and U, from the tangent of their product."""
    k, l1, u1 = _lu_parts(l, u)
    wide, tall = u.shape[-1] > k, l.shape[-2] > k
    # L^-1 dA U^-1 = L^-1 dL + dU U^-1: the first part is strictly lower, the second upper
    half = solve_triangular(l1, t[..., :k, :], upper=False, unit=True)
    middle = solve_triangular(u1, half[..., :k], upper=True, left=False)
    below, above = middle.tril(-1), middle.triu()
    lt, ut = l1 @ below, above @ u1
    if wide:
        ut = torch.cat([ut, half[..., k:] - below @ u[..., k:]], -1)
    if tall:
        rest = solve_triangular(u1, t[..., k:, :], upper=True, left=False)
        lt = torch.cat([lt, rest - l[..., k:, :] @ above], -2)
    return lt, ut


def _split(lu: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return L and U, from their packed form."""
    k = min(lu.shape[-2:])
    return lu[..., :, :k].tril(-1) + eye_like(lu, lu.shape[-2], k), lu[..., :k, :].triu()


def _pack_factors(
    below: torch.Tensor | None, above: torch.Tensor | None, shape: Any
) -> torch.Tensor | None:
    """Return the packed form of ``lu_factor``: the part for L and the part for U in one matrix."""
    m, n = shape[-2:]
    if below is not None:
        below = torch.nn.functional.pad(below.tril(-1), (0, n - min(m, n)))
    if above is not None:
        above = torch.nn.functional.pad(above.triu(), (0, 0, 0, m - min(m, n)))
    return add_present(below, above)  # type: ignore[no-any-return]


def _linalg_lu_vjp(
    gs: Sequence[torch.Tensor | None],
    result0: torch.Tensor,
    result1: torch.Tensor,
    result2: torch.Tensor,
    pivot: bool,
) -> Any:
    """Return the cotangent of A = P L U. Without pivoting P is left out."""
    g = _lu_vjp(gs[1], gs[2], result1, result2)
    if g is None or not pivot:
        return g
    return result0 @ g


def _linalg_lu_jvp(
    A_t: torch.Tensor,
    result0: torch.Tensor,
    result1: torch.Tensor,
    result2: torch.Tensor,
    pivot: bool,
) -> object:
    """Return the tangents of P (none), L and U."""
    if pivot:  # without, which CUDA has, the permutation is an empty vector
        A_t = result0.mT @ A_t
    return None, *_lu_jvp(A_t, result1, result2)


register(
    "linalg_lu",
    vjp={"A": _linalg_lu_vjp},
    jvp=_linalg_lu_jvp,
    batch=trailing_or_empty,
    nondiff=(0,),
    cost="high",
    family="linalg",
)


def _permutation(lu: torch.Tensor, pivots: torch.Tensor) -> torch.Tensor:
    p: torch.Tensor = aten.lu_unpack(lu, pivots, False, True)[0]
    return p


def _lu_factor_vjp(
    g: torch.Tensor, result0: torch.Tensor, result1: torch.Tensor, pivot: bool
) -> torch.Tensor:
    """Return the cotangent of A, from that of the packed factors."""
    k = min(g.shape[-2:])
    by_product = _lu_vjp(g[..., :, :k], g[..., :k, :], *_split(result0))
    if pivot:
        by_product = _permutation(result0, result1) @ by_product
    return by_product  # type: ignore[no-any-return]


def _lu_factor_jvp(
    A_t: torch.Tensor, result0: torch.Tensor, result1: torch.Tensor, pivot: bool
) -> object:
    """Return the tangent of the packed factors. Pivots and error codes have none."""
    shape = A_t.shape
    if pivot:
        A_t = _permutation(result0, result1).mT @ A_t
    return _pack_factors(*_lu_jvp(A_t, *_split(result0)), shape), None, None


register(
    "linalg_lu_factor_ex",
    vjp={"A": _lu_factor_vjp},
    jvp=_lu_factor_jvp,
    batch=trailing,
    nondiff=(1, 2),
    cost="high",
    family="linalg",
)


def _unpack_jvp(LU_data_t: torch.Tensor, unpack_data: bool) -> object:
    if not unpack_data:
        return None, None, None
    k = min(LU_data_t.shape[-2:])
    return None, LU_data_t[..., :, :k].tril(-1), LU_data_t[..., :k, :].triu()


def _unpack_vjp(gs: Any, LU_data_shape: object, unpack_data: bool) -> object:
    if not unpack_data:
        return None
    return _pack_factors(gs[1], gs[2], LU_data_shape)


register(
    "lu_unpack",
    vjp={"LU_data": _unpack_vjp},
    jvp=_unpack_jvp,
    batch=trailing_or_empty,
    nondiff=(0,),
    family="linalg",
)


# ---- QR. From dA R^-1 = dQ + Q dR R^-1: the skew-Hermitian part of Q^H dA R^-1 belongs to dQ,
# the triangular rest to dR. The columns of a wide matrix beyond the square part are Q times
# those columns of R.


def _qr_differentiable(mode: str, q: torch.Tensor, r: torch.Tensor) -> None:
    """Raise if the factors are not differentiable in this mode."""
    if mode == "r":
        raise RuntimeError(
            "The derivative of linalg.qr depends on Q, "
            "which is not computed when mode='r'. Use mode='reduced'."
        )
    if mode == "complete" and q.shape[-1] > r.shape[-1]:
        raise RuntimeError(
            "The QR decomposition is not differentiable when mode='complete' and nrows > ncols: "
            "the columns of Q that complete the basis are arbitrary. Use mode='reduced'."
        )


def _to_upper(t: torch.Tensor) -> torch.Tensor:
    """Return ``t`` minus the skew-Hermitian matrix that equals ``t`` below the diagonal. The result
    is triangular with a real diagonal."""
    upper = t.triu() + t.tril(-1).mH
    if not t.is_complex():
        return upper
    return upper - 1j * matrix_of(diagonal(t).imag)


def _from_upper(t: torch.Tensor) -> torch.Tensor:
    """Return the adjoint of ``_to_upper``."""
    above, on = t.triu(1), diagonal(t)
    return above + above.mH + matrix_of(real(on))


def _qr_vjp(
    gs: Sequence[torch.Tensor | None], result0: torch.Tensor, result1: torch.Tensor, mode: str
) -> object:
    """Return the cotangent of A. Either cotangent may be None."""
    q, r = result0, result1
    _qr_differentiable(mode, q, r)
    gq, gr = gs
    # of a wide matrix [A1, A2] is R = [R1, R2], and R2 = Qᴴ·A2 is a function of Q and of A2
    k = q.shape[-1]
    r1, inside = r[..., :k], None
    if gr is not None:
        inside = gr[..., :k] @ r1.mH
        if r.shape[-1] > k:
            gq = add_present(gq, q @ (r[..., k:] @ gr[..., k:].mH))
    if gq is not None:
        inside = add_present(inside, -(q.mH @ gq))
    if inside is None:
        return None
    g = solve_triangular(r1.mH, add_present(gq, q @ _from_upper(inside)), upper=False, left=False)
    if r.shape[-1] == k:
        return g
    # the part of A2
    if gr is None:
        return torch.cat([g, torch.zeros_like(r[..., k:])], -1)
    return torch.cat([g, q @ gr[..., k:]], -1)


def _qr_jvp(A_t: torch.Tensor, result0: torch.Tensor, result1: torch.Tensor, mode: str) -> object:
    """Return the tangents of Q and R."""
    q, r = result0, result1
    _qr_differentiable(mode, q, r)
    k = q.shape[-1]
    r1 = r[..., :k]
    scaled = solve_triangular(r1, A_t[..., :k], upper=True, left=False)
    change = _to_upper(q.mH @ scaled)
    qt, rt = scaled - q @ change, change @ r1
    if r.shape[-1] > k:
        rt = torch.cat([rt, q.mH @ (A_t[..., k:] - qt @ r[..., k:])], -1)
    return qt, rt


register(
    "linalg_qr",
    vjp={"A": _qr_vjp},
    jvp=_qr_jvp,
    batch=trailing_or_empty,
    cost="high",
    family="linalg",
)


# ---- products of Householder reflectors I - tau v v^H, in C. Puglisi's compact form
# (1992) I - V T V^H

# torch has no derivative for geqrf either; a gradient raises MissingRule
register(
    "geqrf",
    batch=trailing,
    abstract=lambda self: (
        # LAPACK stores matrices by columns
        self.mT.contiguous().mT.clone(),
        self.new_empty((*self.shape[:-2], min(self.shape[-2:]))),
    ),
    cost="high",
    family="linalg",
)


def _reflectors(packed: torch.Tensor, tau: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return V and T. V has the vectors below its diagonal and ones on it, and T^-1 = diag(1/tau) +
    triu(V^H V, 1)."""
    m, k = packed.shape[-2], tau.shape[-1]
    v = packed[..., :k].tril(-1) + eye_like(packed, m, k)
    scale = tau.unsqueeze(-1)  # T^-1 is multiplied by tau from the left, so that tau may be zero
    t = solve_triangular(scale * (v.mH @ v).triu(1), matrix_of(tau), upper=True, unit=True)
    return v, t


def _householder_product(input: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
    v, t = _reflectors(input, tau)
    one = eye_like(input, *input.shape[-2:])
    return one - v @ (t @ (v.mH @ one))


def _ormqr(
    self: torch.Tensor,
    input2: torch.Tensor,
    input3: torch.Tensor,
    left: bool = True,
    transpose: bool = False,
) -> torch.Tensor:
    """Return the product of the reflectors with ``input3``, from the left or the right."""
    v, t = _reflectors(self, input2)
    t = adjoint_if(transpose, t)
    if left:
        return input3 - v @ (t @ (v.mH @ input3))
    return input3 - ((input3 @ v) @ t) @ v.mH


register(
    "linalg_householder_product",
    decomposition=_householder_product,
    batch=trailing,
    cost="high",
    family="linalg",
)
register("ormqr", decomposition=_ormqr, batch=trailing, cost="high", family="linalg")
