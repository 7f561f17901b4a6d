"""Calls of one op in forms that mean the same, of sparse, masked and nested tensors.

    sparse_sums(v, d, e, made="csr", pattern="spread")      # s.sum(1), s.sum(-1), s.sum((1,)), …

A negative dimension is a positive one, a number is a tensor without dimensions, a batch of one is
the matrix in it, and indices are indices in 32 bits or 64. So if torch takes one form, it must take
all, with equal results. A row has 1 for each form that it takes so, 0 for one that it refuses, and
2 for one that gives something else. A form with a ``NotImplementedError`` is left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.masked import as_masked_tensor

from gen.outcomes import Unsuitable
from programs.families.jagged import MADE
from programs.families.masked import MASKS
from programs.families.sparse import COMPRESSED, sparse_matrix
from programs.families.tools import REFUSALS, Results, Row

Forms = Sequence[Callable[..., Any]]


def _marks(forms: Forms, *args: Any) -> Tensor:
    """Return a number for each form: 1 as the first that torch takes, 0 refused, 2 otherwise."""
    found = [_called(form, *args) for form in forms]
    taken = [one for one in found if isinstance(one, list)]
    if not taken:
        raise Unsuitable("refused in each form")
    return torch.tensor([_mark(one, taken[0]) for one in found])


def _called(form: Callable[..., Any], *args: Any) -> list[Tensor] | Exception:
    """Return the dense parts of a result, or the error by which torch refuses the call."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # these kinds of tensors are in beta state
            return _parts(form(*args))
    except (*REFUSALS, IndexError) as error:
        return error


def _parts(result: Any) -> list[Tensor]:
    """Return a result as dense tensors without histories."""
    if isinstance(result, (tuple, list)):
        return [part for one in result for part in _parts(one)]
    if isinstance(result, torch.masked.MaskedTensor):
        return [result.to_tensor(0.0).detach(), result.get_mask()]
    if result.is_nested:
        return [part.detach() for part in result.unbind()]
    dense = result if result.layout is torch.strided else result.to_dense()
    return [dense.detach()]


def _mark(parts: list[Tensor] | Exception, first: list[Tensor]) -> int:
    if isinstance(parts, Exception):
        return int(isinstance(parts, NotImplementedError))
    if len(parts) != len(first) or any(
        a.shape != b.shape for a, b in zip(parts, first, strict=True)
    ):
        return 2
    same = [torch.allclose(a, b, equal_nan=True) for a, b in zip(parts, first, strict=True)]
    return 1 if all(same) else 2


def row_of(forms: Forms, made_of: Callable[..., tuple[Any, ...]]) -> Row:
    """Return the row of an op. `made_of` gives what a form is called with."""

    def program(*args: Tensor, **options: Any) -> Results:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = made_of(*args, **options)
        return (_marks(forms, *made),)

    def definition(*args: Tensor, **options: Any) -> Results:
        return (torch.ones(len(forms), dtype=torch.int64),)

    return Row(program, definition, may_refuse=True)


# --- forms ----------------------------------------------------------------------------------------


def _dims(f: Callable[..., Any], dim: int, rank: int = 2) -> Forms:
    """Return a reduction along a dimension, in each form that an argument `dim` may have."""
    other = dim - rank
    return [
        lambda t, *_: f(t, dim),
        lambda t, *_: f(t, other),
        lambda t, *_: f(t, (dim,)),
        lambda t, *_: f(t, (other,)),
        lambda t, *_: f(t, [dim]),
        lambda t, *_: f(t, dim=dim),
        lambda t, *_: f(t, dim=other),
    ]


def _one_dim(f: Callable[..., Any], dim: int, rank: int = 2) -> Forms:
    """Return a reduction along a dimension that may be no tuple."""
    other = dim - rank
    return [
        lambda t, *_: f(t, dim),
        lambda t, *_: f(t, other),
        lambda t, *_: f(t, dim=dim),
        lambda t, *_: f(t, dim=other),
    ]


def _signs(f: Callable[..., Any], *dims: int, rank: int = 2) -> Forms:
    """Return a function of dimensions, with each of them positive and negative."""
    negative = [dim - rank for dim in dims]
    return [lambda t, *_: f(t, *dims), lambda t, *_: f(t, *negative)]


