"""Sparse layouts under autograd, and the same of the dense matrix that they stand for.

    times_matrix(v, d, e, made="uncoalesced", pattern="repeated")    # S(v) @ d, with gradients

A sparse matrix S (4, 6) has the numbers v (8) at the places of a pattern, which may repeat. The
dense one is the sum over places. A result is compared as a dense tensor, and gradients are those by
v and by the dense matrices d (6, 4) and e (4, 6).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from programs.families.tools import Results, Row, detached, gradients, leaves_of

ROWS, COLUMNS = 4, 6
Places = Sequence[tuple[int, int]]
PATTERNS: dict[str, Places] = {
    "spread": [(0, 1), (0, 4), (1, 0), (1, 5), (2, 2), (2, 3), (3, 0), (3, 4)],
    "one_row": [(2, 0), (2, 1), (2, 3), (2, 5)],
    "one_column": [(0, 3), (1, 3), (3, 3)],
    "one": [(3, 5)],
    "none": [],
    "repeated": [(3, 4), (0, 1), (3, 4), (1, 5), (0, 1), (2, 2), (3, 4), (0, 0)],
    "unsorted": [(3, 1), (2, 5), (2, 0), (0, 3), (0, 0), (1, 4)],
}
COMPRESSED = {
    "csr": torch.sparse_csr,
    "csc": torch.sparse_csc,
    "bsr": torch.sparse_bsr,
    "bsc": torch.sparse_bsc,
}


def _indices(places: Places) -> Tensor:
    return torch.tensor(list(places), dtype=torch.int64).reshape(-1, 2).t().contiguous()


def _coo(v: Tensor, places: Places) -> Tensor:
    values = v[: len(places)]
    return torch.sparse_coo_tensor(_indices(places), values, (ROWS, COLUMNS), check_invariants=True)


def _hybrid(v: Tensor, places: Places) -> Tensor:
    """Return a sparse tensor of whole rows: those that have a number."""
    dense = _dense(v, places)
    rows = sorted({row for row, _ in places})
    indices = torch.tensor([rows], dtype=torch.int64)
    return torch.sparse_coo_tensor(indices, dense[rows], (ROWS, COLUMNS), check_invariants=True)


def _compressed(v: Tensor, places: Places, made: str) -> Tensor:
    """Return the matrix in a compressed layout, of the numbers in the layout's own order."""
    pattern = torch.zeros(ROWS, COLUMNS, dtype=v.dtype)
    for row, column in places:
        pattern[row, column] = 1.0
    blocks = (2, 2) if made.startswith("b") else None
    of_pattern: Any = pattern.to_sparse(layout=COMPRESSED[made], blocksize=blocks)
    order: Any = torch.arange(1.0, ROWS * COLUMNS + 1).reshape(ROWS, COLUMNS)
    # the places of values, as numbers in a matrix of the same layout
    marked = torch.where(_filled(of_pattern), order, torch.zeros_like(order))
    marked = marked.to_sparse(layout=COMPRESSED[made], blocksize=blocks)
    values = _dense(v, places).flatten()[marked.values().to(torch.int64) - 1]
    by_row = made in ("csr", "bsr")
    outer = of_pattern.crow_indices() if by_row else of_pattern.ccol_indices()
    inner = of_pattern.col_indices() if by_row else of_pattern.row_indices()
    return torch.sparse_compressed_tensor(
        outer, inner, values, (ROWS, COLUMNS), layout=COMPRESSED[made], check_invariants=True
    )


def _filled(matrix: Any) -> Tensor:
    """Return which places of a sparse matrix have a number, and a zero counts."""
    ones = torch.ones_like(matrix.values())
    by_row = matrix.layout in (torch.sparse_csr, torch.sparse_bsr)
    outer = matrix.crow_indices() if by_row else matrix.ccol_indices()
    inner = matrix.col_indices() if by_row else matrix.row_indices()
    whole = torch.sparse_compressed_tensor(outer, inner, ones, matrix.shape, layout=matrix.layout)
    return whole.to_dense() != 0


def _dense(v: Tensor, places: Places) -> Tensor:
    """Return the dense matrix: zeros, to which the numbers are added one by one."""
    rows, columns = _indices(places)
    zeros = torch.zeros(ROWS, COLUMNS, dtype=v.dtype)
    return zeros.index_put((rows, columns), v[: len(places)], accumulate=True)


def sparse_matrix(v: Tensor, made: str, pattern: str) -> Tensor:
    places = PATTERNS[pattern]
    if made == "hybrid":
        return _hybrid(v, places)
    if made in COMPRESSED:
        return _compressed(v, places, made)
    matrix = _coo(v, places)
    return matrix.coalesce() if made == "coo" else matrix


