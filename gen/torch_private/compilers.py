"""Torch's compilers. They are slow to import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch._dynamo
import torch._dynamo.convert_frame
import torch._functorch.config
import torch._inductor.config
from torch._subclasses.fake_tensor import fake_tensor_tls

functorch_config = torch._functorch.config
"""The options of torch's own ahead-of-time autograd."""
inductor_config = torch._inductor.config
"""The options of Inductor."""
frame_compiler = torch._dynamo.convert_frame.__file__
"""The file whose functions run when `torch.compile` reads a function."""
reset_dynamo = torch._dynamo.reset
"""Forget all that `torch.compile` has compiled."""


@contextmanager
def outside_tensors_as_constants() -> Iterator[None]:
    """Let a capture in this thread keep tensors that the function closes over, as constants."""
    before = fake_tensor_tls.allow_non_fake_inputs_override
    fake_tensor_tls.allow_non_fake_inputs_override = True
    try:
        yield
    finally:
        fake_tensor_tls.allow_non_fake_inputs_override = before
