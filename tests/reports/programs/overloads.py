"""Overloads of the dispatcher that do not give what the plain op gives: buffers and inputs whose
elements lie apart in memory.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.reports.report import report


@report("F300.1", kernel=True)
def narrow_copy_into_gaps() -> Any:
    """narrow_copy(out=) writes to a buffer with gaps as if it had none.

    The kernel copies blocks of bytes to the address of the buffer and does not look at its strides.
    """
    x = torch.arange(6.0).reshape(3, 2)
    buffer = torch.zeros(3, 2)[:, ::2]
    torch.ops.aten.narrow_copy.out(x, 1, 0, 1, out=buffer)
    return buffer, x[:, :1]


@report("F300.2", kernel=True)
def softmax_into_gaps() -> Any:
    """aten::_softmax.out writes to a buffer with gaps as if it had none.

    So do _log_softmax.out and both backward kernels. Elements of the result stand in the gaps.
    """
    x = torch.zeros(4)
    buffer = torch.zeros(8)[::2]
    torch.ops.aten._softmax.out(x, 0, False, out=buffer)
    return buffer, torch.full((4,), 0.25)


@report("F300.3", kernel=True)
def pooled_into_gaps() -> Any:
    """avg_pool3d.out writes to a buffer with gaps as if it had none.

    So do adaptive_max_pool3d.out, fractional_max_pool2d.output, fractional_max_pool3d.output,
    im2col.out, col2im.out, slow_conv_transpose2d.out and slow_conv_transpose3d.out.
    """
    x = torch.ones(1, 1, 2, 2, 4)
    buffer = torch.zeros(1, 1, 1, 1, 4)[..., ::2]
    torch.ops.aten.avg_pool3d.out(x, [2, 2, 2], out=buffer)
    return buffer, torch.ones(1, 1, 1, 1, 2)


@report("F301.1", kernel=True)
def gradient_of_pool_with_gaps() -> Any:
    """adaptive_max_pool3d_backward reads indices with gaps as if they had none.

    So do fractional_max_pool2d_backward and fractional_max_pool3d_backward. The gradient goes to
    other elements.
    """
    x = torch.arange(8.0).reshape(1, 1, 2, 2, 2)
    pooled, places = torch.ops.aten.adaptive_max_pool3d.default(x, [2, 2, 2])
    apart = torch.zeros(1, 1, 2, 2, 4, dtype=torch.int64)[..., ::2].copy_(places)
    one = torch.ones_like(pooled)
    return torch.ops.aten.adaptive_max_pool3d_backward.default(one, x, apart), one


@report("F301.2", kernel=True)
def embedding_bag_with_gaps() -> Any:
    """aten::_embedding_bag reads indices with gaps as if they had none.

    Rows of the table are summed whose numbers lie in the gaps. Its backward kernels refuse them.
    """
    table = torch.tensor([[1.0], [10.0]], dtype=torch.float64)
    chosen, offsets = torch.tensor([1, 0, 1, 0])[::2], torch.tensor([0])
    found = torch.ops.aten._embedding_bag.default(table, chosen, offsets)[0]
    return found, torch.tensor([[20.0]], dtype=torch.float64)


@report("F301.3", kernel=True)
def compressed_indices_with_gaps() -> Any:
    """_convert_indices_from_coo_to_csr reads indices with gaps as if they had none.

    The pointers count the numbers that lie in the gaps.
    """
    rows = torch.tensor([0, 0, 0, 0, 1, 0, 1, 0])[::2]
    expected = torch.tensor([0, 2, 4])
    return torch.ops.aten._convert_indices_from_coo_to_csr.default(rows, 2), expected


@report("F302.1", kernel=True)
def frequencies_into_gaps() -> Any:
    """fftfreq(out=) gives positive frequencies where negative ones are due.

    The buffer has gaps. Half of the numbers lack the step that makes them negative.
    """
    buffer = torch.zeros(8)[::2]
    torch.fft.fftfreq(4, out=buffer)
    return buffer, torch.tensor([0.0, 0.25, -0.5, -0.25])


@report("F302.2", kernel=True)
def transformed_into_a_buffer() -> Any:
    """ihfftn(out=) of one dimension leaves the buffer as it was.

    Nothing is written to it, and no error says so.
    """
    x = torch.tensor([1.0, 2.0, 3.0])
    buffer = torch.zeros(2, dtype=torch.complex64)
    torch.fft.ihfftn(x, out=buffer)
    return buffer, torch.fft.ihfftn(x)


@report("F303.1", kernel=True)
def loss_into_an_empty_buffer() -> Any:
    """binary_cross_entropy.out with a reduction writes the mean of an empty buffer.

    The kernel writes each loss to the buffer without resizing it, and then reduces what is there.
    """
    x, target = torch.full((2,), 0.5), torch.ones(2)
    buffer = torch.empty(0)
    torch.ops.aten.binary_cross_entropy.out(x, target, out=buffer)
    return buffer, torch.tensor(0.6931)


@report("F303.2", kernel=True)
def combination_into_a_buffer() -> Any:
    """_compute_linear_combination.out adds to what is in the buffer.

    The functional form begins with zeros, and the form with a buffer does not.
    """
    x = torch.ones(1, 2)
    buffer = torch.full((1, 2), 5.0)
    torch.ops.aten._compute_linear_combination.out(x, torch.ones(1, 1), out=buffer)
    return buffer, x


@report("F304.1", kernel=True)
def moments_of_fused_adam() -> Any:
    """aten::_fused_adam.out does not move the moments.

    The schema says that it writes to them. Only the parameters are written, to the buffers.
    """
    x, slope, mean, square = (torch.ones(2) for _ in range(4))
    buffer, step = torch.zeros(2), torch.tensor(1.0)
    mean.zero_()
    torch.ops.aten._fused_adam.out(
        [x], [slope], [mean], [square], [], [step], lr=0.1, beta1=0.5, beta2=0.5, weight_decay=0.0,
        eps=1e-8, amsgrad=False, maximize=False, out=[buffer],
    )  # fmt: skip
    return mean, torch.full((2,), 0.5)
