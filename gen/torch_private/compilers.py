"""Torch's compilers. They are slow to import."""

from __future__ import annotations

import torch
import torch._dynamo
import torch._functorch.config
import torch._inductor.config

functorch_config = torch._functorch.config
"""The options of torch's own ahead-of-time autograd."""
inductor_config = torch._inductor.config
"""The options of Inductor."""
reset_dynamo = torch._dynamo.reset
"""Forget all that `torch.compile` has compiled."""
