"""Seeds that depend on names and on nothing else, so that a rerun of one case draws what the full run drew."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

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
    """torch's global generators seeded inside, the CPU's restored after: what random ops draw from.

    ``torch.manual_seed`` formats a stack trace for a CUDA that has not been started, which costs more than a check does; it is called
    only where there is an accelerator to seed.
    """
    seed = stable_seed(*parts)
    kept = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    if _has_accelerator():
        torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(kept)


@contextmanager
def seeded_with_numpy(*parts: object) -> Iterator[None]:
    """:func:`seeded`, and NumPy's global generator besides: some of OpInfo's samples draw from it."""
    kept = np.random.get_state()
    np.random.seed(stable_seed(*parts))
    try:
        with seeded(*parts):
            yield
    finally:
        np.random.set_state(kept)


@cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()
