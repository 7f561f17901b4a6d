"""Seeds that depend on names and on nothing else, so that a rerun of one case draws what the full run drew."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def stable_seed(*parts: object) -> int:
    """A seed in [0, 2³¹) from the text of `parts`; unlike ``hash``, the same in every process."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF


def generator(*parts: object) -> torch.Generator:
    """A CPU generator seeded by :func:`stable_seed`; draws from it leave the global state alone."""
    return torch.Generator().manual_seed(stable_seed(*parts))


@contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Global generators seeded inside and restored after: what OpInfo samples and random ops draw from."""
    seed = stable_seed(*parts)
    kept_torch, kept_numpy = torch.get_rng_state(), np.random.get_state()
    torch.manual_seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(kept_torch)
        np.random.set_state(kept_numpy)
