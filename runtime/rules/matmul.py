"""Matrix and vector products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import derive_batch as batch
from .derive import conj, multilinear
from .record import register


def scaled(t: torch.Tensor, factor: Any) -> torch.Tensor:
    """``t·factor``, without a multiplication by one."""
    return t if factor == 1 else t * factor


def _matmul_batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    return torch.matmul(args[0], args[1])


def _mv_batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    return torch.matmul(args[0], args[1].unsqueeze(-1)).squeeze(-1)


def _dot_batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    left = args[0].conj() if func._schema.name == "aten::vdot" else args[0]
    return (left * args[1]).sum(-1, dtype=left.dtype)  # a sum of integers would be int64


multilinear("mm", {"self": lambda g, mat2: g.mm(mat2.mH), "mat2": lambda g, self: self.mH.mm(g)}, _matmul_batch)
multilinear("bmm", {"self": lambda g, mat2: g.bmm(mat2.mH), "mat2": lambda g, self: self.mH.bmm(g)}, _matmul_batch)
multilinear("mv", {"self": lambda g, vec: g.outer(vec.conj()), "vec": lambda g, self: self.mH.mv(g)}, _mv_batch)
multilinear("dot", {"self": lambda g, tensor: g * tensor.conj(), "tensor": lambda g, self: g * self.conj()}, _dot_batch)
multilinear("vdot", {"self": lambda g, other: g.conj() * other, "other": lambda g, self: g * self}, _dot_batch)


def _plus(names: str, left: str, right: str, product: Callable[..., Any], by_left: Any, by_right: Any) -> None:
    """``beta·self + alpha·left·right``: ``product`` of the two (with any leading dimensions), and its gradients by each."""

    def combined(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
        beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
        if not (args[1].is_floating_point() or args[1].is_complex()):
            whole = bool if args[1].dtype is torch.bool else int
            beta, alpha = whole(beta), whole(alpha)  # as the kernels do; a float factor would promote integers
        both = scaled(product(batch.expand(args[1], batched[1], size), batch.expand(args[2], batched[2], size)), alpha)
        if beta == 0:  # whatever self holds, infinities included, is ignored
            return both
        x = args[0]
        return both + scaled(x.reshape(size, *[1] * (both.dim() - x.dim()), *x.shape[1:]) if batched[0] else x, beta)

    def asks(f: Callable[..., Any], *names: str) -> Callable[..., Any]:
        f.asks = names  # type: ignore[attr-defined]
        return f

    register(
        names,
        vjp={
            "self": lambda g, beta: scaled(g, conj(beta)),
            left: asks(lambda g, r, alpha: scaled(by_left(g, r), conj(alpha)), "g", right, "alpha"),
            right: asks(lambda g, x, alpha: scaled(by_right(g, x), conj(alpha)), "g", left, "alpha"),
        },
        jvp={
            "self": lambda self_t, beta: scaled(self_t, beta),
            left: asks(lambda t, r, alpha: scaled(product(t, r), alpha), f"{left}_t", right, "alpha"),
            right: asks(lambda x, t, alpha: scaled(product(x, t), alpha), left, f"{right}_t", "alpha"),
        },
        batch=combined,
        family="multilinear",
    )


def _outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.unsqueeze(-1) * y.unsqueeze(-2)


def _matvec(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.matmul(x, y.unsqueeze(-1)).squeeze(-1)


def _summed_matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.matmul(x, y).sum(-3, dtype=x.dtype)


_plus("addmm", "mat1", "mat2", torch.matmul, lambda g, r: g.mm(r.mH), lambda g, x: x.mH.mm(g))
_plus("baddbmm", "batch1", "batch2", torch.matmul, lambda g, r: g.bmm(r.mH), lambda g, x: x.mH.bmm(g))
_plus("addmv", "mat", "vec", _matvec, lambda g, r: g.outer(r.conj()), lambda g, x: x.mH.mv(g))
_plus("addr", "vec1", "vec2", _outer, lambda g, r: g.mv(r.conj()), lambda g, x: g.t().mv(x.conj()))
_plus(
    "addbmm",
    "batch1",
    "batch2",
    _summed_matmul,
    lambda g, r: torch.matmul(g, r.mH),
    lambda g, x: torch.matmul(x.mH, g),
)


def _trilinear(i1: Any, i2: Any, i3: Any, expand1: Any, expand2: Any, expand3: Any, sumdim: Any, unroll_dim: int = 1) -> torch.Tensor:
    """Three tensors multiplied after each got dimensions of one at its ``expand``; some dimensions summed."""
    rank = i1.dim() + len(expand1)
    letters = "abcdefghijklmnopqrstuvwxyz"[:rank]
    parts = ["".join(c for d, c in enumerate(letters) if d not in missing) for missing in (expand1, expand2, expand3)]
    result = "".join(c for d, c in enumerate(letters) if d not in sumdim)
    return torch.einsum(f"{parts[0]},{parts[1]},{parts[2]}->{result}", i1, i2, i3)


register("_trilinear", decomposition=_trilinear)
multilinear(
    "linalg_cross",
    {
        "self": lambda g, other, dim: torch.linalg.cross(conj(other), g, dim=dim),
        "other": lambda g, self, dim: torch.linalg.cross(g, conj(self), dim=dim),
    },
    lambda f, n, b, a, k: f(batch.expand(a[0], b[0], n), batch.expand(a[1], b[1], n), dim=_cross_dim(k.get("dim", -1), a[0].dim() - b[0])),
)


def _cross_dim(dim: int, rank: int) -> int:
    return batch.shift(dim, rank)
