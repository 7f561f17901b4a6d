"""``checkpoint(debug=True)``: an error then lists the ops that each run of the function
called, and from where."""

from __future__ import annotations

import traceback
from typing import Any

import torch

from ..torch_private.mode_stacks import TorchDispatchMode
from ..torch_private.pytrees import pytree


def _shown(x: object) -> str:
    return (
        f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        if isinstance(x, torch.Tensor)
        else repr(x)
    )


class OpLog(TorchDispatchMode):
    """Logs the ATen calls that are made inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[str] = []
        self.stacks: list[str] = []
        self.again: OpLog | None = None

    def second_run(self) -> OpLog:
        """Start a new log, for a second run."""
        self.again = OpLog()
        return self.again

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        results = ", ".join(map(_shown, pytree.tree_leaves(out)))
        given = ", ".join(map(_shown, pytree.tree_leaves((args, kwargs))))
        self.lines.append(f"{results} = {func}({given})")
        self.stacks.append("".join(traceback.format_stack()[:-1]))
        return out

    def report(self, error: str) -> str:
        first, second = self, self.again or OpLog()

        def section(title: str, lines: list[str]) -> str:
            return f"{title}\n\n" + "\n".join(lines) + "\n"

        def traced(log: OpLog, run: str) -> list[str]:
            count = len(log.lines)
            return [
                f"{line}   ({i} of {count} in {run})\n\n{stack}"
                for i, (line, stack) in enumerate(zip(log.lines, log.stacks, strict=True), 1)
            ]

        return "\n".join(
            (
                (
                    "An error happened while unpacking tensors; "
                    "debug=True shows what both runs did. The error itself is at the end.\n"
                ),
                section(
                    "1. Where the ops of the original forward were called",
                    traced(first, "original"),
                ),
                section(
                    "2. Where the ops of the recomputation were called", traced(second, "recompute")
                ),
                "3. The ops of both runs: look where they begin to differ\n",
                section("Operations executed during the original forward:", first.lines),
                section("Operations executed during recomputation:", second.lines),
                (
                    "4. ERROR: Detected non-determinism while running activation checkpointing\n\n"
                    f"{error}"
                ),
            )
        )
