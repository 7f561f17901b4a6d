"""Parts of graphs, and of what compiles and guards them."""

from __future__ import annotations

import torch
import torch._guards
import torch.fx._lazy_graph_module
import torch.fx.graph
import torch.fx.graph_module
import torch.fx.passes.shape_prop

LazyGraphModule = torch.fx._lazy_graph_module._LazyGraphModule
"""A module with a graph whose code is written at its first call."""
code_loader = torch.fx.graph_module._loader
"""Who shows lines of the code of graphs to tracebacks."""
PyTreeCodeGen = torch.fx.graph._PyTreeCodeGen
"""Writes the code of a graph whose arguments and results are containers."""
PyTreeInfo = torch.fx.graph._PyTreeInfo
"""What these containers are."""
metadata_of = torch.fx.passes.shape_prop._extract_tensor_metadata
"""What a node of a graph notes about a tensor."""
TensorGuards = torch._C._dynamo.guards.TensorGuards
"""Compares tensors with the kinds of those that it was made of."""
dict_version = torch._C._dynamo.guards.dict_version
"""A number that changes whenever a dictionary is written to."""
TracingContext = torch._guards.TracingContext
"""What torch's compilers know of the trace that is running."""
snake_case = torch.fx.graph._snake_case
"""A name in the form that names of nodes have."""
INDUCTOR_OPTIONS = "torch._inductor.config"
"""The module of Inductor's options. Its import is slow."""
INDUCTOR_DECOMPOSITIONS = "torch._inductor.decomposition"
"""The module with the operators that it writes with simpler ones."""
