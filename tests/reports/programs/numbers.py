"""Arguments that are no tensors, out of their range."""

import torch
import torch.nn.functional as F

from tests.reports.report import report

META = "tensors of meta run the kernels of torch"


@report("F197.1", kernel=True, runtime=META)
def softmax_of_a_number_along_dimension_1_on_meta():
    """softmax of a number along dimension 1 is taken on the meta device.

    So are sort, argsort, index_select, cummax and cummin of a number. The CPU refuses all of
    them.
    """
    try:
        answer = list(torch.softmax(torch.ones((), device="meta"), 1).shape)
    except IndexError:
        answer = "an error"
    return answer, "an error"


@report("F197.2", kernel=True, runtime=META)
def argsort_along_a_huge_dimension_on_meta():
    """argsort along dimension 1 of a vector is taken on the meta device.

    The CPU refuses the dimension.
    """
    try:
        answer = list(torch.argsort(torch.ones(3, device="meta"), 1).shape)
    except IndexError:
        answer = "an error"
    return answer, "an error"


@report("F197.3", kernel=True, runtime=META)
def convolution_of_negative_dilation_on_meta():
    """A convolution with a dilation of -1 is taken on the meta device.

    So are zero groups, a negative padding and stride of transposed convolutions. The CPU refuses
    all of them.
    """
    try:
        x, weight = torch.ones(1, 1, 4, device="meta"), torch.ones(1, 1, 3, device="meta")
        answer = list(F.conv1d(x, weight, dilation=-1).shape)
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F197.4", kernel=True, runtime=META)
def diagonal_of_other_length_on_meta():
    """diagonal_scatter of a source of another size is taken on the meta device.

    So are slice_scatter, and diagonals along one dimension twice. The CPU refuses them.
    """
    try:
        x, y = torch.ones(3, 3, device="meta"), torch.ones(3, device="meta")
        answer = list(torch.diagonal_scatter(x, y, offset=1).shape)
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F197.5", kernel=True, runtime=META)
def unknown_reduction_on_meta():
    """index_reduce by a reduction of no known name is taken on the meta device.

    So are searchsorted with an unknown side and hash_tensor of an unknown mode. The CPU refuses
    them.
    """
    try:
        x, index = torch.ones(2, device="meta"), torch.zeros(2, dtype=torch.int64, device="meta")
        answer = list(x.index_reduce(0, index, x, "x").shape)
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F197.6", kernel=True, runtime=META)
def complex_factor_of_real_tensors_on_meta():
    """addcmul of real tensors by a complex factor is taken on the meta device.

    So is a fill value, a threshold or an alpha that the dtype cannot hold. The CPU refuses them.
    """
    try:
        x = torch.ones(2, device="meta")
        answer = torch.addcmul(x, x, x, value=1j).dtype
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F197.7", kernel=True, runtime=META)
def image_of_size_0_on_meta():
    """interpolate to the size 0 is taken on the meta device.

    The CPU refuses it.
    """
    try:
        x = torch.ones(1, 1, 4, device="meta")
        answer = list(F.interpolate(x, 0, mode="linear", align_corners=True).shape)
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F197.8", kernel=True, runtime=META)
def sum_along_no_dimensions_on_meta():
    """nansum along an empty tuple of dimensions keeps all dimensions on the meta device.

    On the CPU it is the sum of all elements, as nanmean, sum and mean along () are.
    """
    x = torch.ones(2, 3)
    return list(torch.nansum(x.to("meta"), ()).shape), list(torch.nansum(x, ()).shape)


@report("F197.9", kernel=True, runtime=META)
def celu_of_alpha_0_on_meta():
    """celu with alpha = 0 is taken on the meta device.

    So are smooth_l1_loss with a negative beta and mvlgamma with p = 0. The CPU refuses them.
    """
    try:
        answer = list(F.celu(torch.ones(2, device="meta"), 0.0).shape)
    except (RuntimeError, ZeroDivisionError):
        answer = "an error"
    return answer, "an error"


@report("F198.1", kernel=True, raises="Autograd not support dtype: Char")
def sum_in_bytes_of_a_leaf():
    """sum(dtype=torch.int8) of a tensor that requires grad raises.

    So do prod, nansum, cumsum and cumprod. Without requires_grad it is a sum, and a cast to int8 of
    the leaf is taken.
    """
    x = torch.ones(2, requires_grad=True)
    return x.sum(dtype=torch.int8), x.to(torch.int8).sum(dtype=torch.int8)


@report("F199.1", kernel=True, runtime="it calls the kernel")
def grid_sampler_of_an_unknown_mode():
    """grid_sampler_2d takes the interpolation mode -1, and gives memory as it was.

    The meta device and the gradient refuse it, and grid_sample knows the modes by their names.
    """
    try:
        grid = torch.zeros(1, 1, 1, 2)
        answer = torch.grid_sampler_2d(torch.ones(1, 1, 2, 2), grid, -1, 0, True).numel()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F199.2", kernel=True, runtime="it calls the kernel")
def unfold_of_a_huge_kernel():
    """unfold with a kernel of 2**63 - 1 gives numbers that are memory as it was.

    The product of such sizes leaves the range of 64 bits. A kernel of 2**40 is refused.
    """
    try:
        answer = F.unfold(torch.ones(1, 1, 5, 5), 2**63 - 1, stride=2).numel()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F199.3", kernel=True, runtime="it calls the kernel")
def windows_at_huge_steps():
    """unfold of three elements into one window is refused if they have gaps and steps are huge.

    Without gaps it is taken. The stride of windows leaves the range of 64 bits, and no window has
    it.
    """
    try:
        answer = list(torch.ones(6)[::2].unfold(0, 3, 2**62).shape)
    except RuntimeError:
        answer = "an error"
    return answer, list(torch.ones(3).unfold(0, 3, 2**62).shape)
