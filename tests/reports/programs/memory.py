"""Elements that a program reads of a value of a transform, through the memory of the tensor."""

import torch

from tests.reports.report import report


@report("F106.1")
def array_of_a_value_of_functionalize():
    """Under functionalize numpy() of a value reads memory of others.

    The value of functionalize has no memory of its own. numpy(), np.asarray, the buffer protocol
    and DLPack read at its address all the same, and some of them end the process. So does
    t.data = value for a tensor t from outside, under functionalize and under vjp.
    """
    x = torch.tensor([1.0, 2.0, 3.0])
    actual = torch.func.functionalize(lambda x: x * float((x * 2).numpy().sum()))(x)
    return actual, x * 12.0


@report("F106.2", runtime="refuses such a write")
def storage_of_a_tensor_from_outside_under_functionalize():
    """Under functionalize a write to the storage of a tensor is lost.

    The program fills the storage of a tensor that it closes over, and then reads the tensor.
    """
    held = torch.tensor([1.0, 2.0])

    def f(x):
        held.untyped_storage().fill_(0)
        return x + held

    return torch.func.functionalize(f)(torch.ones(2)), torch.ones(2)


@report("F107.1")
def gradient_of_linearize():
    """The gradient of a linear map by linearize reads memory of others.

    The map of y² at x takes a tangent of ones to the sum of 2x, whose gradient is 2. The graph
    that linearize makes holds the value of grad as a constant.
    """

    def f(x):
        _, push = torch.func.linearize(lambda y: (y * y).sum(), x)
        return push(torch.ones(2))

    return torch.func.grad(f)(torch.tensor([1.0, 2.0])), torch.full((2,), 2.0)


@report("F201.1", "pytorch#178379", kernel=True)
def triangular_solution_in_a_negated_buffer():
    """solve_triangular writes to a negated buffer without the sign that it shows.

    linalg.solve writes the solution.
    """
    out = torch.zeros(1, 1)._neg_view()
    torch.linalg.solve_triangular(torch.eye(1), torch.ones(1, 1), upper=True, out=out)
    return out, torch.ones(1, 1)


@report("F201.2", kernel=True, raises="INTERNAL ASSERT FAILED")
def singular_values_in_a_negated_buffer():
    """svdvals fails an assertion of torch for a negated buffer.

    linalg.svdvals of the matrix 1 is 1, without a buffer too.
    """
    out = torch.zeros(1)._neg_view()
    return torch.linalg.svdvals(torch.ones(1, 1), out=out), torch.ones(1)


@report("F202.1", "pytorch#165987", kernel=True)
def triangle_of_an_expanded_tensor():
    """tril_ writes all zeros to a tensor whose elements are one number in memory.

    add_ of such a tensor is refused.
    """
    try:
        answer = torch.ones(()).expand(2, 2).tril_().diagonal().tolist()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"


@report("F202.2", kernel=True)
def product_added_to_an_expanded_tensor():
    """addmv_ and baddbmm_ add many times to a tensor whose elements are one number in memory.

    addmm_ of such a tensor is refused.
    """
    try:
        answer = torch.zeros(()).expand(2).addmv_(torch.eye(2), torch.ones(2)).tolist()
    except RuntimeError:
        answer = "an error"
    return answer, "an error"
