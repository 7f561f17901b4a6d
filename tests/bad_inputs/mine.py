"""Ops and samples of a user, some of them wrong."""

import sys
import time
from typing import Any

import torch


def swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def returns_number(dtype: torch.dtype, device: str) -> Any:
    return 7


def returns_numbers(dtype: torch.dtype, device: str) -> Any:
    return [1, 2]


def returns_nothing(dtype: torch.dtype, device: str) -> Any:
    return None


def returns_none_at_all(dtype: torch.dtype, device: str) -> Any:
    return []


def returns_text_arguments(dtype: torch.dtype, device: str) -> Any:
    return [{"args": "abc"}]


def returns_unknown_keys(dtype: torch.dtype, device: str) -> Any:
    return [{"arguments": [torch.ones(2)]}]


def takes_nothing() -> Any:
    return [{"args": [torch.ones(2)]}]


def raises(dtype: torch.dtype, device: str) -> Any:
    raise ValueError("no samples today")


def exits(dtype: torch.dtype, device: str) -> Any:
    sys.exit(0)


def never_ends(dtype: torch.dtype, device: str) -> Any:
    while True:
        time.sleep(1)


def yields_forever(dtype: torch.dtype, device: str) -> Any:
    while True:
        yield {"args": [torch.ones(2, dtype=dtype)]}


def exits_as_op(x: torch.Tensor) -> torch.Tensor:
    raise SystemExit(0)


def stops_as_op(x: torch.Tensor) -> torch.Tensor:
    raise KeyboardInterrupt


def wrong_shape(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(7)


def returns_text(x: torch.Tensor) -> Any:
    return "a text"


number = 7
