"""What a jitted function does where a part of the runtime is broken on purpose.

Inside: the parts that are replaced. ``check=`` looks for faults of this package, so a test of it
plants one. Programs that are kept at hand are found without a look-up, so the look-up is taken
away."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runtime import jit
from runtime.aot.python_state.program_state import Effects
from runtime.jit.programs import Captures


def test_a_change_that_is_not_done_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["none"]

    def f(x: Any) -> Any:
        names[0] = "some"
        return x

    g = jit(f, check=2)
    g(torch.ones(1))
    names[0] = "none"
    g(torch.ones(1))
    monkeypatch.setattr(Effects, "carry_out", lambda self: None)
    names[0] = "none"
    g(torch.ones(1))
    assert names == ["none"]
    with pytest.raises(RuntimeError, match=r"call 4 of f .*only eager mode changes 0 of 'names'"):
        g(torch.ones(1))


def test_a_program_for_any_sizes_is_at_hand_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    run = jit(lambda x: x * 2)
    for n in (2, 2, 3, 3):
        run(torch.ones(n))
    # which a call comes to only if no program at hand takes it
    monkeypatch.setattr(Captures, "find", None)
    for n in (2, 3, 4):
        assert run(torch.ones(n)).tolist() == [2.0] * n
