"""Seed by names alone, so that a rerun of one case draws the same numbers as the full run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def stable_seed(*parts: object) -> int:
    """Return a seed in [0, 2³¹) from the text of `parts`. Unlike ``hash``, it is the same in every
    process."""
    # a separator that no name has: ("ab", "c") and ("a", "bc") are two seeds
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF


def generator(*parts: object) -> torch.Generator:
    """Return a CPU generator seeded by :func:`stable_seed`. Draws from it do not change the global
    state."""
    return torch.Generator().manual_seed(stable_seed(*parts))


@contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Seed torch's global generators inside, and restore the CPU's afterwards. Random ops draw from
    them.

    ``torch.manual_seed`` formats a stack trace if CUDA has not started, which costs more than a
    check does. So it is called only if there is an accelerator.
    """
    seed = stable_seed(*parts)
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    if has_accelerator():
        torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)


class Replay:
    """Store the state of torch's global generators, as it is now.

    :meth:`rewind` sets it again, so that each of several calls draws the same.
    """

    def __init__(self) -> None:
        self._state = torch.get_rng_state()
        self._module: Any = None
        self._other: torch.Tensor | None = None
        # asked by name: torch finds the module of a backend without hooks in no other way
        device = torch.accelerator.current_accelerator()
        if device is None or not has_accelerator():
            return
        module: Any = torch.get_device_module(device)
        state = getattr(module, "get_rng_state", lambda: None)()
        # a library that names itself a device, as torchax does, keeps its generator elsewhere
        if isinstance(state, torch.Tensor):
            self._module, self._other = module, state

    def rewind(self) -> None:
        """Set the state again that was stored."""
        torch.set_rng_state(self._state)
        if self._module is not None:
            self._module.set_rng_state(self._other)


@contextmanager
def seeded_with_numpy(*parts: object) -> Iterator[None]:
    """Seed NumPy's global generator inside, in addition to those of :func:`seeded`.

    Some of OpInfo's samples draw from it.
    """
    state = np.random.get_state()
    np.random.seed(stable_seed(*parts))
    try:
        with seeded(*parts):
            yield
    finally:
        np.random.set_state(state)


def has_accelerator() -> bool:
    """Return whether there is one. It is asked each time: one of another package is there once it
    has been imported.
    """
    return torch.accelerator.is_available()
