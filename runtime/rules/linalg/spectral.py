"""Register eigenvalues, singular values, determinants and the matrix exponential.

Eigenvectors and singular vectors are unique only up to a phase. The formulas are right for
functions that do not depend on the phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...seam.call_types import Arguments, Kernel
from ..derive.batch_rules import trailing
from ..derive.matrix_rules import (
    diagonal,
    differences,
    eye_like,
    hermitian_part,
    matrix_of,
    trailing_or_empty,
)
from ..derive.optional import add_present, map_optional
from ..record import register

aten = torch.ops.aten

# ---- eigenvalues (J. Magnus, "On differentiating eigenvalues and eigenvectors", 1985)


def _need_vectors(computed: bool, op: str, instead: str) -> None:
    """Raise unless the call has ``computed`` the vectors."""
    if not computed:
        raise RuntimeError(
            f"The derivative of {op} depends on the vectors, "
            f"which were not computed. Use {instead}."
        )


def _real_diagonal(t: torch.Tensor) -> torch.Tensor:
    d = diagonal(t)
    if d.is_complex():
        return torch.real(d)
    return d


def _eigh_vjp(
    gs: Sequence[torch.Tensor | None], result0: torch.Tensor, result1: torch.Tensor, compute_v: bool
) -> object:
    """Return the gradient of A, made Hermitian. Either cotangent may be None."""
    _need_vectors(compute_v, "_linalg_eigh", "compute_v=True")
    w, v = result0, result1
    # in the basis of eigenvectors: values are the diagonal, and vectors turn by the rest
    inside = add_present(
        map_optional(lambda gw: matrix_of(gw).to(v.dtype), gs[0]),
        map_optional(lambda gv: differences(w) * (v.mH @ gv), gs[1]),
    )
    return map_optional(lambda m: hermitian_part(v @ m @ v.mH), inside)


def _eigh_jvp(
    A_t: torch.Tensor, result0: torch.Tensor, result1: torch.Tensor, compute_v: bool
) -> tuple[object, object]:
    """Return the tangents of eigenvalues and eigenvectors."""
    _need_vectors(compute_v, "_linalg_eigh", "compute_v=True")
    w, v = result0, result1
    inside = v.mH @ hermitian_part(A_t) @ v
    return _real_diagonal(inside), v @ (differences(w) * inside)


def _unit_length(t: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return ``t`` minus its component along the unit vectors ``v``, which would change their
    length. This map is its own adjoint."""
    return t - v * torch.real((v.conj() * t).sum(-2, keepdim=True))


def _eig_vjp(
    gs: Sequence[torch.Tensor | None], result0: torch.Tensor, result1: torch.Tensor
) -> object:
    """Return the gradient of A. Either cotangent may be None."""
    w, v = result0, result1
    inside = add_present(
        map_optional(matrix_of, gs[0]),
        map_optional(lambda gv: differences(w).conj() * (v.mH @ _unit_length(gv, v)), gs[1]),
    )
    return map_optional(lambda m: torch.linalg.solve_ex(v.mH, m @ v.mH)[0], inside)


def _eig_jvp(
    self_t: torch.Tensor, result0: torch.Tensor, result1: torch.Tensor
) -> tuple[object, object]:
    """Return the tangents of eigenvalues and eigenvectors."""
    w, v = result0, result1
    inside = torch.linalg.solve_ex(v, self_t.to(v.dtype) @ v)[0]
    return diagonal(inside), _unit_length(v @ (differences(w) * inside), v)


register(
    "_linalg_eigh",
    vjp={"A": _eigh_vjp},
    jvp=_eigh_jvp,
    batch=trailing_or_empty,
    cost="high",
    family="linalg",
)
register(
    "linalg_eig", vjp={"self": _eig_vjp}, jvp=_eig_jvp, batch=trailing, cost="high", family="linalg"
)
register(
    "_linalg_eigvals",
    decomposition=lambda self: aten.linalg_eig(self)[0],
    batch=trailing,
    cost="high",
    family="linalg",
)


# ---- singular values. From U^H dA V = W S + dS - S Z with W = U^H dU and Z = V^H dV
# skew-Hermitian (J. Townsend, 2016). Only the difference of their imaginary diagonals is
# determined; each gets half of it.


