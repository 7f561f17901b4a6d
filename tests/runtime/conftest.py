"""The runtime's own tests: claims about it, compared with torch's engine and torch.func."""

import gc
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import runtime
from runtime import dropin, unwrap, wrap

with warnings.catch_warnings():  # torch imports these at its first jvp, and scripts them
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
    importlib.import_module("torch._decomp.decompositions_for_jvp")


@pytest.fixture(autouse=True)
def settings() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What is freed while a test runs is freed by reference counting."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def routed() -> Iterator[None]:
    """Torch's API leads to the runtime while a test runs."""
    with dropin.installed():
        yield


def _both(f: Any, *plain: torch.Tensor) -> None:
    """``f``'s value and gradients are those of torch's engine, undefined ones included."""
    theirs = [x.clone().requires_grad_() for x in plain]
    ours = [wrap(x.clone(), True) for x in plain]
    expected, found = f(*theirs), f(*ours)
    torch.testing.assert_close(unwrap(found), expected.detach())
    want = torch.autograd.grad(expected, theirs, allow_unused=True)
    got = runtime.autograd.grad(found, ours, allow_unused=True)
    assert [g is None for g in want] == [g is None for g in got]
    for a, b in zip(got, want, strict=True):
        if b is not None:
            torch.testing.assert_close(unwrap(a), b)


@pytest.fixture
def both() -> Callable[..., None]:
    """Check a function of tensors against torch's engine."""
    return _both
