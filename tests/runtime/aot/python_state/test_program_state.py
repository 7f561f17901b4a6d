"""What a program changes in Python's state: a run that does not count leaves nothing behind, and a
tensor is assigned by each call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import runtime
from runtime import jit
from runtime.aot import aot_function, nop

WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "jit": jit,
    "aot_function": lambda f: aot_function(f, nop),
}


def rounded(t: Any) -> list[float]:
    return [round(x, 5) for x in t.detach().flatten().tolist()]


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS.keys())
def test_each_call_leaves_the_training_flags_that_the_program_leaves(wrap: Any) -> None:
    def seen(wrapped: Callable[[Any], Any]) -> Any:
        m = nn.Dropout(0.5)

        def f(x: Any) -> Any:
            y = m(x)
            m.eval()
            z = m(x)
            m.train()
            return y, z

        g, found = wrapped(f), []
        for flag in (False, True, False, False, True):
            m.train(flag)
            torch.manual_seed(0)
            y, z = g(torch.ones(8))
            found.append((y.tolist(), z.tolist(), m.training))
        return found

    assert seen(wrap) == seen(lambda f: f)


class Counting:
    """A step that reads a gradient from before the call, so that it is captured twice, and a number
    that it changes."""

    def __init__(self) -> None:
        self.layer = nn.Linear(2, 2)
        self.model = nn.Sequential(self.layer, nn.Dropout(0.5))
        self.calls = 0
        self.seen: list[int] = []

    def step(self, x: Any) -> Any:
        self.calls += 1
        self.seen.append(self.calls)
        scale = 10.0 if self.calls == 1 else 1.0
        self.model(x).sum().mul(scale).backward()
        self.model.eval()
        value = self.model(x).sum()
        self.model.train()
        return value.detach()


def test_a_program_that_is_captured_again_finds_the_state_from_before_the_first_capture() -> None:
    def seen(wrap: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        x, owner = torch.ones(3, 2), Counting()
        owner.model.eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the number that is read and changed
            value = wrap(owner.step)(x)
        return (
            rounded(value),
            rounded(owner.layer.weight.grad),
            owner.calls,
            owner.seen,
            owner.model.training,
        )

    assert seen(jit) == seen(lambda f: f)


def test_a_capture_that_fails_leaves_python_as_it_was() -> None:
    owner, log = Counting(), []

    def f(x: Any) -> Any:
        owner.calls += 1
        owner.model.eval()
        owner.seen.append(3)
        owner.last = x * 2  # type: ignore[attr-defined]
        log.append(x)
        return x * 2 if x.tolist()[0] > 0 else x

    for wrap in WRAPPERS.values():
        with pytest.raises(RuntimeError, match="asks for the elements"):
            wrap(f)(torch.ones(2))
        assert (owner.calls, owner.model.training, owner.seen, log, hasattr(owner, "last")) == (
            0,
            True,
            [],
            [],
            False,
        )


class Running(nn.Module):
    """Assigns a buffer, an attribute that is None at first, and one that is not there at first."""

    mean: Any

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.state: Any = None

    def forward(self, x: Any) -> Any:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.state = (x, x.sum()) if self.state is None else (self.state[0] * 0.5 + x, x.sum())
        self.last = self.layer(x)
        return (self.last - self.mean + self.state[0]).sum()


@pytest.mark.parametrize("whole", [True, False], ids=["the step", "the module"])
def test_jit_assigns_the_tensors_that_the_program_assigns(whole: bool) -> None:
    def seen(wrap: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        m = Running()
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
        f = m if whole else wrap(m)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = f(x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        run, found = wrap(step) if whole else step, []
        for i in range(4):
            loss = run(torch.randn(2, 3, generator=torch.Generator().manual_seed(i)))
            flags = m.last.requires_grad, m.mean.requires_grad, "mean" in m._buffers
            found.append(
                (
                    rounded(loss),
                    rounded(m.mean),
                    *map(rounded, m.state),
                    rounded(m.last),
                    rounded(m.layer.weight),
                    flags,
                )
            )
        return found

    assert seen(jit) == seen(lambda f: f)


def test_jit_assigns_a_variable_of_a_function_around_and_an_item() -> None:
    def seen(wrap: Callable[[Any], Any]) -> Any:
        total, table = torch.zeros(2), {"last": torch.zeros(2)}

        def f(x: Any) -> Any:
            nonlocal total
            total = total + x
            table["last"] = total * table["last"].cos()
            return total * 2

        g = wrap(f)
        return [
            (g(torch.tensor([1.0, i])).tolist(), total.tolist(), rounded(table["last"]))
            for i in range(4)
        ]

    assert seen(jit) == seen(lambda f: f)


def test_a_tensor_that_a_program_hands_to_its_next_call_has_its_history() -> None:
    def gradient(wrap: Callable[[Any], Any], wrapped: Callable[[Any], Any]) -> Any:
        w = wrapped(torch.tensor([0.5, 0.7]))

        class Cell:
            h: Any = torch.ones(2)

        def f(x: Any) -> Any:
            Cell.state.h = (Cell.state.h * w + x).sin()  # type: ignore[attr-defined]
            return Cell.state.h  # type: ignore[attr-defined]

        Cell.state = Cell()  # type: ignore[attr-defined]
        Cell.state.h = torch.ones(2)  # type: ignore[attr-defined]
        g = wrap(f)
        for i in range(3):
            y = g(torch.tensor([1.0, i]))
        y.sum().backward()
        return rounded(w.grad)

    expected = gradient(lambda f: f, lambda t: t.requires_grad_())
    assert gradient(jit, lambda t: runtime.wrap(t, requires_grad=True)) == expected


def test_aot_function_refuses_a_tensor_that_the_program_reads_and_assigns() -> None:
    m = Running()
    with pytest.raises(
        RuntimeError, match=r"reads and assigns .*'mean' of Running.*copy_\(\).*runtime\.jit"
    ):
        aot_function(m, nop)(torch.ones(2, 3))
    assert m.mean.tolist() == [0.0] * 3 and m.state is None and not hasattr(m, "last")


def test_aot_function_leaves_what_the_program_assigns_and_does_not_read_as_it_was() -> None:
    class Holder(nn.Module):
        last: Any = None

        def forward(self, x: Any) -> Any:
            y = x * 2
            self.note(y)
            return y

        def note(self, y: Any) -> None:
            self.last = y

    m = Holder()
    with pytest.warns(UserWarning, match="assigns a tensor that it computes to 'last' of Holder"):
        assert aot_function(m, nop)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert m.last is None


def test_a_tensor_that_is_added_to_a_list_from_outside_is_refused() -> None:
    losses: list[Any] = []

    def f(x: Any) -> Any:
        losses.append(x.sum())
        return x * 2

    for wrap in WRAPPERS.values():
        with pytest.raises(
            RuntimeError, match="adds a tensor or number that it computes to a list from outside"
        ):
            wrap(f)(torch.ones(2))
        assert losses == []


def test_jit_assigns_a_number_that_the_program_adds_to() -> None:
    def seen(wrap: Callable[[Any], Any]) -> Any:
        totals = {"first": 0.0}

        def f(x: Any) -> Any:
            totals["first"] += x.sum().item()
            return x * 2

        g = wrap(f)
        return [
            (g(torch.ones(2) * i).tolist(), totals["first"], type(totals["first"]))
            for i in range(4)
        ]

    assert seen(jit) == seen(lambda f: f)
