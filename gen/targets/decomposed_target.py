"""Test Inductor's decompositions as a target: each op as ``torch.compile`` takes it apart, run at
once.

    smooth_l1_loss(x, y, beta=-1)     a loss, where torch refuses a negative beta

A decomposition is a function of Python, so no C++ is compiled, and a cell takes milliseconds where
target `inductor` takes seconds. What a decomposition gets wrong, compiled code gets wrong too. What
Inductor's own loops get wrong shows on target `inductor` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gen.targets.torch_target import OF_ENGINE, TorchTarget

__all__ = ["DecomposedTarget"]


class DecomposedTarget(TorchTarget):
    """Run pipelines by decompositions, see :class:`gen.targets.protocol.Target`."""

    name = "decomposed"
    levels = ("decomposed",)
    # a decomposition is of an op that is called, not of a graph or of a program with a state
    lacks = TorchTarget.lacks | {
        "functionalize",
        "trace",
        "joint",
        "compiled",
        "export",
        "saved",
        "part",
        "per_sample",
        "fake",
        "linearize",
        "overload",
        "checkpoint",
        "functional",
        "session",
        *OF_ENGINE,  # not for ops
    }

    def forward(self, function: Callable[..., object]) -> Callable[..., Any]:
        """Return `function` by decompositions."""
        from gen.torch_private.compilers import Decomposed

        mode: Any = Decomposed

        def call(*args: object) -> Any:
            with mode():
                return function(*args)

        return call

    def pipeline(
        self, function: Callable[..., object], stages: Sequence[str]
    ) -> Callable[..., Any]:
        """Return `function`, a pipeline of `stages`, by decompositions, in its derivatives too."""
        return self.forward(function)
