"""Backward passes of nested, sparse and masked tensors and of optimizers that raise."""

import torch
import torch.nn.functional as F
from torch.masked import as_masked_tensor
from torch.nested import nested_tensor_from_jagged

from tests.reports.report import report


@report("F141.1", kernel=True, raises="expected self to be a contiguous jagged layout")
def gradient_of_a_new_dimension_of_a_transposed_nested_tensor():
    """The backward pass of unsqueeze raises, if the nested tensor is transposed or has holes.

    The forward pass takes it.
    """
    x = torch.ones(4, 2, requires_grad=True)
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 2, 4])).transpose(1, 2)
    nested.unsqueeze(-1).unbind()[0].sum().backward()
    return x.grad, torch.tensor([[1.0, 1], [1, 1], [0, 0], [0, 0]])


@report("F141.2", kernel=True, raises="native_layer_norm_backward_default")
def gradient_of_layer_norm_of_a_nested_tensor_with_holes():
    """The backward pass of layer_norm raises, if the nested tensor has holes or is transposed.

    The components are rows 0 and 1, and row 3. The forward pass takes it.
    """
    x = torch.ones(4, 2, requires_grad=True)
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 3, 4]), torch.tensor([2, 1]))
    F.layer_norm(nested, (2,)).unbind()[0].sum().backward()
    return x.grad, torch.zeros(4, 2)


@report("F141.3", kernel=True, raises="reducing across the ragged dimension is not supported")
def gradient_of_a_row_by_which_holes_are_multiplied():
    """The gradient of a row by which a nested tensor with holes is multiplied raises.

    The components are rows 0 and 1, and row 3. The forward pass takes it.
    """
    row, x = torch.ones(2, requires_grad=True), torch.ones(4, 2)
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 3, 4]), torch.tensor([2, 1]))
    sum(part.sum() for part in (nested * row).unbind()).backward()
    return row.grad, torch.tensor([3.0, 3.0])


@report("F141.4", kernel=True, raises="cannot view shape")
def gradient_of_the_largest_of_each_row_with_holes():
    """The backward pass of amax along a plain dimension raises, if the nested tensor has holes or
    is transposed.

    The forward pass takes it.
    """
    x = torch.tensor([[1.0, 2], [4, 3], [9, 8], [5, 6]], requires_grad=True)
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 3, 4]), torch.tensor([2, 1]))
    sum(part.sum() for part in nested.amax(2).unbind()).backward()
    return x.grad, torch.tensor([[0.0, 1], [1, 0], [0, 0], [0, 1]])


@report("F141.5", kernel=True, raises="_softmax_backward")
def gradient_of_softmax_of_a_transposed_nested_tensor():
    """The backward pass of softmax along a plain dimension raises, if the nested tensor is
    transposed or has holes.

    The forward pass takes it.
    """
    x = torch.zeros(4, 2, requires_grad=True)
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 2, 4])).transpose(1, 2)
    nested.softmax(1).unbind()[0][0, 0].backward()
    return x.grad, torch.tensor([[0.25, -0.25], [0, 0], [0, 0], [0, 0]])


@report("F141.6", kernel=True, raises="expected self to be a contiguous jagged layout")
def gradient_of_joined_nested_tensors_with_holes():
    """The backward pass of cat raises, if the nested tensors have holes.

    The components are rows 0 and 1, and row 3. The forward pass takes it.
    """
    x = torch.ones(4, 2, requires_grad=True)
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 3, 4]), torch.tensor([2, 1]))
    torch.cat([nested, nested], -1).unbind()[0].sum().backward()
    return x.grad, torch.tensor([[2.0, 2], [2, 2], [0, 0], [0, 0]])


@report("F141.7", kernel=True, raises="not supported for nested tensors with holes")
def gradient_of_a_product_of_nested_tensors_with_holes():
    """The backward pass of a matrix product along the ragged dimension raises, if it has holes.

    The components are rows 0 and 1, and row 3. The forward pass takes it.
    """
    x = torch.ones(4, 2, requires_grad=True)
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 3, 4]), torch.tensor([2, 1]))
    (nested.transpose(1, 2) @ nested).sum().backward()
    return x.grad, torch.tensor([[4.0, 4], [4, 4], [0, 0], [4, 4]])


