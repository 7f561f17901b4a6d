"""With ``state=`` a jitted function follows the objects that are named, and refuses others."""

from __future__ import annotations

import dataclasses
import enum
import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from runtime import jit
from runtime.jit import explain

HISTORY: list[float] = []
SETTINGS = {"rate": 2.0}
RATE = 2.0
NAMES = ("a", 1)
TABLE = torch.tensor([1.0, 2.0])
LOGGER = logging.getLogger(__name__)


class Mode(enum.Enum):
    TRAIN = 2.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    rate: float = 2.0


@dataclasses.dataclass
class Point:
    x: Any


FROZEN = Frozen()


class Trainer:
    registry: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.model = nn.Linear(2, 1)
        self.steps = 0
        self.history = [1.0]

    def step(self, x: Any) -> Any:
        self.steps += 1
        return self.model(x) * self.steps * self.history[0]


def scaled(x: Any) -> Any:
    return x * RATE


def reads_constants(x: Any) -> Any:
    return scaled(x) * len(NAMES) * Mode.TRAIN.value * FROZEN.rate


def makes_objects(x: Any) -> Any:
    return Point([x * RATE]).x[0]


def reads_a_tensor(x: Any) -> Any:
    return x * TABLE


def logs(x: Any) -> Any:
    LOGGER.debug("step")
    return functools.partial(scaled)(x)


class Tools:
    rate = 3.0

    @staticmethod
    def double(x: Any) -> Any:
        return x * 2

    @classmethod
    def scale(cls, x: Any) -> Any:
        return x * cls.rate


@functools.cache
def squared(n: int) -> int:
    return n * n


def calls_methods_of_a_class(x: Any) -> Any:
    return Tools.scale(Tools.double(x)) * squared(3)


def calls_functions_of_numpy(x: Any) -> Any:
    return x * int(np.prod(x.shape)) * float(np.linalg.norm([3.0, 4.0]))


def has_names_of_functions_of_numpy(x: Any) -> Any:
    return x.square() * np.pi


def asks_the_environment(x: Any) -> Any:
    return x * float(os.environ.get("NO_SUCH_RATE", "2"))


CODE_AND_CONSTANTS = [
    reads_constants,
    makes_objects,
    reads_a_tensor,
    logs,
    calls_methods_of_a_class,
    calls_functions_of_numpy,
    has_names_of_functions_of_numpy,
    asks_the_environment,
]


@pytest.mark.parametrize("f", CODE_AND_CONSTANTS)
def test_code_constants_and_tensors_need_no_declaration(f: Callable[[Any], Any]) -> None:
    x = torch.tensor([1.0, 2.0])
    g = jit(f, state=())
    assert g(x).equal(f(x)) and g(x + 1).equal(f(x + 1))


def test_a_constant_that_is_another_one_is_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    g = jit(reads_constants, state=())
    x = torch.ones(2)
    g(x)
    monkeypatch.setitem(globals(), "RATE", 5.0)
    assert g(x).equal(reads_constants(x))
    monkeypatch.setitem(globals(), "scaled", lambda x: x * 7)
    assert g(x).equal(reads_constants(x))


def test_what_declared_objects_hold_is_compared_and_changed() -> None:
    trainer, eager = Trainer(), Trainer()
    eager.model.load_state_dict(trainer.model.state_dict())
    f = jit(trainer.step, state=(trainer,))
    x = torch.ones(2)
    for factor in (1.0, 1.0, 3.0, 3.0):
        trainer.history[0] = eager.history[0] = factor
        assert f(x).equal(eager.step(x)) and trainer.steps == eager.steps
    assert f.captured[-1].state.arguments == ("'steps' of step.Trainer",)


def test_a_training_step_declares_its_model_and_its_optimizer() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    f = jit(step, state=(model, optimizer))
    losses = [f(torch.ones(2)).item() for _ in range(6)]
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == 6
    with pytest.raises(RuntimeError, match=r"'optimizer' around .*step \(Adam\), which state="):
        jit(step, state=model)(torch.ones(2))
    with pytest.raises(RuntimeError, match=r"'model' around .*step \(Linear\), 'optimizer' around"):
        jit(step, state=())(torch.ones(2))


def reads_a_list(x: Any) -> Any:
    return x * len(HISTORY)


def writes_a_list(x: Any) -> Any:
    HISTORY.append(1.0)
    return x


