"""Random numbers of the device: a generator of its own, which the host's does not touch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["RANDOMNESS", "Randomness"]


class Randomness:
    """The state of the device's generator."""

    def __init__(self) -> None:
        self.seed = 0
        self.state = torch.Generator().manual_seed(self.seed).get_state()

    def reseed(self, seed: int) -> None:
        """Begin the numbers of a seed."""
        self.seed = seed
        self.state = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Let kernels of the host draw from this state inside."""
        before = torch.get_rng_state()
        torch.set_rng_state(self.state)
        try:
            yield
        finally:
            self.state = torch.get_rng_state()
            torch.set_rng_state(before)


RANDOMNESS = Randomness()