@report("F141.8", kernel=True, raises="final offset should match total_L value")
def gradient_of_the_padded_form_of_a_transposed_nested_tensor():
    """The backward pass of to_padded_tensor raises, if the nested tensor is transposed.

    Each row is once in the padded form.
    """
    x = torch.ones(4, 2, requires_grad=True)
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 2, 4])).transpose(1, 2)
    nested.to_padded_tensor(0.0).sum().backward()
    return x.grad, torch.ones(4, 2)


@report("F141.9", kernel=True, raises="cannot view shape")
def gradient_of_a_split_dimension_of_a_nested_tensor_with_holes():
    """The backward pass of unflatten raises, if the nested tensor has holes.

    The components are rows 0 and 1, and row 3. The forward pass takes it.
    """
    x = torch.ones(4, 2, requires_grad=True)
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 3, 4]), torch.tensor([2, 1]))
    nested.unflatten(-1, [1, 2]).unbind()[0].sum().backward()
    return x.grad, torch.tensor([[1.0, 1], [1, 1], [0, 0], [0, 0]])


@report("F141.10", kernel=True, raises="not yet supported on dim != 0 for non-contiguous")
def gradient_of_stacked_nested_tensors_with_holes():
    """The backward pass of stack raises, if the nested tensors have holes.

    The components are rows 0 and 1, and row 3. The forward pass takes it.
    """
    x = torch.ones(4, 2, requires_grad=True)
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 3, 4]), torch.tensor([2, 1]))
    torch.stack([nested, nested], -1).unbind()[0].sum().backward()
    return x.grad, torch.tensor([[2.0, 2], [2, 2], [0, 0], [0, 0]])


@report("F141.11", kernel=True, raises="cannot call binary pointwise function eq.Tensor")
def gradient_of_the_largest_of_each_column_of_a_transposed_nested_tensor():
    """The backward pass of amax with keepdim raises, if the nested tensor is transposed.

    The forward pass takes it.
    """
    x = torch.tensor([[1.0, 2], [4, 3]], requires_grad=True)
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 2])).transpose(1, 2)
    nested.amax(1, keepdim=True).unbind()[0].sum().backward()
    return x.grad, torch.tensor([[0.0, 1], [1, 0]])


@report("F141.12", kernel=True, raises="returned an invalid gradient")
def gradient_of_a_row_by_which_a_transposed_nested_tensor_is_multiplied():
    """The gradient of a row by which a transposed nested tensor is multiplied raises.

    The only component has the columns (1, 2) and (3, 4). The forward pass takes a row of two.
    """
    row, x = torch.ones(2, requires_grad=True), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 2])).transpose(1, 2)
    (nested * row).unbind()[0].sum().backward()
    return row.grad, torch.tensor([3.0, 7.0])


@report("F141.13", kernel=True, raises="cannot expand shape")
def gradient_of_the_mean_of_each_column_of_a_transposed_nested_tensor():
    """The backward pass of the mean along a plain dimension raises, if the nested tensor is
    transposed.

    The forward pass takes it.
    """
    x = torch.ones(3, 2, requires_grad=True)
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 3])).transpose(1, 2)
    nested.mean(1).unbind()[0].sum().backward()
    return x.grad, torch.full((3, 2), 0.5)


@report("F141.14", kernel=True, raises="_nested_select_backward_default")
def gradient_of_a_column_of_a_nested_tensor():
    """The backward pass of a column of a nested tensor raises.

    The forward pass takes it.
    """
    x = torch.ones(3, 2, requires_grad=True)
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 1, 3]))
    nested[..., 1].sum().backward()
    return x.grad, torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])


