"""torch's profiler sees the nodes of a backward pass under the names that torch's
engine gives them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd.profiler import profile

from runtime import func

from ..scenarios import OURS, TORCH


def node_events(work: Any) -> list[str]:
    """The names of the nodes' events, in order."""
    with profile(use_kineto=False) as p:
        work()
    return [e.name for e in p.function_events if "Backward" in e.name or "AccumulateGrad" in e.name]


def test_each_node_is_reported_as_by_torchs_engine() -> None:
    def scenario(lib: Any) -> list[str]:
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        loss = (x.sin() * x).sum()
        return node_events(loss.backward)

    found = scenario(OURS)
    assert found == scenario(TORCH)
    assert (
        found[:2] == ["autograd::engine::evaluate_function: SumBackward0", "SumBackward0"]
        and len(found) == 8
    )


def test_kernels_of_a_node_run_within_its_event() -> None:
    x = OURS.tensor([1.0, 2.0], requires_grad=True)
    loss = x.sin().sum()
    with profile(use_kineto=False) as p:
        loss.backward()
    by_name = {e.name: e for e in p.function_events}
    node, cos = by_name["SinBackward0"], by_name["aten::cos"]
    assert cos.cpu_parent is node
    assert node.cpu_parent is by_name["autograd::engine::evaluate_function: SinBackward0"]


def test_transforms_are_reported_too() -> None:
    names = node_events(lambda: func.grad(lambda x: x.sin().sum())(torch.ones(2)))
    assert [n for n in names if ":" not in n] == ["SumBackward0", "SinBackward0"]


def test_an_event_ends_where_its_node_fails() -> None:
    x = OURS.tensor([1.0], requires_grad=True)
    y = x.exp()
    loss = (y * 2).sum() + y.sin().sum()
    y.detach().mul_(3)

    def work() -> None:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    names = node_events(work)
    assert names[-1] == "SinBackward0"
    assert node_events(lambda: (x * 2).backward())[-1] == "torch::autograd::AccumulateGrad"


def test_nothing_is_reported_while_nobody_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[str] = []
    y = OURS.tensor([1.0], requires_grad=True).sin()
    (end, _) = y.grad_fn.next_functions[0]

    def name_of(node: Any) -> str:
        named.append(type(node).__name__)
        return named[-1]

    for node in (y.grad_fn, end):
        monkeypatch.setattr(type(node), "name", name_of)
    y.backward(retain_graph=True)
    assert not named
    node_events(y.backward)
    assert named == ["SinBackward0", "AccumulateGrad"]
