"""Errors that name what to do next."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType

import torch


class MissingRule(NotImplementedError):
    """An op lacks the rule that a transform asked for; the message names the op, the rule and where to add it."""

    def __init__(self, op: str, rule: str, hint: str = "") -> None:
        text = f"{op} has no {rule} rule; add one to its record in runtime/rules/ (docs/runtime.md shows how){hint}"
        if rule.startswith("jvp"):
            text = f"Trying to use forward AD with {op.split('.')[1] if '.' in op else op} that does not support it: {text}"
        super().__init__(text)
        self.op = op
        self.rule = rule


class EscapedValue(RuntimeError):
    """A value was used after the transform that made it had returned."""


class BatchingError(RuntimeError):
    """A function does something under vmap that has no meaning for a whole batch."""


class InplaceError(RuntimeError):
    """A mutation that cannot be tracked correctly; raised instead of computing wrong gradients."""


class NestedTensor(NotImplementedError):
    """A nested tensor is used where this package takes none."""

    def __init__(self) -> None:
        super().__init__(
            "a nested tensor (torch.nested) is used where this package takes none. The tape of the session takes those of the strided "
            "layout that were made of its tensors or by runtime.wrap; transforms, forward mode, traces and the jagged layout need a tensor "
            "with one size per dimension. Use the parts one by one, or as one dense tensor with a mask: "
            "torch.stack([torch.nn.functional.pad(p, (0, longest - len(p))) for p in parts])."
        )


_LIBRARIES = tuple(str(Path(where).parent) + "/" for where in (__file__, str(torch.__file__)))


def users_frame() -> tuple[FrameType, int]:
    """The nearest frame outside of this package and torch, and its level on the stack for a warning that the caller gives."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame, level = frame.f_back, level + 1
    return frame, level


def called_from() -> str:
    """`` at FILE:LINE in FUNCTION: `SOURCE` ``: the line of the user's program that led here."""
    frame, _ = users_frame()
    file, line = frame.f_code.co_filename, frame.f_lineno
    source = linecache.getline(file, line).strip()
    return f" at {file}:{line} in {frame.f_code.co_name}{f': `{source}`' if source else ''}"
