"""What becomes of a random case: the same as in torch, different, refused, or an error.

outcome(random_case(7))     # Outcome("same")
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from runtime.aot import aot_function, default_partition, min_cut_rematerialization_partition, nop

from .observations import LOW, difference, observed
from .programs import ERRORS, Case
from .surroundings import SESSION, TORCH

REFUSALS = {
    "memory shared behind autograd": (
        r"share memory, the program writes to it, "
        r"and one of them req|is a view of the same tensor as a t"
    ),
    "memory shared by dtypes": (
        r"share memory and have different dtypes|share "
        r"memory, one is a lazy conjugate"
    ),
    ("memory shared with a closed-over tensor"): (
        r"a tensor that the program "
        r"closes over share memory"
    ),
    "older view of a changed geometry": (
        r"is older than a change "
        r"of the argument's sizes or strides"
    ),
    "geometry without an in-place op": r"which the caller's tensor cannot follow",
    "written between forward and backward": r"modified by an inplace operation",
    "second derivative": r"has no second derivative",
    "view made under no_grad": r"A view was created in no_grad mode",
    "out= of another shape": r"out= has shape",
    "write to an expanded tensor": (
        r"more than one element of the writ|part "
        r"of an expanded argument"
    ),
    "hook on an argument": r"registers a hook on an argument",
    "geometry of a leaf under no_grad": r"in place under no_grad, and the argument is a leaf",
    "hook under no_grad": r"cannot register a hook on a tensor that doesn't require gradient",
    "requires_grad_()": r"requires_grad_\(\)",
    "write through as_strided": (
        r"write through as_strided of a tensor|as_strided of a tensor with "
        r"gaps|as_strided_scatter: sizes"
    ),
    "draw of no numbers of another dtype": (
        r"is a continuous probability|(log_normal|geometric) not impl|"
        r"expected a floating-point or"
    ),
    "overlapping argument": r"shows an element of its memory several times",
    "state of random numbers": r"sets the state of a random generator",
    "written unsafe_split": r"with a result of unsafe_split",
    "written under no_grad and enable_grad": r"called under no_grad, and writes to",
    "control flow by values": r"asks for the elements of a tensor",
}
PARTITIONS: dict[str, Any] = {
    "default": default_partition,
    "min cut": min_cut_rematerialization_partition,
    "budget": partial(min_cut_rematerialization_partition, memory_budget=0.3),
}


@dataclass(frozen=True)
class Outcome:
    """``what``: "same", "different", "refused", "error", "session" (the runtime differs
    without the compiler, too), or "nothing" (no call of it runs in torch). ``kind`` of
    refusal, or the difference."""

    what: str
    kind: str = ""


def compiled(case: Case) -> Callable[..., Any]:
    def wrapped(f: Callable[..., Any]) -> Callable[..., Any]:
        return aot_function(f, nop, partition_fn=PARTITIONS[case.partition], dynamic=case.dynamic)

    return (lambda f: wrapped(wrapped(f))) if case.nested else wrapped


def outcome(case: Case) -> Outcome:
    if not case.calls:
        return Outcome("nothing")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = observed(TORCH, case, lambda f: f)
        except ERRORS:
            return Outcome("nothing")
        found = _compared(case, expected, compiled(case))
        if found.what in ("same", "refused"):
            return found
        plain = _compared(case, expected, lambda f: f)
        # then the graph must at least do what the session does
        if plain.what == "different" and found.what == "different":
            found = _compared(case, observed(SESSION, case, lambda f: f), compiled(case))
            return found if found.what == "different" else Outcome("session", plain.kind)
        return found if plain.what == "same" else Outcome("session", f"{plain.what}: {plain.kind}")


def _compared(case: Case, expected: Any, wrapped: Callable[..., Any]) -> Outcome:
    try:
        different = difference(expected, observed(SESSION, case, wrapped), _tolerance(case))
    except Exception as error:
        text = str(error)
        for kind, pattern in REFUSALS.items():
            if isinstance(error, RuntimeError) and re.search(pattern, text):
                return Outcome("refused", kind)
        return Outcome("error", f"{type(error).__name__}: {text}")
    return Outcome("different", different) if different else Outcome("same")


def _tolerance(case: Case) -> float:
    source = str(case)
    return 0.05 if any(word in source for word in LOW) else 2e-4
