"""Sizes that are symbols, and what pickles them. Importing it brings Dynamo and sympy."""

from __future__ import annotations

import torch
import torch._dynamo.source
import torch._subclasses.schema_check_mode
import torch.export.dynamic_shapes
import torch.fx.experimental.symbolic_shapes
import torch.utils._sympy.functions
import torch.utils._sympy.interp
import torch.utils._sympy.numbers
import torch.utils._sympy.reference
import torch.utils._sympy.value_ranges

ConstantSource = torch._dynamo.source.ConstantSource
"""Where a symbol comes from that no argument gives."""
forgetful_cache = torch.fx.experimental.symbolic_shapes._lru_cache
"""A cache of a method that forgets when a condition on sizes is added."""
DerivedDim = torch.export.dynamic_shapes._DerivedDim
"""A size that is computed from a named one."""
DimHint = torch.export.dynamic_shapes._DimHint
"""A size without a name: static, dynamic, or as the program needs it."""
DimHintType = torch.export.dynamic_shapes._DimHintType
"""Which of these."""
IntTrueDiv = torch.utils._sympy.functions.IntTrueDiv
"""A quotient of integers that is a float."""
TruncToInt = torch.utils._sympy.functions.TruncToInt
"""The integer part of a float."""
sympy_interp = torch.utils._sympy.interp.sympy_interp
"""Compute an expression with numbers of one's own."""
PythonReferenceAnalysis = torch.utils._sympy.reference.PythonReferenceAnalysis
"""Computes an expression with numbers of Python."""
int_oo = torch.utils._sympy.numbers.int_oo
"""The bound of a size that has none."""
ValueRanges = torch.utils._sympy.value_ranges.ValueRanges
"""The least and the greatest value of a size."""
SchemaCheckMode = torch._subclasses.schema_check_mode.SchemaCheckMode
"""One of the three classes of modes that torch takes before dispatch."""
modules_of_symbols = ("mpmath", "sympy", "torch.fx", "torch.utils._sympy")
"""What computes with the sizes and numbers of a capture: how the names of its modules begin."""
