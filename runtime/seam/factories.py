"""Stores torch's own factories. Under the drop-in the names in ``torch`` make tensors of the
session, except inside the handling of an ATen call.

Code that creates a tensor elsewhere, for a graph or a trace, takes the factory from here.
"""

from __future__ import annotations

import torch

empty, empty_strided, tensor = torch.empty, torch.empty_strided, torch.tensor
ones, ones_like, zeros = torch.ones, torch.ones_like, torch.zeros
