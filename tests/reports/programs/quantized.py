"""Quantized numbers."""

import torch

from tests.reports.report import report


@report("F152.1", kernel=True)
def dequantized_number_of_32_bits():
    """A large number that is quantized to 32 bits with a negative zero point is taken back as a
    negative one.

    The whole number is 2**31 - 1. Its distance from the zero point -1000 does not have 32 bits.
    """
    x = torch.quantize_per_tensor(torch.tensor([1e10]), 1.0, -1000, torch.qint32)
    return x.dequantize(), torch.tensor([2.0**31 + 999])


@report("F152.2", "pytorch#116992", kernel=True)
def large_number_that_is_quantized_by_channel():
    """fake_quantize_per_channel_affine takes 1e30 to the lower end of the range.

    fake_quantize_per_tensor_affine takes it to the upper one.
    """
    x, zero = torch.tensor([[1e30]]), torch.zeros(1, dtype=torch.int32)
    found = torch.fake_quantize_per_channel_affine(x, torch.ones(1), zero, 0, 0, 255)
    return found, torch.fake_quantize_per_tensor_affine(x, 1.0, 0, 0, 255)


@report("F152.3", kernel=True)
def gradient_of_a_scale_with_a_negative_zero_point():
    """The gradient by a learnable scale is that of another zero point, if the zero point is
    negative.

    Below the range the result is (-8 - zero) * scale, with the slope -3 for the zero point -5.
    """
    scale, zero = torch.ones(1, requires_grad=True), torch.tensor([-5.0])
    x = torch.tensor([-10.0])
    found = torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero, -8, 7, 1.0)
    return torch.autograd.grad(found.sum(), scale)[0], torch.tensor([-3.0])
