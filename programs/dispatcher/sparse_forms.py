"""Constructors, parts and products of sparse tensors, beside the dense matrix.

Each program takes the dense matrix, whose pattern is fixed: places (0, 1), (1, 0), (1, 2), (2, 3).
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor
_aten = torch.ops.aten
_PLACES = ((0, 1, 1, 2), (1, 0, 2, 3))
_POINTERS, _COLUMNS = (0, 1, 3, 4), (1, 0, 2, 3)
_COLUMN_POINTERS, _ROWS = (0, 1, 2, 3, 4), (1, 0, 1, 2)


def _places() -> Tensor:
    return torch.tensor(_PLACES)


def _values(x: Tensor) -> Tensor:
    """Return the entries of a (3, 4) matrix at the places."""
    return x[_PLACES[0], _PLACES[1]]


def _dense(x: Tensor) -> Tensor:
    """Return the matrix that has these entries alone."""
    dense = torch.zeros(3, 4, dtype=x.dtype)
    dense[_PLACES[0], _PLACES[1]] = _values(x)
    return dense


def _coo(x: Tensor, coalesced: bool = True) -> Tensor:
    made: Tensor = _aten._sparse_coo_tensor_unsafe.default(
        _places(), _values(x), [3, 4], is_coalesced=coalesced
    )
    return made


def _csr(x: Tensor) -> Tensor:
    return torch.sparse_csr_tensor(
        torch.tensor(_POINTERS), torch.tensor(_COLUMNS), _values(x), (3, 4)
    )


def constructors(x: Tensor) -> list[Tensor]:
    """Return the matrix in each sparse layout, built by each constructor."""
    kind = {"dtype": x.dtype}
    rows = torch.tensor(_POINTERS), torch.tensor(_COLUMNS), _values(x)
    columns = torch.tensor(_COLUMN_POINTERS), torch.tensor(_ROWS), x.T[_PLACES_BY_COLUMN]
    row_blocks = rows[0], rows[1], rows[2][:, None, None]
    column_blocks = columns[0], columns[1], columns[2][:, None, None]
    layouts = {name: getattr(torch, name) for name in ("sparse_csr", "sparse_csc", "sparse_bsr")}
    made = [
        _aten.sparse_coo_tensor.indices(_places(), _values(x), **kind),
        _aten.sparse_coo_tensor.indices_size(_places(), _values(x), [3, 4], **kind),
        _aten.sparse_csr_tensor.crow_col_value(*rows, **kind),
        _aten.sparse_csr_tensor.crow_col_value_size(*rows, [3, 4], **kind),
        _aten.sparse_csc_tensor.ccol_row_value(*columns, **kind),
        _aten.sparse_csc_tensor.ccol_row_value_size(*columns, [3, 4], **kind),
        _aten.sparse_bsr_tensor.crow_col_value(*row_blocks, **kind),
        _aten.sparse_bsr_tensor.crow_col_value_size(*row_blocks, [3, 4], **kind),
        _aten.sparse_bsc_tensor.ccol_row_value(*column_blocks, **kind),
        _aten.sparse_bsc_tensor.ccol_row_value_size(*column_blocks, [3, 4], **kind),
        _aten.sparse_compressed_tensor.comp_plain_value(
            *rows, layout=layouts["sparse_csr"], dtype=x.dtype
        ),
        _aten.sparse_compressed_tensor.comp_plain_value_size(
            *rows, [3, 4], layout=layouts["sparse_csr"], dtype=x.dtype
        ),
        _aten._sparse_csr_tensor_unsafe.default(*rows, [3, 4], **kind),
        _aten._sparse_csc_tensor_unsafe.default(*columns, [3, 4], **kind),
        _aten._sparse_bsr_tensor_unsafe.default(*row_blocks, [3, 4], **kind),
        _aten._sparse_bsc_tensor_unsafe.default(*column_blocks, [3, 4], **kind),
    ]
    for check, parts in (
        (_aten._validate_sparse_csr_tensor_args, rows),
        (_aten._validate_sparse_csc_tensor_args, columns),
        (_aten._validate_sparse_bsr_tensor_args, row_blocks),
        (_aten._validate_sparse_bsc_tensor_args, column_blocks),
    ):
        check.default(*parts, [3, 4])
    _aten._validate_sparse_coo_tensor_args.default(_places(), _values(x), [3, 4])
    _aten._validate_sparse_compressed_tensor_args.default(*rows, [3, 4], layouts["sparse_csr"])
    return [one.to_dense() for one in made]


_PLACES_BY_COLUMN = ((0, 1, 2, 3), (1, 0, 1, 2))


def constructors_by_definition(x: Tensor) -> list[Tensor]:
    """Return the dense matrix as often."""
    return [_dense(x)] * 16


def parts(x: Tensor) -> list[Tensor]:
    """Return indices and entries of sparse tensors, as they are and copied."""
    coo, csr = _coo(x), _csr(x)
    csc = csr.to_sparse_csc()
    return [
        _aten.indices.default(coo),
        _aten.values.default(coo),
        _aten._indices.default(coo),
        _aten._values.default(coo),
        _aten.crow_indices_copy.default(csr),
        _aten.col_indices_copy.default(csr),
        _aten.ccol_indices_copy.default(csc),
        _aten.row_indices_copy.default(csc),
        torch.tensor(_aten.sparse_dim.default(coo)),
        torch.tensor(_aten.dense_dim.default(coo)),
        torch.tensor(_aten._dimI.default(coo)),
        torch.tensor(_aten._dimV.default(coo)),
        torch.tensor(_aten._nnz.default(coo)),
        torch.tensor(_aten.is_coalesced.default(coo)),
        _aten._coalesced.default(coo, True).to_dense(),
        _aten._coalesced_.default(_coo(x), True).to_dense(),
    ]


def parts_by_definition(x: Tensor) -> list[Tensor]:
    """Return the indices as they are written by hand."""
    values = _values(x)
    pointers = (_POINTERS, _COLUMNS, _COLUMN_POINTERS, _ROWS)
    facts = (2, 0, 2, 0, 4, True)
    return [
        _places(), values, _places(), values, *map(torch.tensor, pointers),
        *map(torch.tensor, facts), _dense(x), _dense(x),
    ]  # fmt: skip


def sparse_products(x: Tensor, y: Tensor) -> list[Tensor]:
    """Return products of the sparse matrix and a dense one (4, 3), and sums of rows."""
    coo, csr = _coo(x), _csr(x)
    total = torch.zeros(3, 3, dtype=x.dtype).to_sparse()
    return [
        _aten.hspmm.default(coo, y).to_dense(),
        _aten.smm.default(coo, y).to_dense(),
        _aten.sspaddmm.default(total, coo, y).to_dense(),
        _aten._sparse_addmm.default(y[:3] * 0, coo, y),
        _aten._sparse_sum.default(coo).reshape(()),
        _aten._sparse_sum.dtype(coo, dtype=x.dtype).reshape(()),
        _aten._sparse_sum.dim(coo, [1]).to_dense(),
        _aten._sparse_sum.dim_dtype(coo, [1], dtype=x.dtype).to_dense(),
        _aten._sparse_csr_sum.dim_dtype(csr, [1], True, dtype=x.dtype).to_dense(),
        _aten._sparse_csr_prod.dim_dtype(csr, [1], True, dtype=x.dtype).to_dense(),
        _aten._sparse_broadcast_to.default(coo, [2, 3, 4]).to_dense(),
        _aten._spdiags.default(y.T.contiguous(), torch.tensor([0, 1, -1]), [4, 4]).to_dense(),
        _aten.native_norm.default(coo),
        _aten.native_norm.ScalarOpt_dim_dtype(coo, 2, [0, 1], False, None),
    ]


def sparse_products_by_definition(x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the same of the dense matrix."""
    dense = _dense(x)
    product = torch.einsum("ij,jk->ik", dense, y)
    rows = dense.sum(1)
    factors = torch.stack([row[row != 0].prod() for row in dense])
    diagonals = torch.zeros(4, 4, dtype=x.dtype)
    for column in range(4):
        for k, offset in enumerate((0, 1, -1)):
            if 0 <= column - offset < 4:
                diagonals[column - offset, column] = y[column, k]
    norm = (dense * dense).sum().sqrt()
    return [
        *[product] * 4, dense.sum(), dense.sum(), rows, rows, rows[:, None], factors[:, None],
        torch.stack([dense, dense]), diagonals, norm, norm,
    ]  # fmt: skip


