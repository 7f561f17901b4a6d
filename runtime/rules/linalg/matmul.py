"""Register matrix and vector products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...rules.record import Formula
from ...seam.call_types import Arguments, BatchFlags, Keywords
from ...seam.dispatch import run_batchwise
from ...torch_private.dispatcher import OpOverload
from ..derive import batch_rules as batch
from ..derive.families import conj, multilinear
from ..record import declare, register
from ..samples import factors

aten = torch.ops.aten


def scaled(t: torch.Tensor, factor: Any) -> torch.Tensor:
    """Return ``t·factor``. A factor of one costs nothing."""
    if factor == 1:
        return t
    return t * factor  # type: ignore[no-any-return]


def scaled_back(g: torch.Tensor, factor: object) -> torch.Tensor:
    """Return the gradient of ``t·factor`` by ``t``."""
    if factor == 1:
        return g
    return g * conj(factor)  # type: ignore[no-any-return]


def adjoint(t: torch.Tensor) -> torch.Tensor:
    """Return the conjugate transpose of each matrix."""
    if t.is_complex():
        return t.mH
    # as torch's formulas: a class of weights knows the op of its layer, which is `t`
    if t.dim() == 2:
        return t.t()
    return t.transpose(-2, -1)


def product(
    x: torch.Tensor, y: torch.Tensor, x_batched: object = True, y_batched: object = True
) -> torch.Tensor:
    """Return the product of two matrices, or of batches of matrices. A batch is dimension 0.
    ``x_batched``, ``y_batched``: whether a factor has one.

    If only one factor is batched, its batch becomes more rows or columns of one large product. Two
    batches are many small products."""
    if not y_batched and x.dim() == 3:
        return torch.mm(x.flatten(0, 1), y).view(*x.shape[:2], y.shape[1])
    # with more columns, the result would be stored by columns
    if not x_batched and y.dim() == 3 and y.shape[2] == 1:
        return torch.mm(y.squeeze(2), x.t()).unsqueeze(2)
    if x.dim() == y.dim() == 3:
        return torch.bmm(x, y)
    if x.dim() == y.dim() == 2:
        return torch.mm(x, y)
    return torch.matmul(x, y)


def _matvec(
    x: torch.Tensor, y: torch.Tensor, x_batched: object = True, y_batched: object = True
) -> torch.Tensor:
    """Return the product of a matrix and a vector, or of batches of these.

    A batch of one factor becomes rows or columns of one large product.
    """
    if not y_batched:
        return torch.mv(x.flatten(0, 1), y).view(x.shape[:2])
    if not x_batched:
        return torch.mm(y, x.t())
    if y.dim() == 1:
        return torch.mv(x, y)
    return torch.bmm(x, y.unsqueeze(2)).squeeze(2)


def _matmul_batch(
    func: object, size: int, batched: BatchFlags, args: Arguments, kwargs: object
) -> object:
    return product(args[0], args[1], *batched)


def _mv_batch(
    func: object, size: int, batched: BatchFlags, args: Arguments, kwargs: object
) -> object:
    return _matvec(args[0], args[1], *batched)


def _dot_batch(
    func: OpOverload, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Run ``dot`` or ``vdot`` on a batch."""
    left, right = args
    if func._schema.name == "aten::vdot":
        left = left.conj()
    # without dtype, a sum of integers would be int64
    return (left * right).sum(-1, dtype=left.dtype)


