"""Uses of a parameter: programs, a parameter, a batch, and whether the op gives factors."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

TABLE = torch.arange(10.0, dtype=torch.float64).reshape(5, 2).sin()
IDS = torch.tensor([[0, 3, 3], [4, 1, 0], [2, 2, 2]])
ENDS = torch.tensor([0, 0, 2])
IMAGES = torch.linspace(-1, 1, 4 * 2 * 5 * 5, dtype=torch.float64).reshape(4, 2, 5, 5).cos()
KERNEL = torch.linspace(-1, 1, 2 * 3 * 3 * 2, dtype=torch.float64).reshape(2, 3, 3, 2)

# whether the op gives factors
Use = tuple[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor, bool]
USES: dict[str, Use] = {
    "rows by an index": (lambda w, i: w[i], TABLE, IDS, True),
    "rows by an index from the end": (lambda w, i: w[i - 5], TABLE, IDS, True),
    "rows by an index of all samples": (lambda w, i: w[IDS[0]] * i.sum(), TABLE, IDS, True),
    "rows by two indices": (lambda w, i: w[i, i % 2], TABLE, IDS, False),
    "columns by an index": (lambda w, i: w[:, i % 2], TABLE, IDS, False),
    "selected rows": (lambda w, i: w.index_select(0, i), TABLE, IDS, True),
    "selected columns": (lambda w, i: w.index_select(1, i % 2), TABLE, IDS, False),
    "sums of bags": (lambda w, i: F.embedding_bag(i, w, ENDS, mode="sum"), TABLE, IDS, True),
    "means of bags": (lambda w, i: F.embedding_bag(i, w, ENDS), TABLE, IDS, True),
    "means of bags with padding": (
        lambda w, i: F.embedding_bag(i, w, ENDS, padding_idx=3),
        TABLE,
        IDS,
        True,
    ),
    "bags with weights": (
        lambda w, i: F.embedding_bag(
            i, w, ENDS, mode="sum", per_sample_weights=i.to(w.dtype) + 0.5
        ),
        TABLE,
        IDS,
        True,
    ),
    "bags with the last offset": (
        lambda w, i: F.embedding_bag(
            i, w, torch.tensor([0, 2, 3]), mode="mean", include_last_offset=True
        ),
        TABLE,
        IDS,
        True,
    ),
    "transposed convolution": (lambda w, x: F.conv_transpose2d(x, w), KERNEL, IMAGES, True),
    "transposed convolution with steps": (
        lambda w, x: F.conv_transpose2d(
            x, w, stride=(2, 3), padding=1, output_padding=(1, 0), dilation=(1, 2)
        ),
        KERNEL,
        IMAGES,
        True,
    ),
    "transposed convolution with places at which nothing is": (
        lambda w, x: F.conv_transpose2d(
            x, w, stride=(1, 2), padding=1, output_padding=(2, 2), dilation=(3, 4)
        ),
        KERNEL,
        IMAGES,
        True,
    ),
    "transposed convolution in groups": (
        lambda w, x: F.conv_transpose2d(x, w, groups=2),
        KERNEL,
        IMAGES,
        True,
    ),
}


def loss_of_use(use: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of one sample."""

    def loss(w: Tensor, x: Tensor) -> Tensor:
        out = use(w, x)
        return (out**3 + out).sum()

    return loss
