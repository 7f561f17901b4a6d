"""Cast by hand as autocast on the CPU is documented to cast, so that ops can be compared with it.

``torch.mm`` rounds float32 inputs to bfloat16, ``torch.trace`` widens bfloat16 inputs to float32,
and ``torch.cat`` widens its inputs to the widest of their dtypes. Source:
https://pytorch.org/docs/stable/amp.html#cpu-op-specific-behavior
"""

from __future__ import annotations

from typing import Any

import torch

from gen.outcomes import Unsuitable
from gen.samples.samples import Sample
from gen.targets.protocol import Values

Tensor = torch.Tensor

_FUNCTIONAL = "torch.nn.functional."


def _names(prefix: str, names: str) -> list[str]:
    return [prefix + name for name in names.split()]


LOWER = frozenset(
    _names("torch.", "addbmm addmm baddbmm bmm matmul mm linalg.multi_dot linalg.vecdot")
    + _names(
        _FUNCTIONAL,
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear",
    )
)
"""Ops whose inputs of single precision are rounded to the low dtype, which results have."""
SINGLE = frozenset(
    _names(
        "torch.",
        (
            "cdist cholesky cholesky_inverse cholesky_solve lu_solve ormqr pinverse polar prod "
            "quantile nanquantile stft trace"
        ),
    )
    + _names("torch.", "svd qr geqrf")
    + _names("torch.fft.", "fft fft2 fftn hfft ifft ifft2 ifftn ihfft irfft rfft rfft2 rfftn")
    + _names(
        "torch.linalg.",
        (
            "cholesky cond det eig eigh eigvals eigvalsh householder_product inv inv_ex lstsq "
            "matrix_norm matrix_rank"
        ),
    )
    + _names("torch.linalg.", "qr solve svd svdvals tensorinv tensorsolve")
    + _names(
        _FUNCTIONAL,
        (
            "adaptive_avg_pool3d avg_pool3d max_pool3d max_unpool2d max_unpool3d grid_sample "
            "pad.reflect pad.replicate"
        ),
    )
    + _names(
        _FUNCTIONAL,
        (
            "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss "
            "cross_entropy ctc_loss huber_loss kl_div"
        ),
    )
    + _names(
        _FUNCTIONAL,
        (
            "hinge_embedding_loss l1_loss margin_ranking_loss mse_loss multi_margin_loss "
            "multilabel_margin_loss nll_loss"
        ),
    )
    + _names(_FUNCTIONAL, "poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss")
)
"""Ops whose inputs of a low dtype are widened to single precision, which results have."""
WIDEST = frozenset(("torch.cat", "torch.stack", "torch.index_copy"))
"""Ops whose inputs of different dtypes are widened to the widest one."""
OTHER = frozenset(
    _names("torch.", "sin exp log add mul sum mean cumsum softmax where gather flip")
    + _names(_FUNCTIONAL, "gelu relu layer_norm group_norm avg_pool2d max_pool2d embedding")
)
"""Some of the many ops of which autocast says nothing: they run in the dtype of their inputs."""


def cast_by_hand(low: torch.dtype, sample: Sample, *values: Any) -> Values:
    """Return the results of the op with the casts that autocast to `low` makes.

    Raises Unsuitable for an op that is in no list.
    """
    name = sample.op.name
    if name in LOWER:
        results = []
        # What lies between is computed in a wide dtype, and rounded once.
        for result in sample(*(round_to(x, low) for x in values)):
            results.append(result.to(low) if result.is_floating_point() else result)
        return tuple(results)
    if name in SINGLE:
        inputs = list(values)
        for place, x in enumerate(inputs):
            if x.dtype in (torch.bfloat16, torch.float16):
                inputs[place] = x.float()
        return sample(*inputs)
    if name in WIDEST | OTHER:
        return sample(*values)
    raise Unsuitable(f"autocast is not documented for {name}")


def round_to(x: Tensor, low: torch.dtype) -> Tensor:
    """Round `x` to the low dtype, and return it in a dtype that the reference computes in.

    Integers and booleans are unchanged.
    """
    if not x.is_floating_point():
        return x
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    return x.to(low).to(wide)
