"""Which optimizers, schedulers and scalers a capture finds in what the program reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from runtime.aot.python_state.object_graph import early_graph
from runtime.jit.known import Known


def made() -> tuple[SGD, StepLR, GradScaler]:
    optimizer = SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    return optimizer, StepLR(optimizer, 3), GradScaler("cpu")


def found(*objects: Any) -> tuple[set[Any], set[Any], set[Any]]:
    known = Known()
    known.find(early_graph(objects).objects())
    return set(known.optimizers), set(known.schedulers), set(known.scalers)


@pytest.mark.parametrize(
    "hold",
    [
        lambda x: x,
        lambda x: [x],
        lambda x: {"one": {"two": (x,)}},
        lambda x: SimpleNamespace(parts=[x]),
        lambda x: frozenset([x]),
        lambda x: [0, "text", torch.ones(2), nn, dict, x],
    ],
)
def test_they_are_found_in_lists_dictionaries_and_objects(hold: Any) -> None:
    optimizer, scheduler, scaler = made()
    assert found(hold(optimizer)) == ({optimizer}, set(), set())
    assert found(hold(scaler)) == (set(), set(), {scaler})
    assert found(hold(scheduler))[1:] == ({scheduler}, set())


def test_they_are_found_however_deep_they_are() -> None:
    optimizer, scheduler, _ = made()
    trainer = {"optimizers": [optimizer], "schedulers": [scheduler]}
    assert found([[[[[trainer]]]]]) == ({optimizer}, {scheduler}, set())


def test_what_holds_itself_is_looked_into_once() -> None:
    optimizer, _, _ = made()
    ring: list[Any] = [optimizer]
    ring += [ring] * 200
    assert found(ring) == ({optimizer}, set(), set())


def test_the_wrapper_of_an_optimizer_is_looked_into() -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    inner, _, _ = made()
    outer = Wrapper(inner)
    assert found(outer) == ({outer, inner}, set(), set())


def test_what_no_code_asks_a_function_or_a_class_for_is_not_looked_into() -> None:
    optimizer, _, _ = made()

    def function() -> None: ...

    class Holder:
        held = optimizer

    function.held = optimizer  # type: ignore[attr-defined]
    assert found(function, Holder, nn) == (set(), set(), set())


def test_an_optimizer_that_a_run_has_met_is_known_from_then_on() -> None:
    optimizer, _, scaler = made()
    known, others = Known(), Known()
    assert known.misses([1, optimizer], others) and known.misses([scaler], others)
    assert (set(others.optimizers), set(others.scalers)) == ({optimizer}, {scaler})
    assert not Known(others).misses([optimizer, scaler], others)


def test_a_capture_starts_from_the_optimizers_and_scalers_that_others_have_met() -> None:
    optimizer, scheduler, scaler = made()
    before = Known()
    before.find([optimizer, scheduler, scaler])
    after = Known(before)
    assert (set(after.optimizers), set(after.schedulers), set(after.scalers)) == (
        {optimizer},
        set(),
        {scaler},
    )
    other, _, _ = made()
    after.find([other])
    assert set(before.optimizers) == {optimizer}
