"""Runs a small program on plain torch and under the drop-in, and compares what it returns: numbers,
types, texts, errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from runtime import dropin

Program = Callable[[], Any]


def described(x: Any) -> Any:
    """What two runs of a program must agree in."""
    if isinstance(x, torch.Tensor):
        with torch.no_grad():
            kind = (
                "Parameter"
                if type(x) is torch.nn.Parameter
                else "Tensor"
                if type(x).__name__ == "Nested"
                else type(x).__name__
            )
            if isinstance(x, torch.nn.Parameter) and kind == "Tensor":
                kind = "Parameter"
            return (
                kind,
                x.requires_grad,
                x.is_leaf,
                str(x.dtype),
                str(x.layout),
                str(x.device),
                repr(x.detach().clone()),
            )
    if isinstance(x, dict):
        return {k: described(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [described(v) for v in x]
    return x


def outcome(program: Program) -> Any:
    """What ``program`` returns, or the type of its error; and torch's random state after it."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = described(program())
        except Exception as error:
            found = type(error).__name__, str(error).splitlines()[:1]
    return found, torch.random.get_rng_state().sum().item()


def both(program: Program) -> tuple[Any, Any]:
    """The outcome of ``program`` under the drop-in, and the one on torch."""
    expected = outcome(program)
    with dropin.installed():
        found = outcome(program)
    return found, expected
