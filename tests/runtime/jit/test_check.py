"""``jit(f, check=n)`` compares calls with eager runs, disturbs nothing, and finds what differs."""

from __future__ import annotations

import abc
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import runtime
from runtime import jit
from runtime.func import grad

NOTED: list[tuple[float, int]] = []


@jit.outside
def note(loss: Any, step: int) -> None:
    NOTED.append((loss.item(), step))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 4), nn.Linear(4, 1)
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.last(self.drop(self.norm(self.first(x))))


class Trainer:
    """A step that changes parameters, statistics, an optimizer, numbers and a list."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.model = Model()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.generator = torch.Generator().manual_seed(3)
        self.best: Any = None
        self.names = ["start"]
        self.steps = 0

    def step(self, x: Any) -> Any:
        self.steps += 1
        self.optimizer.zero_grad()
        x = x + torch.randn(x.shape, generator=self.generator)
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.best = loss.detach() if self.best is None else torch.minimum(self.best, loss.detach())
        self.names[0] = "later"
        note(loss, self.steps)
        return {"loss": loss.detach(), "x": [x]}


def everything(trainer: Trainer) -> list[Any]:
    """What a trainer has, and the states of all generators."""
    state = [*trainer.model.state_dict().values(), *(p.grad for p in trainer.model.parameters())]
    for kept in trainer.optimizer.state.values():
        state += kept.values()
    drawn = [torch.get_rng_state(), trainer.generator.get_state()]
    return [
        *(t.tolist() for t in (*state, trainer.best, *drawn) if t is not None),
        (trainer.steps, trainer.names, trainer.model.calls),
        (random.getstate(), repr(np.random.get_state())),
    ]


@pytest.mark.parametrize("check", [1, 3])
def test_a_checked_function_does_what_one_without_does(check: int) -> None:
    found = []
    for option in (None, check):
        NOTED.clear()
        trainer = Trainer()
        f = jit(trainer.step, check=option)
        results = [f(torch.ones(3, 2) * i) for i in range(8)]
        values = [(r["loss"].item(), r["x"][0].tolist()) for r in results]
        found.append((values, everything(trainer), list(NOTED)))
    assert found[0] == found[1]


def test_each_nth_call_runs_eagerly_too(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        print("a run")
        return x * 2

    runs = []
    for check in (None, 3):
        g = jit(f, check=check)
        for _ in range(10):
            assert g(torch.ones(2)).tolist() == [2, 2]
        runs.append(capsys.readouterr().out.count("a run"))
    assert runs[1] - runs[0] == 3


SCALE = [1.0]


def test_a_result_that_is_stale_is_named_with_both_values() -> None:
    f = jit(lambda x: {"y": [x, x * SCALE[0]]}, ignore=[SCALE], check=2)
    f(torch.ones(1))
    SCALE[0] = 3.0
    with pytest.raises(RuntimeError) as e:
        f(torch.ones(1))
    SCALE[0] = 1.0
    assert str(e.value).startswith("check=2: call 2 of <lambda> differs from eager mode: ")
    assert "the result['y'][1] is 1.0, in eager mode 3.0" in str(e.value)
    assert f(torch.ones(1))["y"][1].item() == 1.0


def wrong(module: Any, inputs: Any) -> Callable[..., Any]:
    """A compiler whose code gives other elements."""

    def run(*args: Any) -> Any:
        return [x * 1.5 if isinstance(x, torch.Tensor) else x for x in module(*args)]

    return run


def test_elements_of_results_and_of_closed_over_tensors_are_compared() -> None:
    weight = torch.ones(2)

    def writes(x: Any) -> Any:
        weight.mul_(x)
        return None

    with pytest.raises(RuntimeError, match=r"the result is 3\.0, in eager mode 2\.0"):
        jit(lambda x: x * 2, compiler=wrong, check=1)(torch.ones(1))
    with pytest.raises(RuntimeError, match=r"'weight' .*is float32\[2\], in eager mode float32"):
        jit(writes, compiler=wrong, check=1)(torch.ones(2) * 2)
    with pytest.raises(RuntimeError, match=r"an argument of note\[0\] is 3\.0, in eager mode 2\.0"):
        jit(lambda x: note(x * 2, 1), compiler=wrong, check=1)(torch.ones(1))


def test_a_change_of_type_or_of_what_requires_grad_is_a_difference() -> None:
    kinds: list[Any] = [1]
    f = jit(lambda x: (x, kinds[0]), ignore=[kinds], check=2)
    f(torch.ones(1))
    kinds[0] = 1.0
    with pytest.raises(RuntimeError, match=r"the result\[1\] is 1, in eager mode 1\.0"):
        f(torch.ones(1))


def numbers() -> Iterator[float]:
    yield from (1.0, 2.0, 3.0)


def test_what_cannot_run_twice_is_an_error_that_says_why(tmp_path: Path) -> None:
    items = numbers()

    def makes_a_folder(x: Any) -> Any:
        os.mkdir(tmp_path / "a")
        return x

    with pytest.raises(RuntimeError, match=r"check=1: call 1 of .*run twice: it changes .*items"):
        jit(lambda x: x * next(items), check=1)(torch.ones(1))
    with pytest.raises(RuntimeError, match=r"run twice: it calls posix\.mkdir"):
        jit(makes_a_folder, check=1, on_break="eager")(torch.ones(1))
    assert os.listdir(tmp_path) == []
    sparse = torch.ones(2, 2).to_sparse()
    with pytest.raises(RuntimeError, match=r"check= cannot copy .*sparse_coo"):
        jit(lambda x: x * 2, check=1)(sparse)


def test_an_error_of_the_program_is_that_of_the_program_and_leaves_what_it_leaves() -> None:
    seen = [0]

    def f(x: Any, good: bool) -> Any:
        seen[0] += 1
        if not good:
            raise ValueError("bad")
        return x

    g = jit(f, check=1)
    with pytest.raises(ValueError, match="bad"):
        g(torch.ones(1), False)
    assert seen == [1] and g(torch.ones(1), True).item() == 1 and seen == [2]


def test_writes_views_and_gradients_of_arguments_are_put_back_and_compared() -> None:
    def f(x: Any, base: Any) -> Any:
        base[0].add_(1)
        x.requires_grad_()
        return (x * base).sum()

    results = []
    for check in (None, 1):
        g = jit(f, check=check)
        base = torch.ones(2)
        versions = base._version
        y = [g(torch.ones(2), base).item() for _ in range(3)]
        results.append((y, base.tolist(), base._version - versions))
    assert results[0] == results[1]


def test_gradients_flow_and_transforms_see_the_function() -> None:
    f = jit(lambda x: (x * x).sum(), check=1)
    x = runtime.tensor([1.0, 2.0], requires_grad=True)
    f(x).backward()
    assert x.grad is not None and x.grad.tolist() == [2, 4]
    assert grad(f)(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("check", [0, -1, 1.5, True, "2"])
def test_other_values_are_refused(check: Any) -> None:
    with pytest.raises(ValueError, match="check="):
        jit(lambda x: x, check=check)
    with pytest.raises(ValueError, match="donate="):
        jit(lambda x: x, check=1, donate="x")


def test_a_new_shape_as_a_key_is_the_same_in_both_runs() -> None:
    counts: dict[tuple[int, ...], int] = {}

    def f(x: torch.Tensor) -> torch.Tensor:
        shape = tuple(x.shape)
        counts[shape] = counts.get(shape, 0) + 1
        return x * 2

    step = jit(f, check=1)
    for n in (2, 3, 2):
        step(torch.ones(n))
    assert counts == {(2,): 2, (3,): 1}


def test_a_function_that_calls_another_jitted_one_is_compared() -> None:
    scale = torch.ones(2)

    @jit
    def double(x: Any) -> Any:
        return x * 2 * scale

    step = jit(lambda x: double(x) + 1, check=1)
    for i in range(4):
        assert step(torch.full((2,), float(i))).tolist() == [2 * i + 1.0] * 2


def test_a_jitted_function_inside_is_not_captured_by_the_eager_run() -> None:
    counts = [0]

    @jit
    def count(x: Any) -> Any:
        counts[0] += 1
        return x * counts[0]

    step = jit(lambda x: count(x) + 1, check=1)
    assert [step(torch.ones(1)).item() for _ in range(4)] == [2, 3, 4, 5]
    assert counts == [4]


def test_tensors_without_memory_are_compared_by_their_sizes() -> None:
    model = nn.Linear(2, 3, device="meta")
    step = jit(lambda x: x * model.weight.shape[0], check=1)
    assert step(torch.ones(2)).tolist() == [3, 3]


def test_the_error_says_how_far_elements_are_apart() -> None:
    numbers: Any = np.ones(2)
    step = jit(lambda x: x * torch.from_numpy(numbers).sum(), check=3, ignore=(numbers,))
    x = torch.ones(2)
    for _ in range(2):
        step(x)
    numbers[:] = 3
    with pytest.raises(RuntimeError, match=r"float32\[2\], and an element differs by 4\."):
        step(x)


def test_the_error_says_that_one_of_both_requires_grad() -> None:
    weight = torch.ones(2, requires_grad=True)
    before = jit(lambda x: x * weight)(torch.ones(2)).detach()
    # torch's own engine records no tensor of this package, see docs/autograd.md
    step = jit(lambda h: h * weight, check=1)
    with pytest.raises(RuntimeError, match="the result has requires_grad=True, and not in eager"):
        step(before)


def test_a_class_that_is_registered_in_one_of_the_runs_is_no_difference() -> None:
    """As an import in a capture may register classes with those of `collections.abc`."""

    class Container(abc.ABC):
        @abc.abstractmethod
        def items(self) -> object: ...

    def f(x: Any) -> Any:
        if type(x) is not torch.Tensor:  # a value of the capture
            Container.register(type("Made", (), {}))
        return x * 2

    g = jit(f, check=1)
    token = abc.get_cache_token()
    assert g(torch.ones(2)).tolist() == [2.0, 2.0]
    assert abc.get_cache_token() != token, "a class was registered"