def samples(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return the numbers v, the dense matrices, and how the sparse one is made."""
    return [
        {
            "args": [{"shape": [8]}, {"shape": [COLUMNS, ROWS]}, {"shape": [ROWS, COLUMNS]}],
            "kwargs": {"made": made, "pattern": pattern},
        }
        for made in ("coo", "uncoalesced", "hybrid", *COMPRESSED)
        for pattern in PATTERNS
    ]


# --- rows -----------------------------------------------------------------------------------------

OfMatrix = Callable[[Any, Tensor, Tensor], Any]


def _as_dense(result: Tensor) -> Tensor:
    return result if result.layout is torch.strided else result.to_dense()


def _row(on_sparse: OfMatrix, on_dense: OfMatrix | None, differentiable: bool) -> Row:
    """Return the row of an op. Without `on_dense`, the same op of the dense matrix is right."""
    of_dense = on_dense or on_sparse

    def program(v: Tensor, d: Tensor, e: Tensor, *, made: str, pattern: str) -> Results:
        leaves = leaves_of(v, d, e)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # compressed layouts are in beta state
            result = _as_dense(
                on_sparse(sparse_matrix(leaves[0], made, pattern), leaves[1], leaves[2])
            )
            found = _gradients_of(result, leaves, differentiable)
        return *detached([result]), *found

    def definition(v: Tensor, d: Tensor, e: Tensor, *, made: str, pattern: str) -> Results:
        leaves = leaves_of(v, d, e)
        result = of_dense(_dense(leaves[0], PATTERNS[pattern]), leaves[1], leaves[2])
        return *detached([result]), *_gradients_of(result, leaves, differentiable)

    return Row(program, definition, may_refuse=True)


def _gradients_of(result: Tensor, leaves: Sequence[Tensor], differentiable: bool) -> list[Tensor]:
    """Return gradients as dense tensors: that of a dense matrix may be sparse."""
    if not differentiable:
        return []
    return [_as_dense(one) for one in gradients([result], leaves)]


def _softmax(dim: int, log: bool) -> Row:
    """Return the row of softmax over the numbers of a line: a place without one has no part."""

    def program(v: Tensor, d: Tensor, e: Tensor, *, made: str, pattern: str) -> Results:
        leaves = leaves_of(v)
        f = torch.sparse.log_softmax if log else torch.sparse.softmax
        result = f(sparse_matrix(leaves[0], made, pattern), dim).to_dense()
        return *detached([result]), *gradients([result], leaves)

    def definition(v: Tensor, d: Tensor, e: Tensor, *, made: str, pattern: str) -> Results:
        leaves = leaves_of(v)
        dense = _dense(leaves[0], PATTERNS[pattern])
        has_number = torch.zeros(ROWS, COLUMNS, dtype=torch.bool)
        for row, column in PATTERNS[pattern]:
            has_number[row, column] = True
            if made == "hybrid":
                has_number[row] = True
        weights = torch.where(has_number, dense.exp(), torch.zeros_like(dense))
        total = weights.sum(dim, keepdim=True)
        share = weights / torch.where(total == 0, torch.ones_like(total), total)
        if log:
            share = torch.where(has_number, share, torch.ones_like(share)).log()
        return *detached([share]), *gradients([share], leaves)

    return Row(program, definition, may_refuse=True)


OPS: dict[str, OfMatrix | tuple[OfMatrix, OfMatrix]] = {
    "as_dense": lambda s, d, e: s * 1,
    "times_matrix": lambda s, d, e: s @ d,
    "matrix_times": lambda s, d, e: d @ s,
    "times_turned": lambda s, d, e: s.t() @ e,
    "times_sparse": lambda s, d, e: s @ s.t(),
    "times_vector": lambda s, d, e: s @ d[:, 0],
    "added_product": lambda s, d, e: torch.addmm(d @ d[:4], s.t(), e[:, :4], beta=0.5, alpha=2.0),
    "sparse_addmm": (
        lambda s, d, e: torch.sparse.addmm(e[:, :4], s, d, beta=0.5, alpha=2.0),
        lambda s, d, e: 0.5 * e[:, :4] + 2.0 * (s @ d),
    ),
    "sparse_mm": (lambda s, d, e: torch.sparse.mm(s, d), lambda s, d, e: s @ d),
    "linear": lambda s, d, e: F.linear(e, s),
    "times_dense": lambda s, d, e: s * e,
    "dense_times": lambda s, d, e: e * s,
    "times_sparse_one": lambda s, d, e: s * (s * 2),
    "times_number": lambda s, d, e: s * 2.5,
    "times_column": lambda s, d, e: s * d[0, :, None],
    "divided": lambda s, d, e: s / 2.5,
    "plus_sparse": lambda s, d, e: s + s * 3,
    "plus_dense": lambda s, d, e: e + s,
    "minus_turned": lambda s, d, e: s.t() * 2 - s.t(),
    "total": lambda s, d, e: s.sum(),
    "sum_0": (lambda s, d, e: torch.sum(s, 0), lambda s, d, e: s.sum(0)),
    "sum_1": (lambda s, d, e: torch.sum(s, 1), lambda s, d, e: s.sum(1)),
    "sum_1_kept": lambda s, d, e: torch.sum(s, 1, keepdim=True),
    "sparse_sum_0": (lambda s, d, e: torch.sparse.sum(s, 0), lambda s, d, e: s.sum(0)),
    "sparse_sum_all": (lambda s, d, e: torch.sparse.sum(s), lambda s, d, e: s.sum()),
    "norm": (lambda s, d, e: s.norm(), lambda s, d, e: s.square().sum().clamp_min(1e-60).sqrt()),
    "rows_picked": lambda s, d, e: s.index_select(0, torch.tensor([2, 0, 2])),
    "columns_picked": lambda s, d, e: s.index_select(1, torch.tensor([4, 4, 1])),
    "row": lambda s, d, e: s[2] * 2,
    "last_column": lambda s, d, e: s.select(1, -2) * 2,
    "turned": lambda s, d, e: s.transpose(0, 1) * 2,
    "permuted": lambda s, d, e: s.permute(1, 0) * 2,
    "unsqueezed": lambda s, d, e: s.unsqueeze(0) * 2,
    "joined": lambda s, d, e: torch.cat([s, s * 2]),
    "joined_1": lambda s, d, e: torch.cat([s, s * 2], 1),
    "stacked": lambda s, d, e: torch.stack([s, s * 2]),
    "copied": lambda s, d, e: s.clone() * 2,
    "sine": lambda s, d, e: s.sin(),
    "squared": lambda s, d, e: s.pow(2),
    "tangent": lambda s, d, e: s.tanh(),
    "absolute": lambda s, d, e: s.abs(),
    "negative": lambda s, d, e: -s,
    "rectified": lambda s, d, e: s.relu(),
    "expm1": lambda s, d, e: s.expm1(),
    "sign_of": lambda s, d, e: s.sgn() * s,
    "sine_in_place": lambda s, d, e: (s * 1).sin_(),
    "scaled_in_place": lambda s, d, e: (s * 1).mul_(2.0),
    "coalesced": (lambda s, d, e: s.coalesce() * 2, lambda s, d, e: s * 2),
    "masked_by": (
        lambda s, d, e: e.sparse_mask(s.detach().coalesce()),
        lambda s, d, e: torch.where(s.detach() != 0, e, torch.zeros_like(e)),
    ),
    "to_coo": (lambda s, d, e: s.to_sparse() * 2, lambda s, d, e: s * 2),
    "to_csr": (lambda s, d, e: s.to_sparse_csr() * 2, lambda s, d, e: s * 2),
    "to_csc": (lambda s, d, e: s.to_sparse_csc() * 2, lambda s, d, e: s * 2),
    "to_bsr": (lambda s, d, e: s.to_sparse_bsr((2, 2)) * 2, lambda s, d, e: s * 2),
    "sampled": (
        lambda s, d, e: torch.sparse.sampled_addmm(s, e[:, :4], e, beta=0.5, alpha=2.0),
        lambda s, d, e: torch.where(
            s.detach() != 0, 0.5 * s + 2.0 * (e[:, :4] @ e), torch.zeros_like(s)
        ),
    ),
    "to_single": lambda s, d, e: s.to(torch.float32) * 2,
    "twice": lambda s, d, e: (s @ d) @ (s @ d) + (s * 2 @ d),
    "batched": lambda s, d, e: torch.bmm(torch.stack([s, s * 2]), torch.stack([d, d.sin()])),
}


WITHOUT_GRADIENT = frozenset(
    (
        "sum_1",
        "sum_1_kept",
        "norm",
        "rows_picked",
        "columns_picked",
        "last_column",
        "unsqueezed",
        "joined",
        "joined_1",
        "sine",
        "tangent",
        "expm1",
        "sign_of",
        "sine_in_place",
        "times_column",
        "stacked",
        "row",
    )
)
"""Rows whose backward pass torch lacks for some layout. Their values are compared without it. A row
``NAME_with_gradient`` compares both."""


def _rows() -> dict[str, Row]:
    rows = {}
    for name, f in OPS.items():
        on_sparse, on_dense = f if isinstance(f, tuple) else (f, None)
        rows[name] = _row(on_sparse, on_dense, name not in WITHOUT_GRADIENT)
        if name in WITHOUT_GRADIENT:
            rows[f"{name}_with_gradient"] = _row(on_sparse, on_dense, True)
    for dim in (0, 1):
        rows[f"softmax_{dim}"] = _softmax(dim, False)
        rows[f"log_softmax_{dim}"] = _softmax(dim, True)
    return rows


globals().update(_rows())
