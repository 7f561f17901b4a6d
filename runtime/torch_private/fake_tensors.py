"""Tensors without elements, with which torch computes what results are like."""

from __future__ import annotations

import torch
import torch._subclasses.fake_tensor

FakeTensor = torch._subclasses.fake_tensor.FakeTensor
"""A tensor that has a device and sizes and no elements."""
FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode
"""The mode that such tensors belong to."""
DataDependentOutputException = torch._subclasses.fake_tensor.DataDependentOutputException
"""A result would depend on elements."""
DynamicOutputShapeException = torch._subclasses.fake_tensor.DynamicOutputShapeException
"""The sizes of a result would depend on elements."""
UnsupportedOperatorException = torch._subclasses.fake_tensor.UnsupportedOperatorException
"""An operator has nothing that says what its result is like."""