def _all_dims(f: Callable[..., Any]) -> Forms:
    """Return a reduction of all elements, in each form that its dimensions may have."""
    return [
        lambda t, *_: f(t),
        lambda t, *_: f(t, (0, 1)),
        lambda t, *_: f(t, (-2, -1)),
        lambda t, *_: f(t, (1, 0)),
        lambda t, *_: f(t, dim=(-1, 0)),
    ]


NUMBERS: Forms = [
    lambda t, *_: t * 2.0,
    lambda t, *_: t * 2,
    lambda t, *_: 2.0 * t,
    lambda t, *_: torch.mul(t, 2.0),
    lambda t, *_: t * torch.tensor(2.0, dtype=torch.float64),
    lambda t, *_: torch.tensor(2.0, dtype=torch.float64) * t,
]
QUOTIENTS: Forms = [
    lambda t, *_: t / 4.0,
    lambda t, *_: t / 4,
    lambda t, *_: torch.div(t, 4.0),
    lambda t, *_: t / torch.tensor(4.0, dtype=torch.float64),
]
SUMS: Forms = [
    lambda t, *_: t + t,
    lambda t, *_: torch.add(t, t),
    lambda t, *_: torch.add(t, t, alpha=1),
    lambda t, *_: t.add(t, alpha=1.0),
    lambda t, *_: t + t.clone(),
    lambda t, *_: t - (-t),
]
TURNED: Forms = [
    lambda t, *_: t.transpose(0, 1),
    lambda t, *_: t.transpose(-2, -1),
    lambda t, *_: t.transpose(1, 0),
    lambda t, *_: t.transpose(-1, 0),
]
PERMUTED: Forms = [
    lambda t, *_: t.permute(1, 0),
    lambda t, *_: t.permute(-1, -2),
    lambda t, *_: t.permute((1, -2)),
]


def _gapped(x: Tensor) -> Tensor:
    """Return equal numbers with gaps between the rows and the columns."""
    return x.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2]


PRODUCTS: Forms = [
    lambda s, d, e: s @ d,
    lambda s, d, e: torch.matmul(s, d),
    lambda s, d, e: torch.mm(s, d),
    lambda s, d, e: s.matmul(d),
    lambda s, d, e: s @ d.t().contiguous().t(),
    lambda s, d, e: s @ _gapped(d),
]
VECTORS: Forms = [
    lambda s, d, e: s @ d[:, 0],
    lambda s, d, e: s @ d[:, 0].contiguous(),
    lambda s, d, e: torch.mv(s, d[:, 0]),
    lambda s, d, e: s.matmul(d[:, 0]),
]
LEFT_PRODUCTS: Forms = [
    lambda s, d, e: d @ s,
    lambda s, d, e: torch.mm(d, s),
    lambda s, d, e: d.t().contiguous().t() @ s,
    lambda s, d, e: _gapped(d) @ s,
]
ADDED_PRODUCTS: Forms = [
    lambda s, d, e: torch.addmm(e[:, :4], s, d),
    lambda s, d, e: torch.addmm(e[:, :4].contiguous(), s, d),
    lambda s, d, e: torch.addmm(e[:, :4], s, d, beta=1, alpha=1),
    lambda s, d, e: torch.addmm(e[:, :4], s, d, beta=1.0, alpha=1.0),
    lambda s, d, e: torch.addmm(e[:, :4], s, d.t().contiguous().t()),
    lambda s, d, e: e[:, :4].addmm(s, d),
]
DENSE_FACTORS: Forms = [
    lambda s, d, e: s * e,
    lambda s, d, e: e * s,
    lambda s, d, e: torch.mul(s, e),
    lambda s, d, e: s * e.t().contiguous().t(),
    lambda s, d, e: s * _gapped(e),
]
WITH_DENSE: Forms = [
    lambda s, d, e: e + s,
    lambda s, d, e: torch.add(e, s),
    lambda s, d, e: torch.add(e, s, alpha=1),
    lambda s, d, e: e.t().contiguous().t() + s,
    lambda s, d, e: _gapped(e) + s,
    lambda s, d, e: e - (-s),
]
ROWS_OF: Forms = [
    lambda t, *_: t[1],
    lambda t, *_: t[-3] if t.shape[0] == 4 else t[1 - t.shape[0]],
    lambda t, *_: t.select(0, 1),
    lambda t, *_: t.select(-2, 1),
    lambda t, *_: t.select(0, 1 - t.shape[0]),
]