def _by_left(g: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the gradient by the left factor."""
    # the line below without its Python frames, since every linear layer runs it
    if type(g) is type(right) is torch.Tensor:
        return torch.mm(g, adjoint(right))
    return run_batchwise(lambda g, right, batched: product(g, adjoint(right), *batched), g, right)  # type: ignore[no-any-return]


def _by_right(g: torch.Tensor, left: torch.Tensor, geometry: Any) -> torch.Tensor:
    """Return the gradient by the right factor, in the memory format of that factor.

    The right factor is often the transpose of a weight. Then the weight's gradient needs no copy.
    """
    (rows, _), strides, _ = geometry

    def multiplied(g: torch.Tensor, left: torch.Tensor, batched: BatchFlags) -> torch.Tensor:
        """Return the product, as a transpose if the factor was one."""
        if strides == (1, rows) and not any(batched):
            return torch.mm(g.t(), conj(left)).t()
        return product(adjoint(left), g, batched[1], batched[0])

    if type(g) is type(left) is torch.Tensor:  # as in `_by_left`
        return multiplied(g, left, (False, False))
    return run_batchwise(multiplied, g, left)  # type: ignore[no-any-return]


_CONTRACTION: dict[str, object] = {"fresh": True, "cost": "high"}


def _flops(result_shape: Sequence[int], self_shape: Sequence[int]) -> object:
    return 2 * math.prod(result_shape) * self_shape[-1]


multilinear(
    "mm",
    {
        "self": lambda g, mat2: _by_left(g, mat2),
        "mat2": lambda g, self, mat2_geometry: _by_right(g, self, mat2_geometry),
    },
    _matmul_batch,
    flops=_flops,
    per_sample={
        "self": lambda g, mat2: factors.by_left(g, mat2),
        "mat2": lambda g, self: factors.by_right(g, self),
    },
    **_CONTRACTION,
)


def _stacks(x: torch.Tensor, y: torch.Tensor, batched: BatchFlags) -> torch.Tensor:
    # stacks with a batch have a dimension more, which `bmm` refuses
    if any(batched):
        return torch.matmul(x, y)
    return torch.bmm(x, y)


def _by_left_stack(g: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return run_batchwise(lambda g, right, batched: _stacks(g, adjoint(right), batched), g, right)  # type: ignore[no-any-return]


def _by_right_stack(g: torch.Tensor, left: torch.Tensor, _: object = None) -> torch.Tensor:
    return run_batchwise(lambda g, left, batched: _stacks(adjoint(left), g, batched), g, left)  # type: ignore[no-any-return]


multilinear(
    "bmm",
    {
        "self": lambda g, mat2: _by_left_stack(g, mat2),
        "mat2": lambda g, self: _by_right_stack(g, self),
    },
    _matmul_batch,
    flops=_flops,
    **_CONTRACTION,
)
multilinear(
    "mv",
    {"self": lambda g, vec: g.outer(conj(vec)), "vec": lambda g, self: adjoint(self).mv(g)},
    _mv_batch,
    fresh=True,
    cost="high",
    per_sample={"self": lambda g, vec: factors.by_left(g.unsqueeze(2), vec.unsqueeze(2))},
)
multilinear(
    "dot",
    {"self": lambda g, tensor: g * tensor.conj(), "tensor": lambda g, self: g * self.conj()},
    _dot_batch,
    fresh=True,
    cost="high",
)
multilinear(
    "vdot",
    {"self": lambda g, other: g.conj() * other, "other": lambda g, self: g * self},
    _dot_batch,
    **_CONTRACTION,
)


def _convert_factor(factor: Any, dtype: torch.dtype) -> object:
    """Return a factor of a tensor as its kernels take it. A float would promote integers."""
    if dtype.is_floating_point or dtype.is_complex:
        return factor
    if dtype is torch.bool:
        return bool(factor)
    return int(factor)


def _in_one_dtype(args: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return the operands of ``addr``, which alone takes several dtypes, in that of the result. As
    in the kernel, a 0-d tensor promotes like any other."""
    x, left, right = args
    if x.dtype is left.dtype is right.dtype:
        return args
    dtype = torch.promote_types(torch.promote_types(x.dtype, left.dtype), right.dtype)
    return [argument.to(dtype) for argument in args]


def _plus(
    names: str,
    left: str,
    right: str,
    multiply: Callable[..., torch.Tensor],
    by_left: Formula,
    by_right: Formula,
    **facts: Any,
) -> None:
    """Register ``beta·self + alpha·left·right``. ``multiply`` computes the product, of batches
    if flags say so.

    ``by_left`` and ``by_right`` compute its gradients. ``by_right`` also gets the geometry of the
    right factor. ``facts``: further parts of the record.
    """

    def add_product(
        func: object, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
    ) -> object:
        """Run the op on a batch: the product first, then ``self`` is added to it."""
        x, first, second = _in_one_dtype(args)
        beta = _convert_factor(kwargs.get("beta", 1), first.dtype)
        alpha = _convert_factor(kwargs.get("alpha", 1), first.dtype)
        # with one product for all, only `self` has the batch
        if batched[1] or batched[2]:
            both = scaled(multiply(first, second, batched[1], batched[2]), alpha)
        else:
            both = scaled(multiply(first, second), alpha).unsqueeze(0)
        if beta == 0:  # self is ignored, also infinities in it
            if both.shape[0] == size:
                return both
            return both.expand(size, *both.shape[1:])
        if batched[0]:
            x = batch.insert_dims(x, size, both.dim() - x.dim())
        return both + scaled(x, beta)

    register(
        names,
        vjp={
            "self": lambda g, beta: scaled_back(g, beta),
            left: declare(
                lambda g, r, alpha: scaled_back(by_left(g, r), alpha), "g", right, "alpha"
            ),
            right: declare(
                lambda g, x, geometry, alpha: scaled_back(by_right(g, x, geometry), alpha),
                "g",
                left,
                f"{right}_geometry",
                "alpha",
            ),
        },
        jvp={
            "self": lambda self_t, beta: scaled(self_t, beta),
            left: declare(
                lambda t, r, alpha: scaled(multiply(t, r), alpha), f"{left}_t", right, "alpha"
            ),
            right: declare(
                lambda x, t, alpha: scaled(multiply(x, t), alpha), left, f"{right}_t", "alpha"
            ),
        },
        batch=add_product,
        fresh=True,
        flops=declare(
            lambda x, result: 2 * math.prod(x) * (result[-1] if len(result) > 1 else 1),
            f"{left}_shape",
            "result_shape",
        ),
        family="multilinear",
        **facts,
    )


def _outer(x: torch.Tensor, y: torch.Tensor, *batched: object) -> torch.Tensor:
    return x.unsqueeze(-1) * y.unsqueeze(-2)


def _summed_product(x: torch.Tensor, y: torch.Tensor, *batched: object) -> torch.Tensor:
    return torch.matmul(x, y).sum(-3, dtype=x.dtype)


_plus(
    "addmm",
    "mat1",
    "mat2",
    product,
    _by_left,
    _by_right,
    cost="high",
    per_sample={
        "self": lambda g, self_shape, beta: factors.reduced(scaled_back(g, beta), self_shape),
        "mat1": lambda g, mat2, alpha: factors.by_left(g, mat2, alpha),
        "mat2": lambda g, mat1, alpha: factors.by_right(g, mat1, alpha),
    },
)
_plus("baddbmm", "batch1", "batch2", product, _by_left_stack, _by_right_stack, cost="high")
_plus(
    "addmv",
    "mat",
    "vec",
    _matvec,
    lambda g, r: g.outer(conj(r)),
    lambda g, x, _: adjoint(x).mv(g),
    cost="high",
    per_sample={
        "self": lambda g, self_shape, beta: factors.reduced(scaled_back(g, beta), self_shape),
        "mat": lambda g, vec, alpha: factors.by_left(g.unsqueeze(2), vec.unsqueeze(2), alpha),
    },
)
_plus(
    "addr",
    "vec1",
    "vec2",
    _outer,
    lambda g, r: g.mv(conj(r).to(g.dtype)),
    lambda g, x, _: g.t().mv(conj(x).to(g.dtype)),
)
_plus(
    "addbmm",
    "batch1",
    "batch2",
    _summed_product,
    lambda g, r: torch.matmul(g, adjoint(r)),
    lambda g, x, _: torch.matmul(adjoint(x), g),
    cost="high",
)


def _trilinear(
    i1: torch.Tensor,
    i2: object,
    i3: object,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """Return the sum over ``sumdim`` of the product of three tensors. Each first gets dimensions of
    size one at its ``expand``."""
    rank = i1.dim() + len(expand1)
    # as an einsum: one letter per dimension, without those that an argument does not have
    letters = "abcdefghijklmnopqrstuvwxyz"[:rank]

    def without(dims: Sequence[int]) -> str:
        """Return the letters of all other dimensions."""
        return "".join(letter for dim, letter in enumerate(letters) if dim not in dims)

    arguments = ",".join(map(without, (expand1, expand2, expand3)))
    return torch.einsum(f"{arguments}->{without(sumdim)}", i1, i2, i3)


def _trilinear_abstract(
    i1: torch.Tensor,
    i2: torch.Tensor,
    i3: torch.Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
) -> torch.Tensor:
    """Return an abstract result. Torch's kernel has no abstract form for symbolic sizes, and would
    fix them."""
    wide = []
    for x, missing in ((i1, expand1), (i2, expand2), (i3, expand3)):
        shape = list(x.shape)
        # in rising order, so that each number is that of the final shape
        for dim in sorted(missing):
            shape.insert(dim, 1)
        wide.append(shape)
    sizes = [size for dim, size in enumerate(torch.broadcast_shapes(*wide)) if dim not in sumdim]
    return i1.new_empty(sizes)


def _third(a: object, b: object, c: object, *dims: object) -> object:
    return aten._trilinear(conj(a), conj(b), conj(c), *dims)


# The cotangent lacks the dimensions that were summed, and a gradient lacks those that its argument
# lacked. So `sumdim` and the `expand` of that argument change places.
multilinear(
    "_trilinear",
    {
        "i1": lambda g, i2, i3, expand1, expand2, expand3, sumdim: _third(
            conj(g), i2, i3, sumdim, expand2, expand3, expand1
        ),
        "i2": lambda g, i1, i3, expand1, expand2, expand3, sumdim: _third(
            i1, conj(g), i3, expand1, sumdim, expand3, expand2
        ),
        "i3": lambda g, i1, i2, expand1, expand2, expand3, sumdim: _third(
            i1, i2, conj(g), expand1, expand2, sumdim, expand3
        ),
    },
    decomposition=_trilinear,
    abstract=_trilinear_abstract,
    cost="high",
)


def _cross_batch(
    func: OpOverload, size: int, batched: BatchFlags, args: Arguments, kwargs: Keywords
) -> object:
    """Run ``linalg_cross`` on a batch. Its arguments broadcast, but have one rank."""
    first, second = (
        batch.expand(argument, is_batched, size)
        for argument, is_batched in zip(args, batched, strict=True)
    )
    return func(first, second, dim=batch.shift(kwargs.get("dim", -1), first.dim() - 1))


multilinear(
    "linalg_cross",
    {
        "self": lambda g, other, dim: torch.linalg.cross(conj(other), g, dim=dim),
        "other": lambda g, self, dim: torch.linalg.cross(g, conj(self), dim=dim),
    },
    _cross_batch,
)
