"""What a jitted function tells of its programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runtime import jit
from runtime.aot.jit import explain, source

RATE = 2.0


def test_why_each_program_was_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    f = jit(lambda x, *more: x * RATE)
    f(torch.ones(2))
    f(torch.ones(2, dtype=torch.float64))
    f(torch.ones(3))
    f(torch.ones(2), torch.ones(1))
    with torch.no_grad():
        f(torch.ones(2))
    monkeypatch.setitem(globals(), "RATE", 5.0)
    f(torch.ones(2))
    assert [c.why for c in explain(f).programs] == [
        "the first call",
        "argument 0 is float64[2], was float32[2]",
        "argument 0 is float32[3], was float64[2]",
        "2 arguments, were 1",
        "1 arguments, were 2; other modes: of grad, of autocast, of a module, or another structure of the arguments",
        "the 'RATE' of a dict is 5.0, was 2.0; other modes: of grad, of autocast, of a module, or another structure of the arguments",
    ]


def test_the_table_names_programs_and_refusals() -> None:
    f = jit(lambda x: x * 2 if x.dim() else x if x > 0 else -x)
    f(torch.ones(2))
    with pytest.raises(RuntimeError):
        f(torch.tensor(1.0))
    lines = str(explain(f)).splitlines()
    assert lines[0] == "<lambda>: 1 program" and lines[1].split() == ["program", "sizes", "ops", "arguments", "captured", "because", "of"]
    assert lines[2].split() == ["0", "fixed", "1", "float32[2]", "the", "first", "call"]
    assert lines[3].startswith("refused (float32[]): item(), bool(), int() or float() asks for the elements")


def test_the_source_has_the_lines_of_the_user() -> None:
    def f(x: Any) -> Any:
        y = x.sin()
        return torch.cat([y, y * 2])

    compiled = jit(f)
    compiled(torch.ones(2))
    text = source(compiled).splitlines()
    assert text[0] == "def program_0(primals_1):" and text[1].endswith("y = x.sin()")
    assert text[2] == "    sin = torch.ops.aten.sin.default(primals_1)"
    assert text[-2] == "    cat = torch.ops.aten.cat.default([sin, mul])" and text[-1] == "    return [cat]"


def test_the_report_and_the_source_are_asked_of_jit() -> None:
    f = jit(lambda x: x * 2)
    f(torch.ones(2))
    assert jit.explain(f) == explain(f) and jit.source(f) == source(f)


def test_what_is_not_jitted_has_no_report() -> None:
    with pytest.raises(TypeError, match="function is not jitted"):
        explain(lambda x: x)
