"""The cells by which each member of a target is tried: small calls of two or three ops.

    Trial("vjp", "vjp", against="upstream")       # the stage `vjp` of an op, beside torch's engine

They are cells as a matrix has them, and the checks run them as they run all others.
"""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gen.checks.case import Case
from gen.checks.tables import Cell, Family
from gen.language.axes import USUAL, Axes
from gen.run.verdict import Verdict, attempt
from gen.targets.parts import compiled
from gen.targets.protocol import Target

__all__ = ["FORWARD", "PLAIN_OPS", "TRIALS", "Trial", "sine_in_part", "verdict"]

FORWARD = "forward"
PLAIN_OPS = ("torch.sin", "torch.exp", "torch.tanh", "torch.add", "torch.mul", "torch.matmul")
"""Ops that a target with ops of its own may have. It is tried by the first ones that it has."""
_BATCHES = ("torch.nn.functional.linear",)
_PARTS = (f"{__name__}.sine_in_part",)


def sine_in_part(x: Any) -> Any:
    """Return twice the sine of a tensor, of which a target compiles the sine."""
    return compiled(torch.sin)(x) * 2


@dataclass(frozen=True)
class Trial:
    """Cells of some ops under one pipeline, which need one word."""

    # the word of the target's `lacks` without which the cells run
    word: str
    pipeline: str
    # the reference
    against: str = "upstream"
    ops: Sequence[str] = ("torch.sin", "torch.mul")
    axes: Mapping[str, str] = field(default_factory=dict)
    values: str = USUAL.values


def _nested(word: str) -> tuple[Trial, ...]:
    """Return the trials of a transform: alone, and of itself."""
    return Trial(word, word), Trial(word, f"{word} . {word}")


TRIALS: tuple[Trial, ...] = (
    Trial(FORWARD, FORWARD, "eager"),
    *_nested("vjp"),
    *_nested("jvp"),
    Trial("linearize", "linearize"),
    Trial("vmap", "vmap", "loop"),
    Trial("vmap", "vmap . vmap", "loop"),
    Trial("grad", "grad"),
    Trial("jacrev", "jacrev"),
    Trial("jacfwd", "jacfwd"),
    Trial("hessian", "hessian"),
    Trial("functionalize", "functionalize", "eager"),
    *_nested("backward"),
    Trial("dual", "dual"),
    Trial("checkpoint", "checkpoint", axes={"reentrant": "not_reentrant"}),
    Trial("session", "session"),
    Trial("functional", "functional.vjp"),
    Trial("functional", "functional.hessian"),
    Trial("trace", "trace", "eager"),
    Trial("joint", "aot.joint", "eager"),
    Trial("compiled", "aot.function", "eager"),
    Trial("part", "aot.parts", "eager", _PARTS),
    Trial("export", "aot.export", "eager"),
    Trial("saved", "aot.saved", "eager"),
    Trial("jit", FORWARD, "eager", axes={"run": "jitted"}),
    Trial("per_sample", "per_sample", "loop", _BATCHES),
    Trial("per_sample_answer", "per_sample", "loop", _BATCHES, {"of": "norms"}),
    Trial("training", "training", ops=_BATCHES, axes={"trains": "eagerly"}),
    Trial("out_dims", "vmap", "loop", axes={"batch": "out_dims"}),
    Trial("overload", FORWARD, "eager", values="overloads"),
    Trial("fake", FORWARD, "fake"),
)

_SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    **dict.fromkeys(PLAIN_OPS[:3], ((3, 4),)),
    **dict.fromkeys(PLAIN_OPS[3:], ((3, 3), (3, 3))),
    _BATCHES[0]: ((4, 3), (2, 3)),
    _PARTS[0]: ((3, 4),),
}
"""Each op with the shapes of its arguments."""


def _family() -> Family:
    """Return the table of the ops. With a call of its own, a row asks torch's database nothing."""
    rows = {}
    for name, shapes in _SHAPES.items():
        module, _, function = name.rpartition(".")
        arguments = [{"shape": list(shape)} for shape in shapes]
        rows[name] = {"call": f"{module}:{function}", "samples": [{"args": arguments}]}
    return Family("protocol", rows)


def verdict(target: Target, trial: Trial, op: str, device: str) -> Verdict:
    """Run one op of a trial on a target."""
    axes = Axes.varying(trial.axes)
    case = Case(Cell(op, "float64", axes, "full", ()), trial.word, _family(), target, device)

    def check(case: Case) -> None:
        case.assert_same(trial.pipeline, against=trial.against, values=trial.values)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return attempt(check, case, {}, datetime.date.today())
