"""First derivatives by the plain engine."""

import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tests.reports.report import report


@report("F84.1", "pytorch#196680", torch="<2.14")
def gradient_of_ldexp_by_a_negative_exponent():
    """The gradient of ldexp is 0 where the exponent is a negative integer.

    ldexp(x, -2) is x/4, so its gradient is 1/4.
    """
    x = torch.ones(2, requires_grad=True)
    torch.ldexp(x, torch.tensor([1, -2])).sum().backward()
    return x.grad, torch.tensor([2.0, 0.25])


@report("F85.1", "pytorch#94336", "pytorch#27614")
def gradient_of_scatter_reduce_of_a_longer_source():
    """The gradient of scatter_reduce by a source that is longer than the index is not 0
    beyond the index.

    The index has one element, so the first element of the source is used, and no other. Its
    gradient is the number that it multiplies."""
    source = torch.tensor([4.0, 5.0, 6.0], requires_grad=True)
    torch.scatter_reduce(
        torch.tensor([2.0, 3.0]), 0, torch.tensor([1]), source, "prod"
    ).sum().backward()
    return source.grad, torch.tensor([3.0, 0.0, 0.0])


@report("F85.2", "pytorch#94336", "pytorch#27614", raises="returned an invalid gradient")
def gradient_of_scatter_of_a_longer_source():
    """The gradient of scatter by a source that is longer than the index raises.

    The forward pass takes such a source, and the part of it that the index covers.
    """
    source = torch.tensor([4.0, 5.0, 6.0], requires_grad=True)
    torch.scatter(torch.zeros(2), 0, torch.tensor([1]), source).sum().backward()
    return source.grad, torch.tensor([1.0, 0.0, 0.0])


@report("F86.1", "pytorch#193671")
def gradient_of_rrelu_under_hooks_of_saved_tensors():
    """The gradient of rrelu is made of memory that is not filled yet, if a hook
    copies what is saved.

    rrelu multiplies a negative number by a slope that it draws. So the gradient at -1 is the result
    with the sign turned."""
    x = torch.full((64,), -1.0, requires_grad=True)
    with saved_tensors_hooks(torch.clone, lambda saved: saved):
        y = F.rrelu(x, 0.1, 0.9, training=True)
    y.sum().backward()
    return x.grad, -y.detach()


@report("F86.2", "pytorch#193671")
def gradient_of_rrelu_in_a_checkpoint():
    """The gradient of rrelu in a checkpoint is made of memory that is not filled yet.

    The second run stops when the last tensor is saved, which is before the slopes are drawn.
    """
    x = torch.full((64,), -1.0, requires_grad=True)
    y = checkpoint(lambda x: F.rrelu(x, 0.1, 0.9, training=True), x, use_reentrant=False)
    y.sum().backward()
    return x.grad, -y.detach()


@report("F96.1", kernel=True)
def gradient_of_interpolate_by_a_factor_that_keeps_the_size():
    """The gradient of interpolate by nearest along a line is that of the identity, if the
    factor keeps the size.

    1.3 times 2 is 2 elements. The result takes the first element twice, so the second one
    has no part in it.
    """
    x = torch.tensor([[[1.0, 2.0]]], requires_grad=True)
    y = F.interpolate(x, scale_factor=1.3, mode="nearest")
    y.backward(torch.tensor([[[1.0, 10.0]]]))
    expected = torch.tensor([[[11.0, 0.0]]]) if y[0, 0, 1] == 1 else torch.tensor([[[1.0, 10.0]]])
    return x.grad, expected


@report("F96.2", kernel=True)
def gradient_of_bicubic_interpolate_by_a_factor_that_keeps_the_size():
    """The gradient of bicubic interpolate is that of the identity, if the factor keeps the size; so
    it is with antialias.

    interpolate is linear. So the gradient by an element is the result for an image of that element
    alone, times the cotangent."""

    def f(x):
        return F.interpolate(x, scale_factor=1.3, mode="bicubic")

    x, c = torch.zeros(1, 1, 2, 2, requires_grad=True), torch.arange(1.0, 5).reshape(1, 1, 2, 2)
    f(x).backward(c)
    units = torch.eye(4).reshape(4, 1, 2, 2)
    return x.grad, (f(units) * c).sum((1, 2, 3)).reshape(1, 1, 2, 2)
