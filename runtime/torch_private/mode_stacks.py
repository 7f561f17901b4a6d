"""Contexts and classes in Python that see calls.

A *mode on calls* sees ATen calls, in ``__torch_dispatch__``. A *mode on functions* sees functions
of torch before they run, in ``__torch_function__``. A thread has a stack of each.

``Any`` is the type of what torch leaves without annotations.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._library.simple_registry
import torch._ops
import torch.overrides
import torch.utils._contextlib
import torch.utils._device
import torch.utils._python_dispatch

TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode
"""The class of a context that sees each ATen call inside of it."""
without_modes = torch.utils._python_dispatch._disable_current_modes
"""A context in which no mode on calls sees an ATen call."""
current_dispatch_mode = torch.utils._python_dispatch._get_current_dispatch_mode
"""The innermost mode on calls, or None."""
current_dispatch_modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack
"""All modes on calls, the innermost last."""
without_innermost_mode = torch.utils._python_dispatch._pop_mode_temporarily
"""A context in which the innermost mode on calls is off. It yields that mode."""
is_traceable_wrapper_subclass = torch.utils._python_dispatch.is_traceable_wrapper_subclass
"""Whether a tensor is made of inner tensors that it names."""
number_of_dispatch_modes = torch._C._len_torch_dispatch_stack
"""How many modes on calls this thread has."""
dispatch_mode_at = torch._C._get_dispatch_stack_at
"""The mode on calls with a number, counted from the outermost."""
push_dispatch_mode = torch._C._push_on_torch_dispatch_stack
"""Add a mode on calls, as the innermost."""
pop_dispatch_mode = torch._C._pop_torch_dispatch_stack
"""Take the innermost mode on calls away."""
without_dispatch_to_python = torch._C._DisableTorchDispatch
"""A context in which no class and no mode in Python sees a call."""
number_of_function_modes = torch._C._len_torch_function_stack
"""How many modes on functions this thread has."""
push_function_mode = torch._C._push_on_torch_function_stack
"""Add a mode on functions, as the innermost."""
pop_function_mode = torch._C._pop_torch_function_stack
"""Take the innermost mode on functions away."""
current_function_modes: Any = torch.overrides._get_current_function_mode_stack
"""All modes on functions, the innermost last."""
DeviceContext = torch.utils._device.DeviceContext
"""The mode on functions that ``torch.device`` and ``torch.set_default_device`` enter."""
all_handlers_enabled: Any = torch._C._is_torch_function_enabled
"""Whether both classes and modes may see functions of torch."""
unseen_by_handlers = torch._C.DisableTorchFunction
"""A context in which neither classes nor modes see functions of torch."""
unseen_by_classes = torch._C.DisableTorchFunctionSubclass
"""A context in which classes do not see functions of torch. Modes do."""
function_handlers: Any = torch._C._get_torch_function_state  # type: ignore[attr-defined]
"""Which handlers see functions of torch on this thread: classes and modes, modes alone, or none."""
set_function_handlers: Any = torch._C._set_torch_function_state  # type: ignore[attr-defined]
"""Let these handlers see functions of torch on this thread."""
ALL_HANDLERS: Any = torch._C._TorchFunctionState.ENABLED  # type: ignore[attr-defined]
"""Both classes and modes see functions of torch."""
ONLY_MODES: Any = torch._C._TorchFunctionState.SUBCLASSES_DISABLED  # type: ignore[attr-defined]
"""Modes see functions of torch, and classes do not."""
no_function_handler = torch._C._disabled_torch_function_impl
"""The ``__torch_function__`` of a class whose instances functions treat as plain tensors."""
number_of_modes_before_dispatch: Any = torch._ops._len_torch_dispatch_stack_pre_dispatch
"""How many modes see calls before autograd and autocast do."""
set_mode_before_dispatch: Any = torch._ops._set_mode_pre_dispatch
"""Add a mode that sees calls before autograd and autocast do."""
pop_mode_before_dispatch: Any = torch._ops._pop_mode_from_pre_dispatch
"""Take the innermost of these modes away, and return it."""
find_torch_dispatch_rule = torch._library.simple_registry.find_torch_dispatch_rule
"""The function that is registered for calls of an operator with instances of a class."""
DecoratorContextManager = torch.utils._contextlib._DecoratorContextManager
"""The base of contexts that are decorators of functions as well."""
