"""What torch's engine and the runtime have in common: switches, counters of writes, hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._VF

from .global_settings import library_in_c

set_grad_enabled = torch._C._set_grad_enabled
"""Switch gradients on or off for this thread."""
is_forward_enabled = torch._C._is_fwd_grad_enabled
"""Whether this thread computes tangents."""
set_forward_enabled = torch._C._set_fwd_grad_enabled
"""Let this thread compute tangents or not."""
increment_version = torch._C._increment_version
"""Count a write to some tensors."""
set_version_counters = torch._C._autograd._unsafe_set_version_counter
"""Set how many writes were counted for some tensors."""
push_saved_hooks = torch._C._autograd._push_saved_tensors_default_hooks
"""Tell torch's engine of hooks on what it saves."""
pop_saved_hooks = torch._C._autograd._pop_saved_tensors_default_hooks
"""Take the innermost of these hooks away."""
innermost_saved_hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks
"""The innermost of these hooks, or None. Its argument: whether those of torch's traces count."""
set_saved_hooks_tracing: Any = torch._C._autograd._saved_tensors_hooks_set_tracing
"""Set whether torch's own nodes leave these hooks out, as in torch's traces. It returns whether
they did before."""
is_profiler_enabled = torch._C._autograd._profiler_enabled
"""Whether a profiler is running."""
ProfilerEvent = torch._C._profiler._RecordFunctionFast
"""A context that a profiler shows under a name."""
is_multithreading_enabled = torch._C._is_multithreading_enabled
"""Whether a backward may use several threads."""
is_view_replay_enabled = torch._C._is_view_replay_enabled
"""Whether a view of a written base is made anew by the calls that made it."""
is_grad_layout_enforced: Callable[[], bool] = (
    torch._C._is_grad_layout_enforcement_enabled
    if hasattr(library_in_c, "_is_grad_layout_enforcement_enabled")
    else lambda: True
)
"""Whether a gradient is to lie in memory as its leaf does. Torch 2.12 always asks for it."""
unpack_dual = torch._VF._unpack_dual
"""The tensor and the tangent of a dual tensor of torch's own forward mode."""
BACKWARD_HOOK_FUNCTION = "torch.nn.modules._functions.BackwardHookFunction"
"""The Function that modules with hooks on gradients call. It is the identity."""
