"""A jitted training step leaves what eager code leaves: gradients, buffers, random numbers; and
what it reads is of each call."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import runtime
from runtime import jit
from runtime.jit import explain
from tests.commands import ROOT, python

from .training import Wrap, assert_equal_bits, both, deep, left, linear, normal, step_of


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_of_several_calls_add_up(to_none: bool) -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found: list[Tensor | None] = []

        def add(x: Tensor) -> None:
            (model(x).square().mean() / 2).backward()

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)

        adding, updating = wrap(add), wrap(update)
        for i in range(6):
            adding(normal(i, 8, 4))
            found += left(model)
            if i % 2:
                updating()
                found += left(model)
        return found

    both(program)


def test_a_gradient_to_which_calls_add_stays_one_tensor() -> None:
    x = torch.ones(3, requires_grad=True)
    add = jit(lambda: (x * x).sum().backward())
    add()
    first = x.grad
    add()
    assert x.grad is first
    assert first is not None and first.tolist() == [4.0, 4.0, 4.0]


def test_random_numbers_and_buffers_are_those_of_eager_steps() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(144, 2),
        )
        optimizer = torch.optim.AdamW(model.parameters())
        found: list[Tensor | None] = []

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = wrap(step)
        torch.manual_seed(5)
        for i in range(4):
            found += [run(normal(i, 4, 3, 8, 8), torch.tensor([0, 1, 1, 0])), *left(model)]
        return [*found, torch.rand(2)]

    both(program)


def test_updates_by_hand_run_in_the_program() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = linear()
        found: list[Tensor | None] = []

        def by_data(x: Tensor) -> None:
            for p in model.parameters():
                p.grad = None
            model(x).square().mean().backward()
            for p in model.parameters():
                assert p.grad is not None
                p.data.sub_(0.1 * p.grad)

        def by_grad(x: Tensor) -> None:
            for p, g in zip(
                model.parameters(),
                torch.autograd.grad(model(x).square().mean(), list(model.parameters())),
                strict=True,
            ):
                with torch.no_grad():
                    p.sub_(g, alpha=0.1)

        for run in (wrap(by_data), wrap(by_grad)):
            for i in range(3):
                run(normal(i, 8, 4))
                found += left(model)
        return found

    both(program)


def test_leaves_among_the_arguments_get_their_gradients() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        (x * y).sum().backward()
        assert x.grad is not None
        return x.grad * 2

    def program(wrap: Wrap) -> list[Tensor | None]:
        run, found = wrap(f), []
        for i in range(3):
            x, y = normal(i, 3).requires_grad_(), normal(-i, 3)
            for _ in range(2):
                found += [run(x, y), None if x.grad is None else x.grad.clone()]
        return found

    both(program)


def test_leaves_with_one_gradient_get_a_tensor_each() -> None:
    a, b = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)

    @jit
    def f(x: Tensor) -> None:
        a.grad = b.grad = None
        ((a + b) * x).sum().backward()

    f(torch.ones(3))
    assert a.grad is not None and b.grad is not None
    a.grad.add_(1)
    assert b.grad.tolist() == [1.0, 1.0, 1.0]


def test_a_loss_that_the_program_has_differentiated_says_so_when_differentiated_again() -> None:
    model = linear()

    @jit
    def step(x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().mean()
        loss.backward()
        return loss

    loss = step(normal(0, 8, 4))
    assert loss.requires_grad and loss.output_nr == 0
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_a_program_that_keeps_its_graph_can_be_differentiated_again() -> None:
    x = torch.ones(2, requires_grad=True)

    @jit
    def f() -> Tensor:
        y = (x * x).sum()
        y.backward(retain_graph=True)
        return y

    f().backward()
    assert x.grad is not None and x.grad.tolist() == [4.0, 4.0]


def test_a_number_that_the_program_reads_is_that_of_each_call() -> None:
    f = jit(lambda x, t: x * (1 - 0.9 ** t.item()))
    for n in (1.0, 2.0, 7.0):
        assert f(torch.ones(2), torch.tensor(n)).tolist() == [torch.tensor(1 - 0.9**n).item()] * 2
    assert len(explain(f).programs) == 1


def test_a_number_that_the_program_returns_is_a_number() -> None:
    f = jit(lambda x: x.sum().item())
    assert [f(torch.ones(3)), f(torch.ones(3) * 2)] == [3.0, 6.0]


@pytest.mark.parametrize("text", [str, repr, lambda n: f"{n}"])
def test_the_text_of_a_number_is_refused_with_its_line(text: Any) -> None:
    def f(x: Tensor) -> Tensor:
        text(x.sum().item())
        return x

    def g(x: Tensor) -> Any:
        return str(x.sum().item())

    for program in (f, g):
        with pytest.raises(
            RuntimeError,
            match=r"str\(\), or print\(\), asks for the value of a number .*test_steps.py",
        ):
            jit(program)(torch.ones(3))


def test_threads_train_their_own_models_by_one_jitted_step() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    def train(run: Any, model: nn.Module, first: int) -> None:
        optimizer = torch.optim.Adam(model.parameters())
        for i in range(first, first + 6):
            run(model, optimizer, normal(i, 8, 4))

    run, models, expected = jit(step), [linear() for _ in range(4)], [linear() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(train, [run] * 4, models, range(0, 40, 10)))
    for model, first in zip(expected, range(0, 40, 10), strict=True):
        train(step, model, first)
    for found, wanted in zip(models, expected, strict=True):
        assert_equal_bits(left(found), left(wanted))


def test_parameters_that_are_frozen_between_calls_are_noticed() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = deep()
        optimizer = torch.optim.Adam(model.parameters())
        found: list[Tensor | None] = []

        run = wrap(step_of(model, optimizer))
        for i in range(6):
            if i == 3:
                model[0].requires_grad_(False)  # type: ignore[index]
            if i == 5:
                model[0].weight.requires_grad_(True)  # type: ignore[index]
            run(normal(i, 8, 4))
            found += left(model)
        return found

    both(program)


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("outer", [True, False])
def test_a_jitted_step_may_be_part_of_a_jitted_function(inner: bool, outer: bool) -> None:
    def program(wrap_inner: Wrap, wrap_outer: Wrap) -> list[Tensor | None]:
        model = linear()
        optimizer = torch.optim.Adam(model.parameters())

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = wrap_inner(step)
        twice = wrap_outer(lambda x: run(x) + run(x * 2))
        return [t for i in range(4) for t in (twice(normal(i, 8, 4)), *left(model))]

    eager: Wrap = lambda f: f  # noqa: E731
    assert_equal_bits(
        program(jit if inner else eager, jit if outer else eager), program(eager, eager)
    )


def test_a_leaf_with_a_history_from_before_the_call_is_refused() -> None:
    h = torch.ones(2, requires_grad=True) * 1
    with pytest.raises(
        RuntimeError, match=r"history from before the call|recorded by torch's own autograd"
    ):
        jit(lambda: h.sum().backward())()


def test_a_gradient_with_a_history_is_refused() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaves a gradient with a history behind"):
        jit(lambda: (x**3).sum().backward(create_graph=True))()


def test_assigning_data_is_refused() -> None:
    x = torch.ones(2, requires_grad=True)

    @jit
    def f() -> None:
        x.data = x.data * 2

    with pytest.raises(RuntimeError, match=r"assigns to \.data"):
        f()


def test_nothing_of_a_step_outlives_its_model() -> None:
    def steps() -> list[weakref.ref[Any]]:
        model = deep()
        optimizer = torch.optim.Adam(model.parameters())

        def step(x: Tensor) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        run = jit(step)
        for i in range(3):
            run(normal(i, 8, 4))
        return [weakref.ref(t) for t in (model, optimizer, *model.parameters())]

    kept = steps()
    gc.collect()
    assert all(ref() is None for ref in kept)


def test_calls_keep_nothing() -> None:
    model = deep()
    optimizer = torch.optim.Adam(model.parameters())

    @jit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    x = normal(0, 8, 4)

    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    for _ in range(3):
        step(x)
    before = objects()
    for _ in range(1000):
        step(x)
    assert objects() <= before + 10


@pytest.mark.parametrize("use", [lambda n: f"{n:.2f}", lambda n: divmod(n, 2), lambda n: n + 1j])
def test_a_function_that_does_not_know_numbers_of_a_program_is_refused_with_its_line(
    use: Any,
) -> None:
    with pytest.raises(RuntimeError, match=r"read of a tensor by item\(\)\. .*test_steps.py"):
        jit(lambda x: use(x.sum().item()))(torch.ones(3))


def test_a_step_is_the_same_graph_at_each_capture() -> None:
    def captured() -> str:
        graphs: list[str] = []

        def keep(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
            graphs.append(str(module.graph))
            return module.forward

        model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(6)))

        def step(x: Tensor) -> None:
            model(x).square().sum().backward()

        jit(step, compiler=keep)(torch.ones(2, 3))
        return graphs[0]

    kept = [object() for _ in range(1000)]  # so that the objects of captures lie elsewhere
    assert len({captured() for _ in range(4)}) == 1 and kept


class TestErrorsOfAGraph:
    def test_an_error_says_what_the_call_had_done(self) -> None:
        model = nn.Embedding(4, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        count = torch.zeros(2)

        @jit
        def step(i: Any) -> Any:
            count.add_(1)
            optimizer.zero_grad()
            loss = model(i).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        for _ in range(3):
            step(torch.tensor([0, 1]))
        weight, moments = (
            model.weight.detach().clone(),
            [t.clone() for t in optimizer.state[model.weight].values()],
        )
        with pytest.raises(IndexError, match="out of range") as raised:
            step(torch.tensor([0, 7]))
        assert model.weight.grad is None and count.tolist() == [4.0, 4.0]
        assert torch.equal(model.weight, weight), "what the note does not name is as it was"
        assert all(
            torch.equal(t, before)
            for t, before in zip(optimizer.state[model.weight].values(), moments, strict=True)
        )
        (note,) = raised.value.__notes__
        assert note.endswith(
            "does not undo what it had done: .grad is None of 1 tensor; "
            "a tensor that the function closes over, float32[2], has its new value."
        )
        step(torch.tensor([0, 1]))
        assert model.weight.grad is not None

    def test_an_error_before_anything_is_done_says_nothing(self) -> None:
        f = jit(lambda table, i: torch.nn.functional.embedding(i, table))
        f(torch.ones(3, 2), torch.tensor([1]))
        with pytest.raises(IndexError) as raised:
            f(torch.ones(3, 2), torch.tensor([5]))
        assert not hasattr(raised.value, "__notes__")

    def test_an_argument_that_is_no_leaf_is_refused_before_the_graph_runs(self) -> None:
        weight: Any = torch.ones(2, requires_grad=True)

        @jit
        def step(x: Any) -> Any:
            loss = (weight * x).sum()
            loss.backward()
            with torch.no_grad():
                weight.sub_(weight.grad)
            return loss.detach()

        with pytest.raises(RuntimeError, match="reaches an argument that is no leaf"):
            step(runtime.wrap(torch.ones(2), requires_grad=True) * 2)
        assert weight.tolist() == [1.0, 1.0] and weight.grad is None


def test_the_first_step_of_a_process_with_several_sizes_is_captured_twice() -> None:
    """With the profiler that torch looks for once, and what an import for any sizes registers."""
    program = """
import torch
from runtime import jit

model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

@jit
def step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()

for size in (4, 4, 8, 12, 4):
    step(torch.ones(size, 3))
print(len(jit.explain(step).programs))
"""
    done = python(ROOT, "-c", program)
    assert done.stdout == "2\n", done.stderr
