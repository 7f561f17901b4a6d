"""Saves and restores the states of torch's default generators, on the CPU and on the accelerator.

What a trace draws, a call of its graph draws once more. So a trace gives the states back. They are
of the process: while one thread traces, another one waits, else each would save and give back the
states of the other one's trace.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..torch_private.mode_stacks import without_modes
from .ambient import Ambient
from .locks import lock_of

_TRACES = lock_of(sys.modules[__name__], "_TRACES")


class _Tracing(Ambient):
    """``now``: whether this thread traces a program, so that it has the lock of all traces, or goes
    on with the work of a thread that has it."""

    now: bool = False


TRACING = _Tracing()


def _accelerator() -> Any:
    """Return the module of the accelerator, such as ``torch.cuda``. None if it has not started:
    then it has drawn nothing, and to ask for its state would start it."""
    device = torch.accelerator.current_accelerator()
    if device is None:
        return None
    module = torch.get_device_module(device)
    # not each module of a device has the question
    is_initialized = getattr(module, "is_initialized", lambda: False)
    if not is_initialized():
        return None
    return module


class GeneratorStates:
    """The states now, of the CPU, of the accelerator's current device, and of ``others``.
    :meth:`restore` sets them again."""

    def __init__(self, others: Sequence[torch.Generator] = ()) -> None:
        self._others = [(generator, generator.get_state()) for generator in others]
        self._cpu = torch.get_rng_state()
        self._module = _accelerator()
        if self._module is not None:
            self._device = self._module.current_device()
            self._other = self._module.get_rng_state(self._device)

    def restore(self) -> None:
        """Set the states from before. The accelerator's are those of the device that was current
        then."""
        torch.set_rng_state(self._cpu)
        for generator, state in self._others:
            generator.set_state(state)
        if self._module is not None:
            self._module.set_rng_state(self._other, self._device)


@contextmanager
def own_draws() -> Iterator[None]:
    """Let the draws inside be none of the program's: afterwards the states are as before."""
    # the lock does not let its own thread in again, so a trace inside a trace goes without it
    if TRACING.now:
        with _restore_afterwards():
            yield
        return
    with _TRACES, _restore_afterwards():
        try:
            TRACING.now = True
            yield
        finally:
            TRACING.now = False


@contextmanager
def _restore_afterwards() -> Iterator[None]:
    """Set the states of now again when the block is left."""
    # the states are tensors, which a trace around this would take for the program's
    with without_modes():
        states = GeneratorStates()
    try:
        yield
    finally:
        with without_modes():
            states.restore()