def reads_a_dictionary(x: Any) -> Any:
    return x * SETTINGS["rate"]


def reads_a_registry(x: Any) -> Any:
    return x * len(Trainer.registry)


def writes_a_global(x: Any) -> Any:
    global RATE
    RATE += 1
    return x * RATE


def writes_a_class(x: Any) -> Any:
    Trainer.steps = 3
    return x


OTHERS: dict[Callable[[Any], Any], str] = {
    reads_a_list: r"comes to 'HISTORY' of .* \(list\).*at .*x \* len\(HISTORY\)",
    writes_a_list: r"comes to 'HISTORY' of .* \(list\).*at .*HISTORY\.append",
    reads_a_dictionary: r"comes to 'SETTINGS' of .* \(dict\).*at .*SETTINGS\[",
    reads_a_registry: r"comes to Trainer\.registry \(dict\).*at .*len\(Trainer\.registry\)",
    writes_a_global: r"changes 'RATE' of .*at .*RATE \+= 1",
    writes_a_class: r"changes 'steps' of Trainer.*at .*Trainer\.steps = 3",
}


@pytest.mark.parametrize("f", OTHERS)
def test_other_mutable_state_is_refused_by_name_and_line_and_left_as_it_was(
    f: Callable[[Any], Any],
) -> None:
    before = (list(HISTORY), dict(SETTINGS), RATE, dict(vars(Trainer)))
    model = nn.Linear(1, 1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=OTHERS[f]):
            jit(f, state=model)(torch.ones(1))
    assert before == (list(HISTORY), dict(SETTINGS), RATE, dict(vars(Trainer)))


BEST: Any = None


def keeps_a_tensor(x: Any) -> Any:
    global BEST
    BEST = x * 2
    return x


def reads_a_number(x: Any) -> Any:
    return x * RATE


def test_a_tensor_in_a_global_is_a_change_and_a_number_that_changes_is_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RuntimeError, match=r"changes 'BEST' of .*at .*BEST = x"):
        jit(keeps_a_tensor, state=())(torch.ones(1))
    assert BEST is None
    g = jit(reads_a_number, state=())
    with pytest.raises(RuntimeError, match=r"comes to a number that changes, 'RATE' of .*\* RATE"):
        for i in range(6):
            monkeypatch.setitem(globals(), "RATE", float(i))
            assert g(torch.ones(1)).item() == i
    h = jit(reads_a_number, state=sys.modules[__name__])
    for i in range(6):
        monkeypatch.setitem(globals(), "RATE", float(i))
        assert h(torch.ones(1)).item() == i


def test_a_variable_of_a_function_around_is_declared_by_the_function() -> None:
    def count() -> Callable[[Any], Any]:
        n = 0

        def f(x: Any) -> Any:
            nonlocal n
            n += 1
            return x * n

        return f

    f = count()
    with pytest.raises(RuntimeError, match=r"changes 'n' around .*at .*n \+= 1"):
        jit(f, state=())(torch.ones(1))
    g = jit(f, state=(f,))
    assert [g(torch.ones(1)).item() for _ in range(4)] == [1, 2, 3, 4]


def test_the_globals_of_a_module_are_declared_by_the_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "RATE", 2.0)
    g = jit(writes_a_global, state=sys.modules[__name__])
    assert [g(torch.ones(1)).item() for _ in range(4)] == [3, 4, 5, 6] and RATE == 6


def test_arguments_are_declared_and_what_is_ignored_need_not_be() -> None:
    trainer = Trainer()
    f = jit(lambda trainer, x: trainer.step(x), state=())
    for i in range(3):
        x = torch.ones(2)
        assert f(trainer, x).equal(trainer.model(x) * (i + 1))
    g = jit(writes_a_list, state=(), ignore=[HISTORY])
    g(torch.ones(1))
    assert explain(g).ignored == ("list",)
    HISTORY.clear()


def test_with_on_break_the_call_that_is_refused_runs_eagerly() -> None:
    f = jit(writes_a_list, state=(), on_break="eager")
    with pytest.warns(UserWarning, match="runs eagerly: .*comes to 'HISTORY'"):
        f(torch.ones(1))
    assert HISTORY == [1.0]
    HISTORY.clear()


@pytest.mark.parametrize("state", [3, "model", (2.0,), [None]])
def test_constants_are_no_state(state: Any) -> None:
    with pytest.raises(ValueError, match="it takes objects"):
        jit(lambda x: x, state=state)
