"""What a jitted function tells of its programs."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch

from runtime import jit
from runtime.jit import explain, source

RATE = 2.0


NAME = "test_the_table_names_what_a_program_changes.<locals>.f"


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
        (
            "1 arguments, were 2; other modes: of grad, of autocast, of a module, "
            "or another structure of the arguments"
        ),
        (
            f"'RATE' of {__name__} is 5.0, was 2.0; other modes: "
            "of grad, of autocast, of a module, or another structure of the arguments"
        ),
    ]


def test_the_table_names_programs_and_refusals() -> None:
    f = jit(lambda x: x * 2 if x.dim() else x if x.sum().tolist() > 0 else -x)
    f(torch.ones(2))
    with pytest.raises(RuntimeError):
        f(torch.tensor(1.0))
    lines = str(explain(f)).splitlines()
    assert lines[0] == "<lambda>: 1 program" and lines[1].split() == [
        "program",
        "sizes",
        "ops",
        "arguments",
        "captured",
        "because",
        "of",
    ]
    assert lines[2].split() == ["0", "fixed", "1", "float32[2]", "the", "first", "call"]
    assert lines[-1].startswith("refused (float32[]): tolist() asks for the elements")


def test_the_table_names_what_a_program_changes() -> None:
    totals = {"steps": "none"}

    def f(x: Any) -> Any:
        totals["steps"] = "some"
        return x * 2

    g = jit(f)
    g(torch.ones(2))
    assert str(explain(g)).splitlines()[4] == f"program 0 changes 'steps' of 'totals' around {NAME}"


class Trainer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.history = [1.0]
        self._digest = hashlib.sha256()  # torch's code may read it, and the program does not

    def step(self, x: Any) -> Any:
        self.steps += 1
        return x * self.history[0]


def step_with_state() -> Any:
    """A jitted step that has a program for its counter as a number, and one for any number."""
    f = jit(Trainer().step, ignore=[[1]])
    for _ in range(3):
        f(torch.ones(2))
    return f


def test_the_report_names_the_objects_that_calls_compare_and_take() -> None:
    f = step_with_state()
    first, last = explain(f).programs[0].state, explain(f).programs[-1].state
    assert "Trainer.history" in first.objects["container"]
    assert {"Tensor", "Trainer", "Module"} <= set(first.objects["class"])
    assert "Trainer.step" in first.objects["function"]
    assert first.changes == ("'steps' of Trainer",) and first.arguments == ()
    assert last.arguments == ("'steps' of Trainer",) and last.changes == ()
    assert last.opaque == ("Trainer._digest",)


def test_the_text_of_the_report_says_what_programs_compare_change_take_and_ignore() -> None:
    f = step_with_state()
    first = explain(f).programs[0].state
    lines = str(explain(f)).splitlines()
    assert "program 0 changes 'steps' of Trainer" in lines
    assert "program 1 takes as arguments 'steps' of Trainer" in lines
    assert "program 1 cannot look into Trainer._digest" in lines
    assert lines[-1] == "ignored list"
    counted = next(line for line in lines if line.startswith("program 0 compares"))
    assert counted.startswith(f"program 0 compares {first.count} objects: ")


def test_the_source_has_the_lines_of_the_user() -> None:
    def f(x: Any) -> Any:
        y = x.sin()
        return torch.cat([y, y * 2])

    compiled = jit(f)
    compiled(torch.ones(2))
    text = source(compiled).splitlines()
    assert text[0] == "def program_0(primals_1):" and text[1].endswith("y = x.sin()")
    assert text[2] == "    sin = torch.ops.aten.sin.default(primals_1)"
    assert (
        text[-2] == "    cat = torch.ops.aten.cat.default([sin, mul])"
        and text[-1] == "    return [cat]"
    )


def test_the_report_and_the_source_are_asked_of_jit() -> None:
    f = jit(lambda x: x * 2)
    f(torch.ones(2))
    assert jit.explain(f) == explain(f) and jit.source(f) == source(f)


def test_what_is_not_jitted_has_no_report() -> None:
    with pytest.raises(TypeError, match="function is not jitted"):
        explain(lambda x: x)


def test_the_table_counts_and_aligns() -> None:
    f = jit(lambda x, *more: torch.sin(x * 2))
    assert str(explain(f)).splitlines() == [
        "<lambda>: 0 programs",
        "program  sizes  ops  arguments  captured because of",
    ]
    f(torch.ones(2))
    f(torch.ones(3), 7)
    assert str(explain(f)).splitlines()[:4] == [
        "<lambda>: 2 programs",
        "program  sizes  ops  arguments      captured because of",
        "0        fixed  2    float32[2]     the first call",
        "1        fixed  2    float32[3], 7  2 arguments, were 1",
    ]


def test_the_source_names_each_line_once_and_each_program() -> None:
    def f(x: Any) -> Any:
        y = x.sin() * 2
        values, places = y.max(0)
        return values.to(torch.float64), places, (x + 1,)

    run = jit(f)
    run(torch.ones(2, 2))
    run(torch.ones(2))
    first, second = source(run).split("\n\n")
    assert second.startswith("def program_1(primals_1):")
    lines = first.splitlines()
    assert [line.rpartition(", ")[2] if "#" in line else line for line in lines] == [
        "def program_0(primals_1):",
        lines[1].rpartition(", ")[2],
        "    sin = torch.ops.aten.sin.default(primals_1)",
        "    mul = torch.ops.aten.mul.Tensor(sin, 2)",
        lines[4].rpartition(", ")[2],
        "    max_1 = torch.ops.aten.max.dim(mul, 0)",
        "    getitem = getitem(max_1, 0)",
        "    getitem_1 = getitem(max_1, 1)",
        lines[8].rpartition(", ")[2],
        "    _to_copy = torch.ops.aten._to_copy.default(getitem, dtype=torch.float64)",
        "    add = torch.ops.aten.add.Tensor(primals_1, 1)",
        "    return [_to_copy, getitem_1, add]",
    ]
    assert all(
        "#" in lines[i] and text in lines[i]
        for i, text in ((1, "y = x.sin() * 2"), (4, "y.max(0)"), (8, "return values"))
    )


def test_a_method_that_is_jitted_has_a_report() -> None:
    class Owner:
        @jit
        def call(self, x: Any) -> Any:
            return x * 2

    owner = Owner()
    owner.call(torch.ones(2))
    assert explain(owner.call).name == "call" and len(explain(owner.call).programs) == 1
    module = jit(torch.nn.Identity())
    module(torch.ones(2))
    assert explain(module).name == "Identity" and len(explain(module).programs) == 1
