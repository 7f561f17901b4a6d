"""Layouts, out= and writes."""

import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.func import functionalize, jacfwd, vjp
from torch.func import grad as func_grad

from tests.reports.report import report


@report("F13.1", kernel=True, torch="<2.14")
def native_group_norm_with_an_expanded_weight():
    """native_group_norm reads memory beyond an expanded weight.

    It takes the weight for contiguous. A copy of the weight gives the right result.
    """
    x, w, b = torch.arange(3.0).reshape(1, 3), torch.ones(1).expand(3), torch.zeros(1).expand(3)
    return torch.native_group_norm(x, w, b, 1, 3, 1, 1, 1e-5)[0], torch.native_group_norm(
        x, w.clone(), b.clone(), 1, 3, 1, 1, 1e-5
    )[0]


@report("F15.1", kernel=True)
def ihfft2_into_out():
    """ihfft2 of integers over one dimension does not write to out=.

    Without out= it has a result.
    """
    out = torch.zeros(3, dtype=torch.complex64)
    torch.fft.ihfft2(torch.arange(4), dim=0, out=out)
    return out, torch.fft.ihfft2(torch.arange(4), dim=0)


@report("F15.2", raises="must match the size of tensor", kernel=True)
def normal_into_an_empty_out():
    """normal(mean, number, out=) does not resize an empty out.

    Other operators resize it to the shape of the result.
    """
    return torch.normal(torch.zeros(2, 3), 1.0, out=torch.empty(0)).shape, torch.Size([2, 3])


@report("F16.1", raises="view size is not compatible", kernel=True)
def take_along_dim_of_a_transposed_tensor():
    """take_along_dim without dim refuses a transposed tensor.

    The documentation says that it indexes the flattened tensor.
    """
    x, i = torch.arange(6.0).reshape(3, 2).t(), torch.zeros(2, 2, dtype=torch.long)
    expected = torch.take_along_dim(x.clone(memory_format=torch.contiguous_format), i)
    return torch.take_along_dim(x, i), expected


@report("F16.2", raises="view size is not compatible")
def gradient_of_max_unpool2d_with_transposed_indices():
    """The gradient of max_unpool2d refuses transposed indices.

    It takes the cotangent at the indices, whatever their layout.
    """
    i = torch.tensor([[[[0, 2], [8, 10]]]]).transpose(2, 3)
    g = torch.arange(16.0).reshape(1, 1, 4, 4)
    gradient = vjp(lambda x: F.max_unpool2d(x, i, 2), torch.ones(1, 1, 2, 2))[1](g)[0]
    return gradient, g.flatten()[i]


@report("F16.3", raises="grad_input must be contiguous", kernel=True)
def gradient_of_nll_loss_for_a_transposed_image():
    """The gradient of nll_loss for images refuses a transposed input.

    It is minus the cotangent at the target's class.
    """
    x, t = torch.randn(2, 2, 2, 3).transpose(1, 3), torch.zeros(2, 2, 2, dtype=torch.long)
    gradient = vjp(lambda x: F.nll_loss(x, t, reduction="none"), x)[1](torch.ones(2, 2, 2))[0]
    return gradient, torch.tensor([-1.0, 0.0, 0.0])[:, None, None].expand(2, 3, 2, 2)


@report("F21.1")
def gradient_of_the_base_of_as_strided_scatter():
    """The gradient of the base of as_strided_scatter is dropped where it should be kept, and kept
    where it should be dropped.

    The four elements of row 0 are overwritten, so their gradient is 0, and that of the others is 1.
    """
    x = torch.arange(16.0).reshape(4, 4).requires_grad_()
    torch.as_strided_scatter(x, torch.ones(2, 2), (2, 2), (1, 2), 0).sum().backward()
    return x.grad, torch.tensor([0.0, 1.0, 1.0, 1.0])[:, None].expand(4, 4)


@report("F23.1", kernel=True)
def lu_solve_of_factors_with_a_dimension_of_size_one():
    """linalg.lu_solve reads factors wrongly that have a batch dimension of size 1 with
    an unusual stride.

    Its kernel takes the stride of that dimension for the distance between matrices. The matrices
    are 1, 2 and 3 times the identity."""
    LU, pivots = torch.linalg.lu_factor(torch.eye(5) * torch.arange(1.0, 4)[:, None, None])
    x = torch.linalg.lu_solve(
        LU.reshape(3, 1, 5, 5), pivots.reshape(3, 1, 5), torch.ones(3, 2, 5, 1)
    )
    return x[:, 0, :, 0], (1 / torch.arange(1.0, 4))[:, None].expand(3, 5)


