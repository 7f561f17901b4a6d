"""Ops on lists of tensors, `torch._foreach_…`."""

import torch
import torch.autograd.forward_ad as forward

from tests.reports.report import report


@report("F338.1")
def tangent_of_the_larger_of_a_number_and_an_element():
    """The tangent of _foreach_maximum of a list and a number is the number where that is larger.

    A number does not depend on the list, so the tangent is 0 there.
    """
    with forward.dual_level():
        x = forward.make_dual(torch.tensor([1.0, 3.0]), torch.ones(2))
        (result,) = torch._foreach_maximum([x], 2.0)
        tangent = forward.unpack_dual(result).tangent
    return tangent, torch.tensor([0.0, 1.0])


@report("F338.2")
def tangent_of_the_smaller_of_a_number_and_an_element():
    """The tangent of _foreach_minimum of a list and numbers is the number where that is smaller.

    As that of _foreach_maximum.
    """
    with forward.dual_level():
        x = forward.make_dual(torch.tensor([1.0, 3.0]), torch.ones(2))
        (result,) = torch._foreach_minimum([x], [2.0])
        tangent = forward.unpack_dual(result).tangent
    return tangent, torch.tensor([1.0, 0.0])


@report("F339.1", runtime="it refuses the tensor where torch takes it for a number")
def tangent_of_a_list_and_a_tensor():
    """The tangent of _foreach_add of a list and a tensor leaves out that of the tensor.

    In forward mode torch takes a tensor without dimensions for a number, and drops its tangent.
    """
    with forward.dual_level():
        x = forward.make_dual(torch.ones(2), torch.ones(2))
        y = forward.make_dual(torch.tensor(3.0), torch.tensor(5.0))
        (result,) = torch._foreach_add([x], y)
        tangent = forward.unpack_dual(result).tangent
    return tangent, torch.full((2,), 6.0)


@report("F339.2", runtime="it refuses the tensor where torch takes it for a number")
def tangent_of_a_tensor_as_a_factor():
    """jvp by the factor alpha of add is 0, where grad refuses a tensor there.

    So it is for each argument that is a number, such as the slope of leaky_relu.
    """
    x, y = torch.tensor([1.0, 2.0]), torch.tensor(3.0)
    with forward.dual_level():
        result = torch.add(x, x, alpha=forward.make_dual(y, torch.tensor(1.0)))
        tangent = forward.unpack_dual(result).tangent
    return torch.zeros(2) if tangent is None else tangent, x


@report("F340.1", raises="a different size than that of the original Tensor")
def tangent_of_norms_of_a_list():
    """Forward mode of _foreach_norm raises: its tangents have a dimension too many.

    That of the norm of one tensor is x·t ÷ ‖x‖.
    """
    with forward.dual_level():
        x = forward.make_dual(torch.tensor([3.0, 4.0]), torch.ones(2))
        (result,) = torch._foreach_norm([x])
        tangent = forward.unpack_dual(result).tangent
    return tangent, torch.tensor(1.4)


@report("F341.1", raises="select() cannot be applied to a 0-dim tensor")
def gradient_of_a_quotient_of_numbers_in_a_list():
    """The backward pass of _foreach_addcdiv raises for tensors without dimensions.

    It takes an element of each divisor by the place of that in the list.
    """
    x, y, z = (torch.tensor(number, requires_grad=True) for number in (1.0, 2.0, 4.0))
    (result,) = torch._foreach_addcdiv([x], [y], [z])
    gradients = torch.autograd.grad(result, (x, y, z))
    return torch.stack(gradients), torch.tensor([1.0, 0.25, -0.125])


@report("F342.1", "pytorch#144580", raises="inconsistent range for TensorList output")
def gradient_of_a_list_by_one_tensor():
    """The backward pass of _foreach_mul of a list and a tensor that requires grad raises.

    So do those of _foreach_add and _foreach_div.
    """
    xs = [torch.ones(2, requires_grad=True) for _ in range(2)]
    y = torch.tensor(3.0, requires_grad=True)
    results = torch._foreach_mul(xs, y)
    (gradient,) = torch.autograd.grad(sum(result.sum() for result in results), y)
    return gradient, torch.tensor(4.0)
