"""The state of torch's own transforms, which may run around ours."""

from __future__ import annotations

from typing import Any

import torch

are_transforms_active = torch._C._are_functorch_transforms_active
"""Whether a transform of torch's own is running."""
innermost_transform = torch._C._functorch.peek_interpreter_stack
"""The innermost transform of torch's own that runs, or None."""
is_functorch_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether a tensor is one that a transform of torch's own has wrapped."""
is_functional_tensor = torch._C._functorch.is_functionaltensor
"""Whether a tensor is one of torch's own `functionalize`."""
get_unwrapped = torch._C._functorch.get_unwrapped
"""What is in the wrapper of a transform."""
unwrap_if_dead = torch._C._functorch.unwrap_if_dead
"""The same if the transform has returned, otherwise the tensor itself."""
sync_functional: Any = torch._sync  # type: ignore[attr-defined]
"""Carry out the writes that a tensor of `functionalize` has put off."""
from_functional_tensor: Any = torch._from_functional_tensor
"""What is in a tensor of `functionalize`."""
enter_vmap_mode = torch._C._vmapmode_increment_nesting
"""Give all calls the dispatch key whose kernels refuse random draws under `vmap`."""
leave_vmap_mode = torch._C._vmapmode_decrement_nesting
"""End the innermost of these."""