@report("F142.1", kernel=True, raises="expected to contain only concrete integers")
def gradient_of_the_product_of_each_row_of_a_nested_tensor():
    """The backward pass of the product along a plain dimension of a nested tensor raises.

    The derivative of a product of two numbers by either is the other one.
    """
    x = torch.tensor([[2.0, 3.0], [5.0, 7.0]], requires_grad=True)
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 2]))
    nested.prod(2).values().sum().backward()
    return x.grad, torch.tensor([[3.0, 2.0], [7.0, 5.0]])


@report("F142.2", kernel=True, raises="expected to contain only concrete integers")
def gradient_of_the_mean_along_the_ragged_dimension():
    """The backward pass of the mean along the ragged dimension of a nested tensor raises.

    The forward pass takes it. The components have one row and two.
    """
    x = torch.ones(3, 1, requires_grad=True)
    nested = nested_tensor_from_jagged(x, torch.tensor([0, 1, 3]))
    nested.mean(1).sum().backward()
    return x.grad, torch.tensor([[1.0], [0.5], [0.5]])


@report("F143.1", kernel=True, raises="expected layout Strided but got SparseCsr")
def gradient_of_a_dense_factor_of_a_csr_matrix():
    """The gradient of a dense matrix by which a CSR matrix is multiplied elementwise raises.

    The forward pass takes it. A product of the same matrix in layout COO has the gradient.
    """
    sparse = torch.eye(2).to_sparse_csr()
    dense = torch.ones(2, 2, requires_grad=True)
    (sparse * dense).sum().backward()
    return dense.grad, torch.eye(2)


@report("F143.2", kernel=True, raises="expected layout SparseCsc but got SparseCsr")
def gradient_of_a_csr_matrix_times_its_transpose():
    """The backward pass of a CSR matrix times its transpose raises.

    The sum of all entries of the identity times its transpose has the gradient 2.
    """
    x = torch.eye(2, requires_grad=True)
    sparse = x.to_sparse_csr()
    (sparse @ sparse.t()).to_dense().sum().backward()
    return x.grad.diagonal(), torch.tensor([2.0, 2.0])


@report("F143.3", "pytorch#91599", kernel=True, raises="Expected result Tensor to be of format CSR")
def gradient_of_the_absolute_values_of_a_csc_matrix():
    """The backward pass of abs raises for a CSC matrix.

    The forward pass takes it, and a CSR matrix has the gradient.
    """
    x = torch.eye(2, requires_grad=True)
    x.to_sparse_csc().abs().to_dense().sum().backward()
    return x.grad.diagonal(), torch.ones(2)


@report("F143.4", "pytorch#91599", kernel=True, raises="(non-block) tensor layout but got")
def gradient_of_the_absolute_values_of_a_bsr_matrix():
    """The backward pass of abs raises for a matrix of blocks.

    The forward pass takes it, and a CSR matrix has the gradient.
    """
    x = torch.eye(2, requires_grad=True)
    x.to_sparse_bsr((1, 1)).abs().to_dense().sum().backward()
    return x.grad.diagonal(), torch.ones(2)


@report("F143.5", kernel=True, raises="is not implemented for Strided + SparseBsc @ Strided")
def gradient_of_a_bsr_matrix_times_a_dense_one():
    """The backward pass of a BSR matrix times a dense one raises.

    It multiplies the transpose, which has the layout BSC.
    """
    sparse = torch.eye(2).to_sparse_bsr((1, 1))
    dense = torch.ones(2, 2, requires_grad=True)
    (sparse @ dense).sum().backward()
    return dense.grad, torch.ones(2, 2)


@report("F143.6", kernel=True, raises="is not implemented for Strided + Strided @ SparseBsr")
def gradient_of_a_linear_layer_with_a_bsr_weight():
    """The backward pass of linear with a BSR weight raises.

    The forward pass is documented to take one.
    """
    weight = torch.eye(2).to_sparse_bsr((1, 1))
    x = torch.ones(2, 2, requires_grad=True)
    F.linear(x, weight).sum().backward()
    return x.grad, torch.ones(2, 2)


