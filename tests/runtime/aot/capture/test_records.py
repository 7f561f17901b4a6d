"""What a capture writes down is not changed afterwards, and two places are one only if
they are one object."""

from __future__ import annotations

import torch

from runtime import jit
from runtime.jit import explain


def test_what_a_program_was_captured_for_is_told_without_what_it_reads() -> None:
    rate = 2.0
    f = jit(lambda x: x * rate)
    f(torch.ones(2))
    (captured,) = explain(f).programs
    assert captured.program.guard.state.nodes and captured.around
    told = repr(captured)
    assert (
        "the first call" in told
        and "float32[2]" in told
        and "reads=" not in told
        and "around=" not in told
    )
