"""Calls that torch refuses in one form and takes in another one that means the same."""

import torch
from torch.masked import as_masked_tensor
from torch.nested import nested_tensor_from_jagged

from tests.reports.report import report


@report("F151.1", "pytorch#115624", kernel=True, raises="Dimension out of range")
def reduction_of_a_masked_tensor_along_two_negative_dimensions():
    """The sum of a masked tensor along the dimensions -2 and -1 raises.

    The dimensions 0 and 1 are the same ones, and are taken.
    """
    masked = as_masked_tensor(torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool))
    return masked.sum((-2, -1)).get_data(), masked.sum((0, 1)).get_data()


@report("F151.2", kernel=True, raises="len(kwargs) must equal 0")
def sum_of_masked_tensors_with_a_factor():
    """The sum of two masked tensors with alpha=1.0 raises.

    The factor 1 is the same one, and is taken.
    """
    masked = as_masked_tensor(torch.ones(2), torch.tensor([True, True]))
    return masked.add(masked, alpha=1.0).get_data(), masked.add(masked, alpha=1).get_data()


@report("F151.3", kernel=True, raises="slice(): not supported for NestedTensor on dim=0")
def column_of_a_nested_tensor_behind_whole_slices():
    """A column of a nested tensor behind two whole slices raises.

    The same column behind an ellipsis is taken.
    """
    nested = nested_tensor_from_jagged(torch.ones(3, 2), torch.tensor([0, 1, 3]))
    return nested[:, :, 1].values(), nested[..., 1].values()


@report("F151.4", "pytorch#98675", kernel=True, raises="expand is unsupported for Sparse tensors")
def product_of_batches_of_sparse_matrices():
    """The operator @ of a batch of sparse matrices and one of dense matrices raises.

    torch.bmm takes them.
    """
    sparse, dense = torch.stack([torch.eye(2)] * 2).to_sparse(), torch.ones(2, 2, 2)
    return sparse @ dense, torch.bmm(sparse, dense)


@report("F151.5", kernel=True, raises="with keepdim=False is unsupported")
def sum_along_all_dimensions_of_a_csr_matrix():
    """The sum along both dimensions of a CSR matrix raises.

    The sum without dimensions is the same one, and is taken.
    """
    sparse = torch.eye(2).to_sparse_csr()
    return sparse.sum((0, 1)), sparse.sum()


@report(
    "F151.6", "pytorch#94185", kernel=True, raises="expected sparse row compressed tensor layout"
)
def sum_of_a_csc_matrix_and_a_copy_of_it():
    """The sum of a CSC matrix and a copy of it raises.

    The sum of the matrix and itself is taken.
    """
    sparse = torch.eye(2).to_sparse_csc()
    return (sparse + sparse.clone()).to_dense(), (sparse + sparse).to_dense()


@report("F151.7", kernel=True, raises="unsupported tensor layout: SparseCsr")
def difference_of_a_dense_and_a_csr_matrix():
    """The difference of a dense matrix and a CSR matrix raises.

    Their sum with alpha=-1 is taken.
    """
    dense, sparse = torch.ones(2, 2), torch.eye(2).to_sparse_csr()
    return dense - sparse, torch.add(dense, sparse, alpha=-1)
