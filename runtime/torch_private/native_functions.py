"""Functions of torch as C++ has them, and those that have no public name."""

from __future__ import annotations

from typing import Any

import torch
import torch._decomp.decompositions
import torch._VF
import torch.nn.modules.batchnorm

functions_of_torch = torch._C._VariableFunctions
"""What `torch.mul` and its like are found in."""
native_empty = torch._C._VariableFunctions.empty
"""`torch.empty`, whatever a program puts in its place."""
native_ones_like = torch._C._VariableFunctions.ones_like
"""`torch.ones_like`, whatever a program puts in its place."""
functions_of_nn = torch._C._nn
"""What many functions of `torch.nn.functional` are found in."""
native_linear = torch._C._nn.linear
"""`torch.nn.functional.linear`, of which the functional module has a copy."""
max_pool2d_with_indices: Any = torch._C._nn.max_pool2d_with_indices
"""The largest element of each window of an image, and where it is."""
pad_sequence: Any = torch._C._nn.pad_sequence
"""Tensors of several lengths, filled up to one tensor."""
pad_packed_sequence = torch._VF._pad_packed_sequence
"""A packed sequence, filled up to one tensor."""
assert_async = torch._assert_async
"""Raise if a tensor is false, later if it is on an accelerator."""
copy_each = torch._foreach_copy_
"""Write each of some tensors to another."""
neg_view = torch._neg_view
"""A tensor marked as the negative of its elements."""
nested_from_padded = torch._nested_from_padded
"""A nested tensor with the rows of a padded one."""
nested_from_list = torch._nested_tensor_from_tensor_list
"""A nested tensor with copies of some tensors."""
nested_view_from_buffer = torch._nested_view_from_buffer
"""A nested tensor that shares a buffer, for the sizes, strides and offsets of its rows."""
sampled_2d = torch._decomp.decompositions.grid_sampler_2d
"""`grid_sample` of images, written with simpler operators."""
AnyBatchNorm = torch.nn.modules.batchnorm._BatchNorm
"""The base of all modules that normalize batches."""
