"""Nested tensors and optimizers."""

import torch
from torch.nested import nested_tensor_from_jagged

from tests.reports.report import report


@report("F112.1", kernel=True)
def sum_of_a_nested_tensor_with_holes():
    """The sum of a nested tensor with holes counts what lies in the holes.

    The components are (1, 2) and (4). The 3 lies between them.
    """
    values, offsets, lengths = torch.arange(1.0, 5), torch.tensor([0, 3, 4]), torch.tensor([2, 1])
    nested = nested_tensor_from_jagged(values[:, None], offsets, lengths)
    return nested.sum(), sum(part.sum() for part in nested.unbind())


@report("F112.2", kernel=True)
def mean_of_a_nested_tensor_with_holes():
    """The mean of a nested tensor with holes counts what lies in the holes.

    The components are (1, 2) and (4). The 3 lies between them.
    """
    values, offsets, lengths = torch.tensor([1.0, 2, 90, 4]), torch.tensor([0, 3, 4]), [2, 1]
    nested = nested_tensor_from_jagged(values[:, None], offsets, torch.tensor(lengths))
    return nested.mean(), torch.cat(nested.unbind()).mean()


@report("F113.1", kernel=True, raises="Dimension out of range")
def gradient_of_softmax_along_the_last_dimension():
    """The backward pass of softmax along the last dimension of a nested tensor raises, if the
    dimension is counted from the front.

    The forward pass takes it.
    """
    x = torch.tensor([[1.0, 0.0], [2.0, 5.0], [3.0, 1.0]], requires_grad=True)
    weights = torch.tensor([[1.0, 2.0], [3.0, 5.0], [7.0, 11.0]])
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 3]))
    (found,) = torch.autograd.grad((nested.softmax(2).values() * weights).sum(), x)
    (right,) = torch.autograd.grad((x.softmax(1) * weights).sum(), x)
    return found, right


@report("F114.1", "pytorch#159380", kernel=True)
def padded_form_of_a_nested_tensor():
    """A nested tensor is padded to the number of all rows, if its longest component has not been
    asked for.

    The longest component has 2 rows.
    """
    nested = nested_tensor_from_jagged(torch.ones(4, 1), torch.tensor([0, 2, 4]))
    return list(nested.to_padded_tensor(0.0).shape), [2, 2, 1]


@report("F115.1", kernel=True)
def largest_of_a_transposed_nested_tensor():
    """The largest element along the ragged dimension of a transposed nested tensor is that of
    some rows only.

    There is one component, of the rows 0, 1, …, 8.
    """
    nested = nested_tensor_from_jagged(torch.arange(9.0)[:, None], torch.tensor([0, 9]))
    return nested.transpose(1, 2).amax(2), torch.tensor([[8.0]])


@report("F116.1", kernel=True, raises="has no attribute 'sub'")
def gradient_of_the_product_along_the_ragged_dimension():
    """The backward pass of the product along the ragged dimension of a nested tensor raises an
    AttributeError.

    The derivative of a product of two numbers by either is the other one.
    """
    x = torch.tensor([[2.0], [3.0]], requires_grad=True)
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 2]))
    nested.prod(1).sum().backward()
    return x.grad, torch.tensor([[3.0], [2.0]])


@report("F117.1", kernel=True)
def gradient_through_the_first_momentum_of_sgd():
    """A differentiable SGD has no gradient through the momentum of its first step.

    After two steps with the gradients 3x and 1, p is x - 3x - (0.9 · 3x + 1).
    """
    x = torch.tensor([2.0], requires_grad=True)
    p = x * 1
    optimizer = torch.optim.SGD([p], lr=1.0, momentum=0.9, differentiable=True)
    for slope in (3 * x, torch.ones(1)):
        p.grad = slope
        optimizer.step()
    return torch.autograd.grad(p.sum(), x)[0], torch.tensor([-4.7])


@report("F117.2", kernel=True, rtol=1e-10)
def rate_of_asgd_in_double_precision():
    """ASGD rounds its rate to single precision, though the parameter is in double precision.

    The second step has the rate 0.1 / (1 + 0.1 λ)^0.75.
    """
    p = torch.zeros(1, dtype=torch.float64)
    optimizer = torch.optim.ASGD([p], lr=0.1, lambd=1e-4, alpha=0.75)
    for _ in range(2):
        p.grad = torch.ones_like(p)
        optimizer.step()
    rate = 0.1 / (1 + 1e-5) ** 0.75
    return p, torch.tensor([-0.1 * (1 - 1e-4 * rate) - rate], dtype=torch.float64)


@report("F117.3", kernel=True, rtol=1e-10)
def product_of_nadam_in_double_precision():
    """NAdam keeps a product of momenta in single precision, though the parameter is in double
    precision.

    One step from 0 with the gradient 1 is a number that the definition gives in closed form.
    """
    p = torch.zeros(1, dtype=torch.float64)
    optimizer = torch.optim.NAdam([p], lr=0.1, betas=(0.9, 0.99), eps=0.0, momentum_decay=0.004)
    p.grad = torch.ones_like(p)
    optimizer.step()
    now, later = (0.9 * (1 - 0.5 * 0.96 ** (t * 0.004)) for t in (1, 2))
    ahead = later * 0.1 / (1 - now * later) + (1 - now) / (1 - now)
    return p, torch.tensor([-0.1 * ahead], dtype=torch.float64)


@report("F117.4", kernel=True, rtol=1e-10)
def bias_correction_of_a_differentiable_adam():
    """A differentiable Adam corrects its bias in single precision, though the parameter is in
    double precision.

    In the first step the corrected mean is the gradient, and the root of the square its size.
    """
    p = torch.zeros(1, dtype=torch.float64, requires_grad=True) * 1
    optimizer = torch.optim.Adam([p], lr=0.1, betas=(0.9, 0.99), eps=0.5, differentiable=True)
    p.grad = torch.ones_like(p)
    optimizer.step()
    return p, torch.tensor([-0.1 / 1.5], dtype=torch.float64)
