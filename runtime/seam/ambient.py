"""Stores what surrounds a computation and belongs to a thread: hooks, policies, the dual level.

A helper thread that continues the work of this thread gets a copy of its state:
``Thread(target=continued(work))``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

import torch

from ..torch_private.dispatcher import excluded_keys, included_keys, with_keys
from ..torch_private.global_settings import autocast_devices
from ..torch_private.mode_stacks import (
    current_dispatch_modes,
    current_function_modes,
    pop_dispatch_mode,
    pop_function_mode,
    push_dispatch_mode,
    push_function_mode,
)
from ..torch_private.native_autograd import (
    is_forward_enabled,
    set_forward_enabled,
    set_grad_enabled,
)

_states: list[Ambient] = []  # one of each subclass, for `continued`


class Ambient(threading.local):
    """State that each thread has for itself. A subclass declares it as class attributes. Every
    thread starts with their values."""

    def __new__(cls) -> Ambient:
        state = super().__new__(cls)
        _states.append(state)
        return state


def continued(work: Callable[[], object]) -> Callable[[], None]:
    """Return a function that runs ``work`` on another thread in the present state of this thread,
    torch's own modes included. This thread is to wait for it."""
    ours = [(state, dict(vars(state))) for state in _states]
    inference = torch.is_inference_mode_enabled()
    grad, forward = torch.is_grad_enabled(), is_forward_enabled()
    on_calls, on_functions = (
        current_dispatch_modes(),
        current_function_modes(),
    )
    keys = included_keys(), excluded_keys()
    autocast = {device: torch.get_autocast_dtype(device) for device in autocast_devices()}

    def run() -> None:
        """Set the state of the other thread, and call ``work``."""
        for state, attributes in ours:
            vars(state).update(attributes)
        for device, dtype in autocast.items():
            torch.set_autocast_dtype(device, dtype)
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            set_grad_enabled(grad)
            set_forward_enabled(forward)
            for mode in on_calls:
                push_dispatch_mode(mode)
                stack.callback(pop_dispatch_mode)
            for mode in on_functions:
                push_function_mode(mode)
                stack.callback(pop_function_mode)
            # for autocast, and for the keys that levels exclude; last, as the inference mode and
            # the modes of calls switch keys, too
            stack.enter_context(with_keys(*keys))
            work()

    return run