def _skew(t: torch.Tensor) -> torch.Tensor:
    return t - t.mH


def _imaginary(t: torch.Tensor) -> torch.Tensor:
    return 1j * torch.imag(diagonal(t))


def _thin(u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return U and V with as many columns as there are singular values."""
    k = s.shape[-1]
    return u[..., :k], vh[..., :k, :].mH


def _gaps(s: torch.Tensor) -> torch.Tensor:
    """Return ``s[j] / (s[j]² - s[i]²)`` at (i, j), without squares that overflow."""
    size = s
    if s.shape[-1]:  # amax refuses an empty dimension
        size = s.detach().amax(-1, keepdim=True)
    size = torch.where(size == 0, 1.0, size)
    relative = s / size
    return differences(relative * relative) * relative.unsqueeze(-2) / size.unsqueeze(-1)


def _svd_vjp(
    gs: Sequence[torch.Tensor | None],
    result0: torch.Tensor,
    result1: torch.Tensor,
    result2: torch.Tensor,
    compute_uv: bool,
) -> object:
    """Return the gradient of A. With ``full_matrices`` the columns beyond the thin ones are
    arbitrary and are ignored."""
    _need_vectors(compute_uv, "_linalg_svd", "compute_uv=True")
    s = result1
    u, v = _thin(result0, s, result2)
    k = s.shape[-1]
    gu = map_optional(lambda g: g[..., :k], gs[0])
    gv = map_optional(lambda g: g[..., :k, :].mH, gs[2])
    # of singular values alone, without the gaps, which are infinite for equal values
    if gu is None and gv is None:
        return map_optional(lambda g: (u * g.unsqueeze(-2)) @ v.mH, gs[1])
    row = s.unsqueeze(-2)
    inside: Any = map_optional(lambda g: matrix_of(g).to(u.dtype), gs[1])
    gaps = _gaps(s)
    # of complex matrices, see above: half of the imaginary diagonal for each of U and V
    phases: torch.Tensor | None = None
    outside: Any = None
    if gu is not None:
        m = u.mH @ gu
        inside = add_present(inside, gaps * _skew(m))
        if m.is_complex():
            phases = _imaginary(m)
        if u.shape[-2] > k:
            outside = ((gu - u @ m) / row) @ v.mH
    if gv is not None:
        m = v.mH @ gv
        inside = add_present(inside, -gaps.mT * _skew(m))
        if m.is_complex():
            phases = add_present(phases, -_imaginary(m))
        if v.shape[-2] > k:
            outside = add_present(outside, u @ ((gv - v @ m) / row).mH)
    if phases is not None:
        inside = add_present(inside, matrix_of(phases / (2 * s)))
    # `inside`: within the spaces of U and V; `outside`: orthogonal to them
    return add_present(u @ inside @ v.mH, outside)


def _svd_jvp(
    A_t: torch.Tensor,
    result0: torch.Tensor,
    result1: torch.Tensor,
    result2: torch.Tensor,
    compute_uv: bool,
) -> object:
    """Return the tangents of U, S and V^H. Columns beyond the thin ones have zeros."""
    _need_vectors(compute_uv, "_linalg_svd", "compute_uv=True")
    s = result1
    u, v = _thin(result0, s, result2)
    row, gaps = s.unsqueeze(-2), _gaps(s)
    # the tangent in the bases of U and V: its diagonal moves S, the rest turns the bases
    uh_t, t_v = u.mH @ A_t, A_t @ v
    p = uh_t @ v
    left, right = gaps * p - gaps.mT * p.mH, gaps * p.mH - gaps.mT * p
    if p.is_complex():
        phases = matrix_of(_imaginary(p) / (2 * s))
        left, right = left + phases, right - phases
    # and what lies outside of the spaces of thin U and V turns these out of them
    ut, vt = u @ left, v @ right
    if u.shape[-2] > s.shape[-1]:
        ut = ut + (t_v - u @ p) / row
    if v.shape[-2] > s.shape[-1]:
        vt = vt + (uh_t.mH - v @ p.mH) / row
    return _widen(ut, result0), _real_diagonal(p), _widen(vt, result2.mH).mH


def _widen(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return ``t`` padded with zero columns to the width of ``like``."""
    missing = like.shape[-1] - t.shape[-1]
    if missing <= 0:
        return t
    return torch.nn.functional.pad(t, (0, missing))


register(
    "_linalg_svd",
    vjp={"A": _svd_vjp},
    jvp=_svd_jvp,
    batch=trailing_or_empty,
    cost="high",
    family="linalg",
)


# ---- determinants: d det(A) = tr(adj(A) dA), d log det(A) = tr(A^-1 dA)


def _cofactors(a: torch.Tensor, det: torch.Tensor) -> torch.Tensor:
    """Return ``adj(A)^H``, computed as ``conj(det A)·A^-H``.

    A singular matrix is first shifted by a small multiple of the identity. Then about half of the
    digits of a first derivative are right.
    """
    if a.shape[-1] == 0:
        return a
    size = torch.linalg.vector_norm(a, dim=(-2, -1))
    size = torch.where(size == 0, 1.0, size)  # of a matrix of zeros
    shift = torch.where(det == 0, size * torch.finfo(a.dtype).eps ** 0.5, 0.0)
    regular = a + shift[..., None, None] * eye_like(a, a.shape[-1])
    # The kernel of det factors a complex matrix itself, and a real one that is contiguous
    # transposed. A factorization of the other one may meet a pivot of zero where det is not zero.
    if a.is_complex():
        inverse = torch.linalg.inv_ex(regular)[0].mH
    else:
        inverse = torch.linalg.inv_ex(regular.mH)[0]
    cofactors: torch.Tensor = inverse * torch.linalg.det(regular).conj()[..., None, None]
    return cofactors


def _trace_of_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return ``tr(x^H y)``."""
    return (x.conj() * y).sum((-2, -1))


register(
    "_linalg_det",
    vjp={"A": lambda g, A, result: g[..., None, None] * _cofactors(A, result)},
    jvp=lambda A_t, A, result: (_trace_of_product(_cofactors(A, result), A_t), None, None),
    batch=trailing,
    nondiff=(1, 2),
    cost="high",
    family="linalg",
)


def _slogdet_vjp(
    gs: Sequence[torch.Tensor | None], A: torch.Tensor, result0: torch.Tensor
) -> object:
    """Return the gradient of A.

    The sign of a complex determinant is its phase. The phase changes by the imaginary part of the
    trace.
    """
    phase = None
    if gs[0] is not None and A.is_complex():
        phase = 1j * torch.imag(gs[0] * result0.conj())
    g = add_present(gs[1], phase)
    return map_optional(lambda g: g[..., None, None] * torch.linalg.inv_ex(A.mH)[0], g)


def _slogdet_jvp(A_t: torch.Tensor, A: torch.Tensor, result0: torch.Tensor) -> object:
    trace = _trace_of_product(torch.linalg.inv_ex(A.mH)[0], A_t)
    if not A.is_complex():
        return torch.zeros_like(result0), trace, None, None
    return 1j * result0 * torch.imag(trace), torch.real(trace), None, None


register(
    "_linalg_slogdet",
    vjp={"A": _slogdet_vjp},
    jvp=_slogdet_jvp,
    batch=trailing,
    nondiff=(2, 3),
    cost="high",
    family="linalg",
)


# ---- matrix exponential (I. Najfeld and T. Havel, 1995): the upper right block of exp([[A, T], [0,
# A]]) is the derivative along T


def _exp_along(a: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Return the derivative of ``exp(A)`` along ``t``."""
    n = a.shape[-1]
    lower = torch.cat([torch.zeros_like(a), a], -1)
    whole: torch.Tensor = torch.linalg.matrix_exp(torch.cat([torch.cat([a, t], -1), lower], -2))
    return whole[..., :n, n:]


def _exp_batch(func: Kernel, size: int, batched: object, args: Arguments, kwargs: object) -> object:
    return func(args[0].contiguous())  # the kernel views all leading dimensions as one


register(
    "linalg_matrix_exp",
    # the adjoint of the derivative at A is the derivative at Aᴴ
    vjp={"self": lambda g, self: _exp_along(self.mH, g)},
    jvp={"self": lambda self_t, self: _exp_along(self, self_t)},
    batch=_exp_batch,
    cost="high",
    family="linalg",
)