@report("F143.7", kernel=True, raises="not supported for mat with SparseBsc layout")
def gradient_of_a_bsr_matrix_times_a_vector():
    """The backward pass of a BSR matrix times a vector raises.

    It multiplies the transpose, which has the layout BSC.
    """
    sparse = torch.eye(2).to_sparse_bsr((1, 1))
    vector = torch.ones(2, requires_grad=True)
    (sparse @ vector).sum().backward()
    return vector.grad, torch.ones(2)


@report("F143.8", kernel=True, raises="unsupported combination of layouts")
def gradient_of_a_csc_matrix_in_sparse_mm():
    """The backward pass of torch.sparse.mm raises for a CSC matrix, as for one of blocks.

    The operator @ of the same matrices has the gradient.
    """
    x, dense = torch.eye(2, requires_grad=True), torch.ones(2, 2)
    torch.sparse.mm(x.to_sparse_csc(), dense).sum().backward()
    return x.grad.diagonal(), torch.tensor([2.0, 2.0])


@report("F143.9", kernel=True, raises="expected SparseCsr or SparseCsc layout but got SparseBsr")
def gradient_of_a_csr_matrix_made_one_of_blocks():
    """The backward pass of to_sparse_bsr raises for a CSR matrix.

    The forward pass takes it.
    """
    x = torch.eye(2, requires_grad=True)
    x.to_sparse_csr().to_sparse_bsr((1, 1)).to_dense().sum().backward()
    return x.grad.diagonal(), torch.ones(2)


@report("F143.10", "pytorch#102162", kernel=True, raises="expand is unsupported for Sparse tensors")
def gradient_of_a_sum_along_a_dimension_of_a_sparse_matrix():
    """The backward pass of a sum along a dimension of a COO matrix raises.

    The forward pass takes it, and the sum of all entries has a gradient.
    """
    x = torch.eye(2, requires_grad=True)
    x.to_sparse().sum(0).to_dense().sum().backward()
    return x.grad.diagonal(), torch.ones(2)


@report("F143.11", kernel=True, raises="unsupported tensor layout: SparseCsr")
def gradient_of_the_sine_of_a_csr_matrix():
    """The backward pass of sin raises for a CSR matrix, as that of tanh does.

    The forward pass takes it. The derivative is the cosine.
    """
    x = torch.eye(2, requires_grad=True)
    x.to_sparse_csr().sin().to_dense().sum().backward()
    return x.grad.diagonal(), torch.ones(2).cos()


@report("F143.12", kernel=True, raises="add(sparse, dense) is not supported")
def gradient_of_expm1_of_a_sparse_matrix():
    """The backward pass of expm1 raises for a COO matrix.

    It adds 1 to the result, which is sparse. The derivative is the exponential.
    """
    x = torch.eye(2, requires_grad=True)
    x.to_sparse().expm1().to_dense().sum().backward()
    return x.grad.diagonal(), torch.ones(2).exp()


@report("F143.13", kernel=True, raises="expected 'self' and 'other' to have same size")
def gradient_of_expm1_of_a_csr_matrix():
    """The backward pass of expm1 raises for a CSR matrix.

    It adds 1 to the result, which is sparse. The derivative is the exponential.
    """
    x = torch.eye(2, requires_grad=True)
    x.to_sparse_csr().expm1().to_dense().sum().backward()
    return x.grad.diagonal(), torch.ones(2).exp()


@report("F143.14", kernel=True, raises="INTERNAL ASSERT FAILED")
def gradient_of_expm1_of_a_bsr_matrix():
    """The backward pass of expm1 fails by an internal assert for a matrix of blocks.

    It adds 1 to the result, which is sparse. The derivative is the exponential.
    """
    x = torch.eye(2, requires_grad=True)
    x.to_sparse_bsr((1, 1)).expm1().to_dense().sum().backward()
    return x.grad.diagonal(), torch.ones(2).exp()