@report("F24.1")
def functionalize_of_a_write_through_detach():
    """functionalize loses the history of what is written through detach() or under no_grad.

    Such a write changes numbers but not derivatives. Without functionalize the gradient
    is 2 (2x + 1) 2.
    """

    def f(x):
        b = x * 2
        b.detach().add_(1)
        return (b * b).sum()

    x = torch.tensor([1.0, 2.0, 3.0])
    return func_grad(functionalize(f))(x), 4 * (2 * x + 1)


@report("F14.1", raises="index 0 out of range")
def jacfwd_of_an_empty_input():
    """jacfwd of det of an empty matrix raises.

    The derivative of a number by no elements has the shape of the input. jacfwd(torch.sin) does
    take an empty tensor."""
    return jacfwd(torch.linalg.det)(torch.ones(0, 0)).shape, torch.Size([0, 0])


@report("F48.1", kernel=True)
def strides_of_logsigmoid_on_abstract_tensors():
    """logsigmoid of an abstract tensor in channels-last order has other strides than of a real one.

    A compiler that plans with abstract tensors needs the strides of the real result.
    """
    x = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    with FakeTensorMode() as mode:
        fake = F.logsigmoid(mode.from_tensor(x)).stride()
    return fake, F.logsigmoid(x).stride()


@report("F48.2", kernel=True)
def strides_of_poisson_on_abstract_tensors():
    """poisson of an abstract permuted tensor has other strides than of a real one.

    A compiler that plans with abstract tensors needs the strides of the real result.
    """
    x = torch.rand(2, 3, 4).permute(0, 2, 1)
    with FakeTensorMode() as mode:
        fake = torch.poisson(mode.from_tensor(x)).stride()
    return fake, torch.poisson(x).stride()


@report("F48.3", kernel=True)
def strides_of_one_hot_on_abstract_tensors():
    """one_hot of an abstract permuted tensor has other strides than of a real one.

    A compiler that plans with abstract tensors needs the strides of the real result.
    """
    x = torch.zeros(2, 3, 4, dtype=torch.long).permute(0, 2, 1)
    with FakeTensorMode() as mode:
        fake = F.one_hot(mode.from_tensor(x), 3).stride()
    return fake, F.one_hot(x, 3).stride()


@report("F48.4", kernel=True)
def strides_of_channel_shuffle_on_abstract_tensors():
    """channel_shuffle of an abstract tensor in channels-last order has other strides
    than of a real one.

    A compiler that plans with abstract tensors needs the strides of the real result.
    """
    x = torch.rand(2, 4, 4, 4).to(memory_format=torch.channels_last)
    with FakeTensorMode() as mode:
        fake = F.channel_shuffle(mode.from_tensor(x), 2).stride()
    return fake, F.channel_shuffle(x, 2).stride()


@report("F48.5", kernel=True)
def strides_on_the_meta_device():
    """On the meta device, results of pixel_shuffle, group_norm and reflecting pad lose the
    channels-last order.

    A meta tensor answers for a real one, whose results are in that order.
    """
    x = torch.rand(2, 4, 4, 4).to(memory_format=torch.channels_last)

    def strides(x):
        return [
            y.stride()
            for y in (F.pixel_shuffle(x, 2), F.group_norm(x, 2), F.pad(x, (1, 1, 1, 1), "reflect"))
        ]

    return strides(x.to("meta")), strides(x)


@report("F91.1", "pytorch#195066", kernel=True, capability="AVX512", torch="<2.15")
def integer_product_of_an_expanded_factor():
    """_int_mm of a factor whose rows are one row in memory reads other memory.

    Each row is 1, and so is each product with 1. A machine with AVX2 alone gives that: there
    torch takes another kernel.
    """
    ones = torch.ones(1, 1, dtype=torch.int8)
    return torch._int_mm(ones.expand(32, 1), ones.expand(1, 32).contiguous()), torch.ones(
        32, 32, dtype=torch.int32
    )


@report("F70.4", "pytorch#170573", kernel=True)
def sum_into_a_view_that_is_too_small():
    """add with out= a view that is too small writes behind the view, into the rest of the tensor.

    It makes the view longer, with a warning. The tensor has other elements there.
    """
    base = torch.zeros(6)
    torch.add(torch.ones(4), 1, out=base[:2])
    return base[2:], torch.zeros(4)
