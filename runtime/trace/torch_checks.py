"""Recognizes functions of torch in Python that read whether an element is bad, and raise if so.

``gaussian_nll_loss`` asks ``if torch.any(var < 0): raise ValueError``. A trace refuses a program
that reads an element, because the graph would keep the answer. Here the answer is known, as the
program goes on with one answer only. So the trace writes an assertion into the graph, which every
call carries out. A batch asks whether any of its elements is bad. So it is with the distributions
of torch, while a capture has exchanged their validation.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from ..rules.ops import op_of
from ..seam.exchanged_methods import validates
from ..seam.own_modules import PACKAGE, is_own_module
from ..torch_private.dispatcher import MODULES_OF_CALLS
from ..torch_private.native_functions import assert_async


class Check(NamedTuple):
    """A check by torch, which reads a Boolean."""

    # The answer with which the program goes on.
    good: bool
    # The mistake that the other answer shows.
    wrong: str

    def of_graph(self, answer: torch.Tensor) -> bool:
        """Let the graph raise unless ``answer``, one element, is the good one, which is
        returned."""
        assert_async(answer if self.good else answer.logical_not(), self.wrong)
        return self.good

    def of_batch(self, answers: torch.Tensor) -> torch.Tensor:
        """Return the answer for a batch. One bad element is enough for the caller to raise, as a
        loop would."""
        return answers.all() if self.good else answers.any()


# The code that reads a single Boolean, and what it checks. Such a function reads nothing else.
_CHECKS: dict[CodeType, Check] = {
    torch.nn.functional.gaussian_nll_loss.__code__: Check(
        False, "gaussian_nll_loss: var has negative entry/entries"
    )
}
_VALIDATION = Check(
    True,
    "an argument of a distribution or a value that it is asked about is not in its domain. "
    "In eager mode a ValueError says which",
)
_RULES = f"{PACKAGE}.rules."


def check_of_torch() -> Check | None:
    """Return the check of torch's that reads a Boolean now. None if the program reads it."""
    if validates():
        return _VALIDATION
    # whoever reads is the first function that is no level and no dispatch
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