@report("F144.1", kernel=True, raises="modified by an inplace operation")
def gradient_through_two_steps_of_adam_with_amsgrad():
    """The backward pass through two steps of a differentiable Adam with amsgrad raises.

    Each step writes over what the backward pass of the one before needs. The gradient of a step
    does not depend on x here, as in the first steps a parameter moves by the rate.
    """
    x = torch.tensor([2.0], requires_grad=True)
    p = x * 1
    optimizer = torch.optim.Adam([p], lr=0.1, eps=0.0, amsgrad=True, differentiable=True)
    for _ in range(2):
        p.grad = x * 3
        optimizer.step()
    return torch.autograd.grad(p.sum(), x)[0], torch.ones(1)


@report("F144.2", kernel=True, raises="modified by an inplace operation")
def gradient_through_two_steps_of_adamax():
    """The backward pass through two steps of a differentiable Adamax raises.

    Each step writes over what the backward pass of the one before needs.
    """
    x = torch.tensor([2.0], requires_grad=True)
    p = x * 1
    optimizer = torch.optim.Adamax([p], lr=0.1, eps=0.0, differentiable=True)
    for _ in range(2):
        p.grad = x * 3
        optimizer.step()
    return torch.autograd.grad(p.sum(), x)[0], torch.ones(1)


@report("F144.3", kernel=True, raises="modified by an inplace operation")
def gradient_through_two_steps_of_rprop():
    """The backward pass through two steps of a differentiable Rprop raises.

    The size of a step depends on signs alone, so that the gradient is that of x.
    """
    x = torch.tensor([2.0], requires_grad=True)
    p = x * 1
    optimizer = torch.optim.Rprop([p], lr=0.1, differentiable=True)
    for _ in range(2):
        p.grad = x * 3
        optimizer.step()
    return torch.autograd.grad(p.sum(), x)[0], torch.ones(1)


@report("F144.4", kernel=True, raises="modified by an inplace operation")
def gradient_through_two_steps_of_a_centered_rmsprop():
    """The backward pass through two steps of a differentiable centered RMSprop raises.

    A step is the gradient over its deviation, of which a factor 3x falls out.
    """
    x = torch.tensor([2.0], requires_grad=True)
    p = x * 1
    optimizer = torch.optim.RMSprop([p], lr=0.1, eps=0.0, centered=True, differentiable=True)
    for _ in range(2):
        p.grad = x * 3
        optimizer.step()
    return torch.autograd.grad(p.sum(), x)[0], torch.ones(1)


@report("F145.1", "pytorch#128641", kernel=True, raises="maximum recursion depth exceeded")
def gradient_of_the_larger_of_two_masked_tensors():
    """The backward pass of maximum and of minimum of masked tensors does not end.

    The forward pass takes it.
    """
    x = torch.tensor([1.0, 5.0], requires_grad=True)
    shown = torch.tensor([True, True])
    larger = torch.maximum(as_masked_tensor(x, shown), as_masked_tensor(torch.zeros(2), shown))
    larger.to_tensor(0.0).sum().backward()
    return x.grad.get_data(), torch.ones(2)


@report("F145.2", kernel=True, raises="sigmoid_backward")
def gradient_of_the_sigmoid_of_a_masked_tensor():
    """The backward pass of sigmoid raises for masked tensors, as those of tanh and atan2 do.

    The forward pass takes it. The slope at 0 is 1/4.
    """
    x = torch.zeros(2, requires_grad=True)
    masked = as_masked_tensor(x, torch.tensor([True, True]))
    masked.sigmoid().to_tensor(0.0).sum().backward()
    return x.grad.get_data(), torch.full((2,), 0.25)


@report("F145.3", kernel=True, raises="zeros_like")
def gradient_of_the_floor_of_a_masked_tensor():
    """The backward pass of floor raises for masked tensors.

    The forward pass takes it. The slope is 0.
    """
    x = torch.full((2,), 0.5, requires_grad=True)
    masked = as_masked_tensor(x, torch.tensor([True, True]))
    masked.floor().to_tensor(0.0).sum().backward()
    return x.grad.get_data(), torch.zeros(2)
