"""Fixtures of the tests of autograd."""

from collections.abc import Iterator

import pytest

from runtime.autograd import forward_ad


@pytest.fixture
def level() -> Iterator[None]:
    """A dual level around the test."""
    with forward_ad.dual_level():
        yield
