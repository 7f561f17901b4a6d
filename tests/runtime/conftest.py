"""The runtime's own tests: claims about it, compared with torch's engine and torch.func."""

import gc
import importlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import runtime
from runtime import dropin, unwrap, wrap
from runtime.native import build
from runtime.native import library as native

ROOT = Path(__file__).parents[2]

with warnings.catch_warnings():  # torch imports these at its first jvp, and scripts them
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
    importlib.import_module("torch._decomp.decompositions_for_jvp")


@pytest.fixture(autouse=True)
def settings() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def native_folder() -> Path:
    """The folder of the native part of guards. If nobody has built it, it is built beside the
    tests."""
    used = native.folder()
    if used is not None and not native.is_off() and native.file_in(used).exists():
        return used
    own = ROOT / ".cache/native"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.VARIABLE, str(own))
        try:
            build.build()
        except build.NoCompiler as error:
            pytest.skip(str(error))
    return own


@pytest.fixture(params=["in Python", "in C++"])
def guards(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the guards of a test compare."""
    folder = "0"
    if request.param == "in C++":
        folder = str(request.getfixturevalue("native_folder"))
    monkeypatch.setenv(native.VARIABLE, folder)
    assert (native.library().module is None) == (folder == "0")
    return str(request.param)


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
