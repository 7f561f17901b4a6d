"""Uses of parameters by a batch that no function of torch's with a batch in front makes."""

from __future__ import annotations

import torch
from torch import Tensor


def weight_on_the_left(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """x (B, n) times the transposed weight (m, n), plain and plus a bias (m,), as products whose
    first factor is the weight: (B, m)."""
    return torch.mm(weight, x.t()).t(), torch.addmm(bias.unsqueeze(1), weight, x.t(), alpha=2.0).t()


def weight_times_vector(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The same by products of the weight with each row of x."""
    rows = x.unbind(0)
    return torch.stack([torch.mv(weight, row) for row in rows]), torch.stack(
        [torch.addmv(bias, weight, row, alpha=2.0) for row in rows]
    )


def rows_of_table(indices: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    """Rows of a table (m, n) at indices (B, T) by each kind of indexing: (B, T, n)."""
    picked = table.index_select(0, indices.flatten()).reshape(*indices.shape, table.shape[1])
    return table[indices], torch.ops.aten._unsafe_index.Tensor(table, [indices]), picked
