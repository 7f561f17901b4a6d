from __future__ import annotations

import pytest

from .by_hand import Joint


@pytest.fixture
def joint() -> Joint:
    return Joint()
