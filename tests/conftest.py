"""What holds for all tests of the project."""

import gc

import pytest
import torch

# Some tests fork a process that differentiates by torch. Its engine starts with the first backward
# pass, and with a thread for each device, after which a fork cannot use it. A fake tensor makes a
# torch that is built for CUDA count a device where there is none. So the engine starts before both.
torch.ones((), requires_grad=True).backward()


@pytest.fixture(scope="module", autouse=True)
def heap() -> None:
    """Keep what the modules before have loaded out of the collector's sight.

    It stays until the end. With it, a collection takes seconds late in a run of all tests.
    """
    gc.collect()
    gc.freeze()
