"""List the ops that both runs of a checkpointed function call, for ``checkpoint(debug=True)``.

    float32[3] = aten.mul.Tensor(float32[3], 2)   (1 of 3 in original)

An error of the checkpoint then has these lines, and the Python stack of each op.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence

import torch

from ..seam.call_types import Arguments, Keywords
from ..torch_private.dispatcher import OpOverload
from ..torch_private.mode_stacks import TorchDispatchMode
from ..torch_private.pytrees import pytree


def _section(title: str, lines: list[str]) -> str:
    """Return a part of the report: its title, and the lines below."""
    return f"{title}\n\n" + "\n".join(lines) + "\n"


def _describe(value: object) -> str:
    """Return dtype and shape of a tensor, such as ``float32[3]``, or the ``repr`` of another
    value."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


class OpLog(TorchDispatchMode):
    """Log the ATen calls of the first run of a function.

    ``lines`` and ``stacks`` have an item for each call. ``recomputation`` is the log of the latest
    second run, None before there is one.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[str] = []
        self.stacks: list[str] = []
        self.recomputation: OpLog | None = None

    def start_recomputation(self) -> OpLog:
        """Return a new log for a second run. It replaces that of an earlier second run."""
        self.recomputation = OpLog()
        return self.recomputation

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> object:
        """Run a call, and log it with the stack from which it comes."""
        out = func(*args, **(kwargs or {}))
        results = ", ".join(map(_describe, pytree.tree_leaves(out)))
        arguments = ", ".join(map(_describe, pytree.tree_leaves((args, kwargs))))
        self.lines.append(f"{results} = {func}({arguments})")
        self.stacks.append("".join(traceback.format_stack()[:-1]))  # without this frame
        return out

    def list_with_stacks(self, run: str) -> list[str]:
        """List the calls with their stacks. ``run``: how the text names this run."""
        count = len(self.lines)
        calls = enumerate(zip(self.lines, self.stacks, strict=True), 1)
        return [
            f"{line}   ({number} of {count} in {run})\n\n{stack}" for number, (line, stack) in calls
        ]

    def report(self, error: str) -> str:
        """Return the text of an error of the checkpoint: both runs with stacks, both without, then
        ``error``."""
        # an error may come before there was a second run, which then has no calls
        first, second = self, self.recomputation or OpLog()
        return "\n".join(
            (
                (
                    "An error happened while unpacking tensors; "
                    "debug=True shows what both runs did. The error itself is at the end.\n"
                ),
                _section(
                    "1. Where the ops of the original forward were called",
                    first.list_with_stacks("original"),
                ),
                _section(
                    "2. Where the ops of the recomputation were called",
                    second.list_with_stacks("recompute"),
                ),
                "3. The ops of both runs: look where they begin to differ\n",
                _section("Operations executed during the original forward:", first.lines),
                _section("Operations executed during recomputation:", second.lines),
                (
                    "4. ERROR: Detected non-determinism while running activation checkpointing\n\n"
                    f"{error}"
                ),
            )
        )
