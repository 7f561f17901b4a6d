"""The runtime's own tests: claims about it, compared with torch's engine and torch.func."""

import importlib
import warnings

import pytest
import torch

with warnings.catch_warnings():  # torch imports these at its first jvp, and scripts them
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=DeprecationWarning)
    importlib.import_module("torch._decomp.decompositions_for_jvp")


@pytest.fixture(autouse=True)
def settings() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
