from __future__ import annotations

import pytest

from .by_hand import Joint
from .library_ops import library

__all__ = ["library"]


@pytest.fixture
def joint() -> Joint:
    return Joint()