def sparse_sizes(x: Tensor) -> list[Tensor]:
    """Return sparse tensors that were resized, filled and copied."""
    kind = {"dtype": x.dtype, "layout": torch.sparse_coo}
    coo, empty = _coo(x), _aten.sparse_coo_tensor.size([3, 4], **kind)
    larger = _aten.sparse_resize.default(coo, [4, 5], 2, 0)
    in_place = _aten.sparse_resize_.default(_coo(x), [4, 5], 2, 0)
    cleared = _aten.sparse_resize_and_clear.default(coo, [2, 2], 2, 0)
    like = _aten.resize_as_sparse.default(empty, coo)
    copied = _aten.copy_sparse_to_sparse.default(empty, coo)
    over = _aten.copy_sparse_to_sparse_.default(empty, coo)
    dims = _aten._sparse_coo_tensor_with_dims.default(2, 0, [3, 4], **kind)
    both = [larger, in_place, cleared, like, copied, over, dims]
    return [one.to_dense() for one in both]


def sparse_sizes_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same of dense matrices."""
    dense = _dense(x)
    larger = torch.zeros(4, 5, dtype=x.dtype)
    larger[:3, :4] = dense
    nothing = torch.zeros(3, 4, dtype=x.dtype)
    return [larger, larger, larger.new_zeros(2, 2), nothing, dense, dense, nothing]


def sparse_conversions(x: Tensor) -> list[Tensor]:
    """Return the matrix after it was in each layout."""
    dense = _dense(x)
    return [
        _aten._to_sparse.sparse_dim(dense, 2).to_dense(),
        _aten._to_sparse_csr.default(dense).to_dense(),
        _aten._to_sparse_csc.default(dense).to_dense(),
        _aten._to_sparse_bsr.default(dense, [1, 2]).to_dense(),
        _aten._to_sparse_bsc.default(dense, [1, 2]).to_dense(),
        _aten._convert_indices_from_coo_to_csr.default(torch.tensor(_PLACES[0]), 3),
        _aten._convert_indices_from_csr_to_coo.default(
            torch.tensor(_POINTERS), torch.tensor(_COLUMNS)
        ),
        _aten.to_dense_backward.default(x, _coo(x)).to_dense(),
        _aten._sparse_mask_projection.default(_coo(x), _coo(x)).to_dense(),
        _aten.sparse_mask.default(x, _coo(x)).to_dense(),
        _aten._coalesce.default(_coo(x, coalesced=False)).to_dense(),
        _aten._sparse_softmax.default(_coo(x), 1, False).to_dense(),
        _aten._sparse_log_softmax.default(_coo(x), 1, False).to_dense(),
        _aten._sparse_sparse_matmul.default(_coo(x), _coo(x).t().coalesce()).to_dense(),
    ]


def sparse_conversions_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same of the dense matrix."""
    dense = _dense(x)
    shares = torch.zeros_like(dense)
    for i in range(3):
        present = [j for row, j in zip(*_PLACES, strict=True) if row == i]
        total = sum(dense[i, j].exp() for j in present)
        for j in present:
            shares[i, j] = dense[i, j].exp() / total
    logs = torch.where(shares > 0, shares.log(), torch.zeros_like(shares))
    return [
        *[dense] * 5, torch.tensor(_POINTERS, dtype=torch.int64), _places(), dense, dense, dense,
        dense, shares, logs, torch.einsum("ij,kj->ik", dense, dense),
    ]  # fmt: skip
