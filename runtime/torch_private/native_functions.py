"""Functions of torch as C++ has them, and those that have no public name.

Those named ``native_`` stay torch's own. A program, or the drop-in, may assign something else to
the public name.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._decomp.decompositions
import torch._VF
import torch.nn.modules.batchnorm

functions_of_torch = torch._C._VariableFunctions
"""The object that has `torch.mul` and most other functions of `torch`."""
native_empty = torch._C._VariableFunctions.empty
"""`torch.empty`, whatever a program puts in its place."""
native_ones_like = torch._C._VariableFunctions.ones_like
"""`torch.ones_like`, whatever a program puts in its place."""
is_all_true: Any = torch._is_all_true
"""Return whether all of a tensor is true, as a tensor. Distributions ask so for their domains."""
call_of_layer = torch.nn.Module._call_impl
"""What runs a layer with its hooks, whichever class it is of."""
functions_of_nn = torch._C._nn
"""The module that has many functions of `torch.nn.functional`."""
native_linear = torch._C._nn.linear
"""`torch.nn.functional.linear`, of which the functional module has a copy."""
max_pool2d_with_indices: Any = torch._C._nn.max_pool2d_with_indices
"""Return the largest element of each window of an image, and where it is."""
pad_sequence: Any = torch._C._nn.pad_sequence
"""Pad tensors of several lengths, and stack them."""
pad_packed_sequence = torch._VF._pad_packed_sequence
"""Pad the sequences of a packed sequence, and stack them."""
assert_async = torch._assert_async
"""Raise if a tensor is false, later if it is on an accelerator."""
copy_each = torch._foreach_copy_
"""Write each of some tensors to another."""
neg_view = torch._neg_view
"""View a tensor as its negative, by a mark and without computing."""
nested_from_padded = torch._nested_from_padded
"""Make a nested tensor of the rows of a padded one."""
nested_from_list = torch._nested_tensor_from_tensor_list
"""Make a nested tensor with copies of some tensors."""
nested_view_from_buffer = torch._nested_view_from_buffer
"""Make a nested tensor that shares a buffer, by sizes, strides and offsets of its rows."""
sampled_2d = torch._decomp.decompositions.grid_sampler_2d
"""`grid_sample` of images, written with simpler operators."""
AnyBatchNorm = torch.nn.modules.batchnorm._BatchNorm
"""The base of all modules that normalize batches."""
