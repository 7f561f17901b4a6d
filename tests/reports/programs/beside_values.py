"""Batches without entries, places of outputs, memory of buffers, and torch.autograd.functional."""

import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.autograd.functional import jacobian
from torch.func import vmap

from tests.reports.report import report


@report("F25.2", raises="can not return a BatchedTensor when out_dim is None")
def output_without_a_place_under_two_vmaps():
    """The inner of two vmaps refuses out_dims=None for a tensor that only the outer one batches.

    In the inner vmap every entry has the same y.
    """
    x, y = torch.ones(3), torch.arange(2.0)

    def inner(y):
        return vmap(lambda x, y: y, in_dims=(0, None), out_dims=None)(x, y)

    return vmap(inner)(y), y


@report("F44.2", raises="index 0 out of range")
def number_beside_a_batch_without_entries():
    """vmap of add of a number and a matrix fails if the batch has no entries.

    vmap of other operators gives a batch without entries.
    """
    return vmap(torch.add)(torch.rand(0), torch.rand(0, 3)).shape, torch.Size([0, 3])


@report("F44.3")
def pixel_shuffle_of_a_batch_without_entries():
    """vmap of pixel_shuffle gives another shape if the batch has no entries.

    A batch of one entry has the shape (1, 1, 4, 4), so a batch of none has (0, 1, 4, 4).
    """
    return vmap(lambda x: F.pixel_shuffle(x, 2))(torch.rand(0, 4, 2, 2)).shape, torch.Size(
        [0, 1, 4, 4]
    )


@report("F48.6", runtime="fake tensors are torch's")
def strides_of_a_fake_copysign():
    """copysign of a fake tensor and a number has other strides than of a tensor.

    The kernel keeps the order of the input's dimensions in memory.
    """
    x = torch.rand(2, 3).t()
    with FakeTensorMode() as mode:
        fake = torch.copysign(mode.from_tensor(x), mode.from_tensor(torch.ones(3, 2))).stride()
    return fake, torch.copysign(x, torch.ones(3, 2)).stride()


@report("F48.7", kernel=True)
def strides_of_conv_transpose_on_the_meta_device():
    """conv_transpose2d on the meta device has other strides than on the CPU.

    The kernel of the CPU keeps the order of a channels-last input.
    """
    x, w = torch.rand(1, 4, 5, 5).to(memory_format=torch.channels_last), torch.rand(4, 3, 2, 2)
    return F.conv_transpose2d(x.to("meta"), w.to("meta")).stride(), F.conv_transpose2d(
        x, w
    ).stride()


@report("F55.3", rtol=1e-2, runtime="its formula divides in the same order")
def gradient_of_a_division_of_half_precision():
    """The gradient of x/y by y overflows in float16 where it is a number of float16.

    It is -v·x/y² for the cotangent v. Only x/y² overflows.
    """
    x, y = (
        torch.tensor([1.0], dtype=torch.float16),
        torch.tensor([0.002], dtype=torch.float16, requires_grad=True),
    )
    (x / y).backward(torch.tensor([0.01], dtype=torch.float16))
    return y.grad, -0.01 * x.double() / y.detach().double() ** 2


@report("F70.1", kernel=True)
def product_into_a_column():
    """matmul of a vector and a matrix with out= a column of another tensor writes
    beside the column.

    It makes the view contiguous in the memory of that tensor.
    """
    base = torch.ones(2, 2)
    torch.matmul(torch.arange(2.0), torch.arange(4.0).reshape(2, 2), out=base[:, 0])
    return base, torch.tensor([[2.0, 1.0], [3.0, 1.0]])


@report("F70.2", kernel=True)
def product_into_the_memory_of_a_factor():
    """mm with out= memory of a factor gives a wrong product and no error.

    Elementwise operators refuse such a buffer.
    """
    memory = torch.arange(1700.0)
    a, b, out = memory[:1600].view(40, 40), torch.ones(40, 40), memory[1:1601].view(40, 40)
    expected = torch.mm(a.clone(), b)
    torch.mm(a, b, out=out)
    return out, expected


@report("F70.3", kernel=True)
def identity_into_one_element():
    """eye with out= a tensor all of whose elements are one gives ones and no error.

    Other operators refuse such a buffer.
    """
    out = torch.zeros(()).expand(2, 2)
    torch.eye(2, out=out)
    return out, torch.eye(2)


@report("F70.5", kernel=True)
def source_in_the_memory_of_the_target():
    """masked_scatter_ of a source in the memory that it writes gives wrong values
    and no error.

    scatter_ and index_copy_ refuse such a source.
    """
    memory = torch.arange(5.0)
    target, source = memory[:4], memory[1:]
    mask = torch.tensor([False, False, True, True])
    expected = target.clone().masked_scatter_(mask, source.clone())
    target.masked_scatter_(mask, source)
    return target, expected


@report("F71.1", raises="stack expects a non-empty TensorList")
def jacobian_of_no_outputs():
    """jacobian of torch.autograd.functional fails for a function of an empty tensor.

    The Jacobian of 0 outputs by 0 inputs is an empty matrix, which torch.func.jacrev gives.
    """
    return jacobian(torch.sin, torch.ones(0)), torch.ones(0, 0)


@report(
    "F25.3",
    raises=(
        "argument 'dim' must be int, not NoneType",
        "Please look up dimensions by name, got: name = None",  # torch 2.12
    ),
)
def output_without_a_place_in_chunks():
    """vmap with chunk_size fails for out_dims=None.

    The second output does not depend on the batch. Without chunk_size it has the
    shape of one element.
    """
    x, two = torch.arange(4.0), torch.tensor(2.0)
    return vmap(lambda a: (a, 3 * two), out_dims=(0, None), chunk_size=2)(x), (x, torch.tensor(6.0))
