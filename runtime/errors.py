"""Errors that name what to do next."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch


class MissingRule(NotImplementedError):
    """An op lacks the rule that a transform asked for.

    ``rule``: ``"vjp"``, ``"jvp"`` or ``"batch"``; ``arguments``: those that it is missing for,
    where the op has it for others, ``known``; ``case``: the calls that it is missing for. The first
    sentence of the message is for users, the second for maintainers."""

    def __init__(
        self,
        op: str,
        rule: str,
        arguments: Iterable[str] = (),
        known: Iterable[str] = (),
        case: str = "",
    ) -> None:
        lacking, others = _join_names(arguments), _join_names(known)
        which = (
            f"{case and ' ' + case}{lacking and f' for its argument {lacking}'}"
            f"{lacking and others and f' (it has one for {others})'}"
        )
        what = f"what is passed as {lacking}" if lacking else "the op's arguments"
        text = (
            f"{op} has no {rule} rule{which}, so {_UNKNOWN[rule].format(what=what)}. "
            "For maintainers: add the rule to the op's record in runtime/rules/ "
            "(docs/rules.md shows how)."
        )
        if rule == "jvp":
            text = (
                f"Trying to use forward AD with {op.split('.')[1] if '.' in op else op} that does "
                f"not support it: {text}"
            )
        super().__init__(text)
        self.op = op
        self.rule = rule


_UNKNOWN = {
    "vjp": (
        "its gradient is not known: detach() {what} if no gradient is meant to pass there, "
        "compute the same with other ops or in an autograd.Function with a backward "
        "of your own, or report the op"
    ),
    "jvp": (
        "its tangent is not known: detach() {what} if no tangent is meant to pass there, "
        "compute the same with other ops or in an autograd.Function with a jvp of your own, "
        "use reverse mode, or report the op"
    ),
    "batch": (
        "vmap cannot run it on a whole batch: call it outside of vmap, "
        "compute the same with other ops, let vmap loop over the "
        "elements if there are some and the op is no view "
        '(fallback_policy("warn") of the module runtime.func.batch), or report the op'
    ),
}


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


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
            "a nested tensor (torch.nested) is used where this package takes none. "
            "The tape of the session takes those of the strided layout that were "
            "made of its tensors or by runtime.wrap; transforms, forward mode, "
            "traces and the jagged layout need a tensor with one size per dimension. "
            "Use the parts one by one, or as one dense tensor with a mask: "
            "torch.stack([torch.nn.functional.pad(p, (0, longest - len(p))) for p in parts])."
        )


# What this package says itself, as opposed to what a kernel says of the shapes that it was given.
OWN_ERRORS = (MissingRule, EscapedValue, BatchingError, InplaceError, NestedTensor)

_LIBRARIES = tuple(str(Path(where).parent) + "/" for where in (__file__, str(torch.__file__)))


def users_frame() -> tuple[FrameType, int]:
    """Return the nearest frame outside of this package and torch, and its level on the stack for a
    warning that the caller gives."""
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


def refuse_data_write() -> NoReturn:
    """Refuse ``x.data = new`` of a value of a transform, as torch does."""
    raise RuntimeError(
        "mutating directly with `.data` inside functorch transform is not allowed. "
        "Write the elements by x.copy_(new), or go on with the new tensor in place of x. "
        f"It happened{called_from()}"
    )
