"""Recognizes functions of torch in Python that read whether an element is bad, and raise if so.

``gaussian_nll_loss`` asks ``if torch.any(var < 0): raise ValueError``. A trace refuses a program
that reads an element, because the graph would keep the answer. Here the answer is known, as the
program goes on with one answer only. So the trace writes an assertion into the graph, which every
call carries out. A batch asks whether any of its elements is bad.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType

import torch

from ..rules.ops import op_of
from ..seam.own_modules import PACKAGE, is_own_module
from ..torch_private.dispatcher import MODULES_OF_CALLS

# The code that reads a single Boolean, and what is wrong if it is true. Such a function
# reads nothing else.
_CHECKS: dict[CodeType, str] = {
    torch.nn.functional.gaussian_nll_loss.__code__: (
        "gaussian_nll_loss: var has negative entry/entries"
    )
}
_RULES = f"{PACKAGE}.rules."


def complaint() -> str | None:
    """Return what is wrong if the Boolean that is read now is true. None if no such function reads
    it itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _passes_on(frame):
        frame = frame.f_back
    if frame is None:
        return None
    return _CHECKS.get(frame.f_code)


def _passes_on(frame: FrameType) -> bool:
    """Return whether a frame belongs to a level, or to torch's dispatch of a call. A rule that
    reads does so on its own account."""
    name: str = frame.f_globals.get("__name__", "")
    ours = is_own_module(name) and (name == op_of.__module__ or not name.startswith(_RULES))
    return ours or name in MODULES_OF_CALLS
