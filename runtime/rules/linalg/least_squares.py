"""Register the pseudoinverse of a matrix and solutions of least squares.

Derivatives after G. Golub and V. Pereyra (1973). They are valid if the rank is locally constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ..derive.batch_rules import expand, insert_dims, with_flags_of_keywords
from ..derive.matrix_rules import columns, is_vector_rhs, one_rhs_per_matrix, uncolumned
from ..derive.optional import add_present, map_optional
from ..record import register

Tensor = torch.Tensor
Pair = tuple[Any, Any]  # the gradients by the matrix and by the right-hand side


def _pinv_vjp(g: Tensor, self: Tensor, result: Tensor) -> Tensor:
    a, p = self, result
    # the three terms of Golub and Pereyra: within the range, and what leaves range and kernel
    outside_range = g.mH - a @ (p @ g.mH)
    outside_kernel = g.mH - (g.mH @ p) @ a
    return -(p.mH @ g @ p.mH) + outside_range @ p @ p.mH + p.mH @ p @ outside_kernel


def _pinv_jvp(self_t: Tensor, self: Tensor, result: Tensor) -> Tensor:
    a, p, t = self, result, self_t
    # the same terms as in `_pinv_vjp`, for a change of the matrix in place of a cotangent
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


def _residual(a: Tensor, x: Tensor, b: Tensor) -> Tensor:
    return a @ x - b


def _lstsq_vjp(
    gs: Sequence[Tensor | None],
    self: Tensor,
    b: Tensor,
    result0: Tensor,
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
        # the solution is linear in b, and its gradient by pinv(self) is g·bᴴ
        by_b = p.mH @ g
        if "self" in needs:
            by_a = _pinv_vjp(g @ rhs.mH, self, p)
    # through the residuals |A x - b|², with x held fixed
    if gs[1] is not None and gs[1].numel():
        r = 2 * _residual(self, x, rhs) * gs[1].unsqueeze(-2)
        by_a, by_b = add_present(by_a, r @ x.mH), add_present(by_b, -r)
    return by_a, map_optional(lambda t: uncolumned(t, vector), by_b)


def _lstsq_jvp(
    self: Tensor,
    b: Tensor,
    self_t: object,
    b_t: object,
    result0: Tensor,
    result1: Tensor,
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
