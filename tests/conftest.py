"""What holds for all tests of the project."""

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def heap() -> None:
    """Keep what the modules before have loaded out of the collector's sight.

    It stays until the end. With it, a collection takes seconds late in a run of all tests.
    """
    gc.collect()
    gc.freeze()
