"""A tensor without dimensions where a function takes a number."""

import torch
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from tests.reports.report import report


@report("F343.1")
def batch_of_values_to_fill_with():
    """vmap of index_fill over values writes each of them to all entries of the batch.

    So it does where the tensor that is filled is not batched.
    """
    x, values = torch.zeros(3), torch.tensor([1.0, 2.0])
    filled = vmap(lambda i, value: torch.index_fill(x, 0, i, value))(
        torch.tensor([[0], [1]]), values
    )
    return filled, torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])


@report("F344.1", kernel=True)
def gradient_by_the_correction_of_a_masked_variance():
    """The gradient of masked.var by its correction is lost.

    The variance is 2 ÷ (3 − c), of which the derivative at 1 is ½. Without a word on the gradient
    torch copies the correction to another tensor.
    """
    x, correction = torch.tensor([1.0, 2.0, 3.0]), torch.tensor(1.0, requires_grad=True)
    variance = torch.masked.var(x, 0, correction=correction)
    gradient = torch.zeros(())
    if variance.requires_grad:
        (gradient,) = torch.autograd.grad(variance, correction)
    return gradient, torch.tensor(0.5)


@report("F345.1")
def graph_with_a_tensor_of_tensors():
    """A graph of make_fx has the tensors that it made a tensor of as constants.

    For `item()` of a tensor that is traced it raises an error.
    """
    graph = make_fx(lambda x: torch.tensor([x, x]))(torch.tensor(1.0))
    return graph(torch.tensor(2.0)), torch.tensor([2.0, 2.0])


@report("F345.2")
def graph_with_a_list_of_indices():
    """A graph of make_fx has indices in a list as constants.

    An index that is no list raises an error there.
    """
    x = torch.arange(3.0)
    graph = make_fx(lambda x, i: x[[0, i],])(x, torch.tensor(1))
    return graph(x, torch.tensor(2)), torch.tensor([0.0, 2.0])


@report("F346.1", runtime="a function of C++ reads a float of a tensor as float() does")
def gradient_by_a_number_of_an_operator():
    """An operator called by its own name takes a tensor that requires grad for a float.

    The gradient is lost. A Scalar is refused there, and so is a float of a function.
    """
    x, eps = torch.tensor([1.0, 3.0]), torch.tensor(3.0, requires_grad=True)
    try:
        normal = torch.ops.aten.native_layer_norm(x, [2], None, None, eps)[0]
        answer = "a gradient" if normal.requires_grad else "no gradient"
    except (RuntimeError, TypeError):
        answer = "an error"
    return answer, "an error"


@report("F346.2", runtime="a function of C++ reads a float of a tensor as float() does")
def gradient_by_a_number_of_an_own_operator():
    """An operator of one's own takes a tensor that requires grad for a float.

    The gradient is lost, as F346.1.
    """
    operator = torch.library.custom_op(
        "f346::scaled",
        lambda x, factor: x * factor,
        mutates_args=(),
        schema="(Tensor x, float factor) -> Tensor",
    )
    factor = torch.tensor(3.0, requires_grad=True)
    try:
        answer = "a gradient" if operator(torch.ones(2), factor).requires_grad else "no gradient"
    except (RuntimeError, TypeError):
        answer = "an error"
    return answer, "an error"
