"""What a run notes of the dispatcher: which overloads a cell calls, by whom and how deep.

Inside: gen.run.dispatcher_calls and gen.dispatcher.overload_coverage. A run shows counts of all its
cells; here one call is made in each way.
"""

from __future__ import annotations

import threading
from pathlib import Path

import torch

from gen.dispatcher.overload_coverage import Coverage
from gen.run.dispatcher_calls import DispatcherCalls
from gen.targets.target_marks import target_runs


def states(folder: Path) -> dict[str, str]:
    return {name: one.state for name, one in Coverage.of_calls(folder).overloads.items()}


def test_calls_are_told_apart_by_who_makes_them_and_how_deep(tmp_path: Path) -> None:
    x = torch.rand(3, 3)
    with DispatcherCalls(tmp_path).of_cell("torch.a_row", "a_check"):
        torch.tan(x)
        with target_runs():
            torch.special.expit(x)  # composed of sigmoid
            torch.sin(x, out=torch.empty(3, 3))
    found = states(tmp_path)
    assert found["aten::special_expit"] == "called"
    assert found["aten::sigmoid"] == "within"
    assert found["aten::sin.out"] == "called"
    assert found["aten::tan"] == "other"
    assert found["aten::sin"] == found["aten::cos"] == "open"


def test_calls_of_other_threads_count(tmp_path: Path) -> None:
    with DispatcherCalls(tmp_path).of_cell("torch.a_row", "a_check"), target_runs():
        thread = threading.Thread(target=lambda: torch.cosh(torch.rand(3)))
        thread.start()
        thread.join()
    assert states(tmp_path)["aten::cosh"] == "called"


def test_a_backward_pass_calls_the_ops_of_its_formulas(tmp_path: Path) -> None:
    x = torch.rand(3, requires_grad=True)
    with DispatcherCalls(tmp_path).of_cell("torch.a_row", "a_check"), target_runs():
        torch.sigmoid(x).sum().backward()
    assert states(tmp_path)["aten::sigmoid_backward"] == "called"


def test_an_overload_names_its_rows_and_checks(tmp_path: Path) -> None:
    calls = DispatcherCalls(tmp_path)
    for row in ("torch.b_row", "torch.a_row", "torch.a_row"):
        with calls.of_cell(row, "a_check"), target_runs():
            torch.sin(torch.rand(3))
    callers = Coverage.of_calls(tmp_path).overloads["aten::sin"].callers
    assert callers == [("torch.a_row", "a_check"), ("torch.b_row", "a_check")]
