"""The same program run on torch's engine and on ours: what it returns, or the type and the fault of
the error that it ends with."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

import runtime

from .errors import told

OURS = SimpleNamespace(
    tensor=runtime.tensor, autograd=runtime.autograd, graph=runtime.autograd.graph, name="runtime"
)
TORCH = SimpleNamespace(
    tensor=torch.tensor, autograd=torch.autograd, graph=torch.autograd.graph, name="torch"
)

Scenario = Callable[[Any], Any]


def plain(value: Any) -> Any:
    """Tensors as nested lists, so that results of both libraries compare with ``==``."""
    if isinstance(value, torch.Tensor):
        return value.detach().tolist()
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value


def outcome(scenario: Scenario, lib: Any) -> Any:
    try:
        return plain(scenario(lib))
    except Exception as error:
        return told(error)


def same(scenario: Scenario) -> Any:
    """Run on both, require the same outcome and return it."""
    expected, found = outcome(scenario, TORCH), outcome(scenario, OURS)
    assert found == expected, f"ours: {found!r}; torch: {expected!r}"
    return found
