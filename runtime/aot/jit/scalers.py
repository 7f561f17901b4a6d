"""Gradient scalers that a program uses while it is captured.

``torch.amp.GradScaler`` makes its scale when it is first asked for it. In a capture the scale would be a value of the program, and each
call would start from the first one. So the scale is made outside, and the program is captured once more.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.amp import GradScaler
from torch.utils._python_dispatch import _disable_current_modes

from ...seam.levels import Value

_FILE = GradScaler.step.__code__.co_filename


def made_in_capture() -> GradScaler | None:
    """The scaler that calls the present function, if its scale is a value of a program."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _FILE:
        frame = frame.f_back
    scaler = None if frame is None else frame.f_locals.get("self")
    return scaler if isinstance(scaler, GradScaler) and isinstance(scaler._scale, Value) else None


def make_again(scaler: GradScaler, device: torch.device) -> None:
    """Give ``scaler`` a scale of its own, as if it had been asked for it before the program."""
    states: Any = scaler._per_optimizer_states
    states.clear()
    scaler._scale = scaler._growth_tracker = None
    with _disable_current_modes():
        scaler._lazy_init_scale_growth_tracker(device)
