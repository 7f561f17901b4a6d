"""Settings of a thread or a process, and tables that torch keeps."""

from __future__ import annotations

from typing import Any

import torch
import torch._tensor_str
import torch._weights_only_unpickler
import torch.amp.autocast_mode
import torch.jit._builtins
import torch.nn.utils.parametrize
import torch.utils._device

is_autocast_enabled = torch._C._is_any_autocast_enabled
"""Whether this thread casts for any device."""
without_autocast = torch._C._DisableAutocast
"""A context without casts, for a graph that has those that were traced."""
autocast_devices = torch._C._autocast_supported_devices
"""The kinds of devices that can have casts."""
enter_autocast = torch.amp.autocast_mode._enter_autocast
"""What a graph calls where a block with casts begins."""
exit_autocast = torch.amp.autocast_mode._exit_autocast
"""What a graph calls where that block ends."""
is_deterministic = torch._C._get_deterministic_algorithms
"""Whether operators must be deterministic."""
tracing_state = torch._C._get_tracing_state
"""The running trace of `torch.jit.trace`, or None."""
library_in_c = torch._C
"""What torch has in C beside its ops, such as what reads and sets its switches."""
name_of_private_device = torch._C._get_privateuse1_backend_name
"""What the kind of device is called that a library can add."""
device_constructors = torch.utils._device._device_constructors
"""The factories that `with torch.device(...)` gives a device. Torch collects them once."""
allowed_globals = torch._weights_only_unpickler._get_allowed_globals
"""What `torch.load` may call. Torch collects it once."""
print_options = torch._tensor_str.get_printoptions
"""How torch writes the text of a tensor, as `torch.set_printoptions` says."""
operators_of_scripts: Any = torch.jit._builtins._get_builtin_table
"""The operators of TorchScript, by the `id` of the function that a program names."""
script_tables = torch._C._jit_debug_module_iterators  # type: ignore[attr-defined]
"""The kinds of tables that a scripted module can be asked for."""


def keeps_parametrized_weights() -> bool:
    """Return whether the caller is in a block ``torch.nn.utils.parametrize.cached()``."""
    return torch.nn.utils.parametrize._cache_enabled > 0