def _in_32_bits(s: Any) -> Any:
    """Return a compressed matrix whose indices have 32 bits."""
    if s.layout not in COMPRESSED.values():
        raise TypeError("a matrix of this layout has indices of 64 bits")
    by_row = s.layout in (torch.sparse_csr, torch.sparse_bsr)
    outer = s.crow_indices() if by_row else s.ccol_indices()
    inner = s.col_indices() if by_row else s.row_indices()
    return torch.sparse_compressed_tensor(
        outer.int(), inner.int(), s.values(), s.shape, layout=s.layout
    )


def _index_dtypes(f: Callable[..., Any]) -> Forms:
    return [
        lambda s, d, e: f(s, d, e),
        lambda s, d, e: f(_in_32_bits(s), d, e) if s.layout in COMPRESSED.values() else f(s, d, e),
    ]


def _batches_of_one(f: Callable[..., Any]) -> Forms:
    """Return a product of matrices, and that of batches of one and of two equal ones."""
    return [
        lambda s, d, e: f(s, d, e).to_dense(),
        lambda s, d, e: f(_batch(s, 1), d[None], e[None]).to_dense()[0],
        lambda s, d, e: f(_batch(s, 2), torch.stack([d, d]), torch.stack([e, e])).to_dense()[1],
    ]


def _batch(s: Any, size: int) -> Any:
    """Return a batch of equal matrices in the same layout."""
    if s.layout not in COMPRESSED.values():
        return torch.stack([s] * size)
    by_row = s.layout in (torch.sparse_csr, torch.sparse_bsr)
    outer = s.crow_indices() if by_row else s.ccol_indices()
    inner = s.col_indices() if by_row else s.row_indices()
    outer, inner, values = (torch.stack([one] * size) for one in (outer, inner, s.values()))
    shape = (size, *s.shape)
    return torch.sparse_compressed_tensor(outer, inner, values, shape, layout=s.layout)


