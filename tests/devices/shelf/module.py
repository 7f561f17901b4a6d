"""`torch.shelf`: what torch and users ask a device for."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from tests.devices.shelf.queue import QUEUE
from tests.devices.shelf.randomness import RANDOMNESS

__all__ = ["ShelfModule"]


class ShelfModule:
    """The functions of `torch.shelf`, by the names that torch looks for."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def device(self, device: object) -> AbstractContextManager[None]:
        """Return a context in which this device is the current one, as it always is."""
        return nullcontext()

    def _is_in_bad_fork(self) -> bool:
        """Return whether the process was forked from one that used the device: its memory is
        that of the host, so a fork does no harm."""
        return False

    def manual_seed(self, seed: int) -> None:
        RANDOMNESS.reseed(seed)

    def manual_seed_all(self, seed: int) -> None:
        RANDOMNESS.reseed(seed)

    def initial_seed(self) -> int:
        return RANDOMNESS.seed

    def get_rng_state(self, device: object = "shelf") -> torch.Tensor:
        return RANDOMNESS.state.clone()

    def set_rng_state(self, state: torch.Tensor, device: object = "shelf") -> None:
        RANDOMNESS.state = state.clone()

    def synchronize(self, device: object = None) -> None:
        QUEUE.wait()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]