OF_SPARSE: dict[str, Forms] = {
    "sums_0": _dims(torch.sum, 0),
    "sums_1": _dims(torch.sum, 1),
    "sums_of_all": _all_dims(torch.sum),
    "sparse_sums_1": _dims(torch.sparse.sum, 1),
    "numbers": NUMBERS,
    "quotients": QUOTIENTS,
    "sums_of_two": SUMS,
    "turned": TURNED,
    "permuted": PERMUTED,
    "products": PRODUCTS,
    "vectors": VECTORS,
    "left_products": LEFT_PRODUCTS,
    "added_products": ADDED_PRODUCTS,
    "dense_factors": DENSE_FACTORS,
    "with_dense": WITH_DENSE,
    "rows": ROWS_OF,
    "index_select": _signs(lambda t, dim: t.index_select(dim, torch.tensor([2, 0])), 1),
    "joined": _signs(lambda t, dim: torch.cat([t, t], dim), 1),
    "softmax": _signs(torch.sparse.softmax, 1),
    "unsqueezed": _signs(lambda t, dim: t.unsqueeze(dim), 0, rank=3),
    "index_dtypes_of_product": _index_dtypes(lambda s, d, e: s @ d),
    "index_dtypes_of_left_product": _index_dtypes(lambda s, d, e: d @ s),
    "index_dtypes_of_vector": _index_dtypes(lambda s, d, e: s @ d[:, 0]),
    "index_dtypes_of_sum": _index_dtypes(lambda s, d, e: s + s),
    "index_dtypes_of_square": _index_dtypes(lambda s, d, e: s @ s.t()),
    "index_dtypes_of_factor": _index_dtypes(lambda s, d, e: s * e),
    "index_dtypes_of_row": _index_dtypes(lambda s, d, e: s[1]),
    "index_dtypes_of_dense": _index_dtypes(lambda s, d, e: s.to_dense()),
    "index_dtypes_of_total": _index_dtypes(lambda s, d, e: s.sum()),
    "index_dtypes_of_sine": _index_dtypes(lambda s, d, e: s.sin()),
    "index_dtypes_of_sampled": _index_dtypes(
        lambda s, d, e: torch.sparse.sampled_addmm(s, e[:, :4], d.t())
    ),
    "batches_of_product": _batches_of_one(lambda s, d, e: s @ d),
    "batches_of_factor": _batches_of_one(lambda s, d, e: s * 2.0),
    "batches_of_sine": _batches_of_one(lambda s, d, e: s.sin()),
    "batches_of_sum": _batches_of_one(lambda s, d, e: s + s),
    "batches_of_turned": _batches_of_one(lambda s, d, e: s.transpose(-2, -1)),
    "batches_of_sampled": _batches_of_one(
        lambda s, d, e: torch.sparse.sampled_addmm(s, e[..., :4], d.transpose(-2, -1))
    ),
}
_REDUCED = ("sum", "mean", "amax", "amin")
OF_MASKED: dict[str, Forms] = {
    **{f"{name}_1": _dims(getattr(torch, name), 1) for name in _REDUCED},
    **{f"{name}_of_all": _all_dims(getattr(torch, name)) for name in ("sum", "amax", "amin")},
    "prod_1": _one_dim(torch.prod, 1),
    "argmax_1": _one_dim(torch.argmax, 1),
    "numbers": NUMBERS,
    "quotients": QUOTIENTS,
    "sums_of_two": SUMS,
    "turned": TURNED,
    "rows": [ROWS_OF[0], ROWS_OF[2], ROWS_OF[3]],
    "gaps": [
        lambda t, *_: t.sin(),
        lambda t, *_: as_masked_tensor(t.get_data().t().contiguous().t(), t.get_mask()).sin(),
        lambda t, *_: as_masked_tensor(_gapped(t.get_data()), _gapped(t.get_mask())).sin(),
    ],
    "gaps_of_sum": [
        lambda t, *_: t.sum(1),
        lambda t, *_: as_masked_tensor(t.get_data().t().contiguous().t(), t.get_mask()).sum(1),
        lambda t, *_: as_masked_tensor(_gapped(t.get_data()), _gapped(t.get_mask())).sum(1),
    ],
}
OF_NESTED: dict[str, Forms] = {
    **{f"{name}_2": _dims(getattr(torch, name), 2, 3) for name in _REDUCED},
    **{f"{name}_1": _dims(getattr(torch, name), 1, 3) for name in _REDUCED},
    "prod_1": _one_dim(torch.prod, 1, 3),
    "prod_2": _one_dim(torch.prod, 2, 3),
    "numbers": NUMBERS,
    "quotients": QUOTIENTS,
    "sums_of_two": SUMS,
    "turned": _signs(torch.transpose, 1, 2, rank=3),
    "softmax_2": _signs(torch.softmax, 2, rank=3),
    "softmax_1": _signs(torch.softmax, 1, rank=3),
    "unsqueezed": _signs(torch.unsqueeze, 3, rank=4),
    "joined": _signs(lambda t, dim: torch.cat([t, t], dim), 2, rank=3),
    "stacked": _signs(lambda t, dim: torch.stack([t, t], dim), 3, rank=4),
    "chunks": _signs(lambda t, dim: t.chunk(2, dim), 2, rank=3),
    "split": _signs(lambda t, dim: t.split([1, 3], dim), 2, rank=3),
    "columns": [
        lambda t, *_: t[..., 1],
        lambda t, *_: t[:, :, 1],
        lambda t, *_: t.select(2, 1),
        lambda t, *_: t.select(-1, 1),
        lambda t, *_: t.select(2, -3),
    ],
    "narrowed": _signs(lambda t, dim: t.narrow(dim, 1, 2), 2, rank=3),
    "picked": [
        lambda t, *_: t[0],
        lambda t, *_: t.select(0, 0),
        lambda t, *_: t.select(-3, 0),
        lambda t, *_: t[-t.shape[0]],
    ],
    "unflattened": _signs(lambda t, dim: t.unflatten(dim, [2, 2]), 2, rank=3),
    "products": [
        lambda t, w: t @ w,
        lambda t, w: torch.matmul(t, w),
        lambda t, w: t @ w.t().contiguous().t(),
        lambda t, w: t @ _gapped(w),
    ],
}

globals().update(
    {
        f"sparse_{name}": row_of(
            forms, lambda v, d, e, made, pattern: (sparse_matrix(v, made, pattern), d, e)
        )
        for name, forms in OF_SPARSE.items()
    }
    | {
        f"masked_{name}": row_of(
            forms, lambda x, y, made, shape: (as_masked_tensor(x, MASKS[made](shape)), y)
        )
        for name, forms in OF_MASKED.items()
    }
    | {
        f"nested_{name}": row_of(forms, lambda x, w, made, sizes: (MADE[made](x, sizes), w))
        for name, forms in OF_NESTED.items()
    }
)
