"""What a jitted program reads of an optimizer's groups and assigns to them, itself or by a
scheduler, is what an eager one does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler, swa_utils

from runtime import jit
from runtime.jit import explain

from .training import Wrap, both, left, linear, normal, step_of

Stepped = Callable[[torch.optim.Optimizer], None]


def _trained(
    wrap: Wrap,
    change: Callable[..., None],
    optimizer: Any,
    args: Callable[[int], Any],
    between: Callable[..., None],
) -> Any:
    """What five steps leave, each of which begins with ``change(optimizer, *args(i))``.
    ``between(optimizer, i)`` follows each."""
    model = linear()
    optimizer = optimizer(model.parameters())
    found: list[Tensor | None] = []

    def step(x: Tensor, *rest: Any) -> None:
        change(optimizer, *rest)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    run = wrap(step)
    for i in range(5):
        run(normal(i, 8, 4), *args(i))
        numbers = [x for x in optimizer.param_groups[0].values() if type(x) in (int, float)]
        found += [*left(model), torch.tensor(numbers, dtype=torch.float64)]
        between(optimizer, i)
    return found


def _sgd(p: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(p, lr=0.1, momentum=0.5)


def _decay(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.9


def _forget(optimizer: Any) -> None:
    optimizer.param_groups[0]["momentum"] *= 0.5


def _fixed(optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.1  # which it is at first


def _several(optimizer: Any) -> None:
    optimizer.param_groups[0].update(lr=0.2, weight_decay=0.1)


def _count(optimizer: Any) -> None:
    optimizer.param_groups[0]["count"] = optimizer.param_groups[0].get("count", 0) + 1


@pytest.mark.parametrize("change", [_decay, _forget, _fixed, _several, _count])
@pytest.mark.parametrize("by_user", [False, True])
def test_numbers_that_the_program_assigns_to_a_group_are_assigned_by_each_call(
    change: Stepped, by_user: bool
) -> None:
    def between(optimizer: Any, i: int) -> None:
        if by_user:
            optimizer.param_groups[0]["lr"] = 0.3 / (i + 1)

    both(lambda wrap: _trained(wrap, change, _sgd, lambda i: (), between))


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_learning_rate_may_be_an_argument(as_tensor: bool) -> None:
    def change(optimizer: Any, rate: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate.item() * 2 if as_tensor else rate * 2

    def rate(i: int) -> tuple[Any]:
        return (torch.tensor(0.1 / (i + 1)) if as_tensor else 0.1 / (i + 1),)

    for optimizer in (_sgd, torch.optim.AdamW):
        both(
            partial(
                _trained, change=change, optimizer=optimizer, args=rate, between=lambda o, i: None
            )
        )


def test_numbers_of_a_tuple_are_assigned() -> None:
    def change(optimizer: Any, beta: float) -> None:
        optimizer.param_groups[0]["betas"] = (beta, 0.99)

    both(
        lambda wrap: _trained(
            wrap, change, torch.optim.Adam, lambda i: (0.9 / (i + 1),), lambda o, i: None
        )
    )


def test_an_update_by_hand_reads_the_learning_rate_of_each_call() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = _exponential(optimizer)
        optimizer.step()
        found: list[Tensor | None] = []

        def step(x: Tensor) -> float:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            with torch.no_grad():
                for group in optimizer.param_groups:
                    for p in group["params"]:
                        p.sub_(p.grad * group["lr"])
            rate: float = optimizer.param_groups[0]["lr"]
            return rate

        run = wrap(step)
        for i in range(4):
            found += [torch.tensor(run(normal(i, 8, 4))), *left(model)]
            scheduler.step()
        return found

    both(program)


def _exponential(optimizer: Any) -> Any:
    return lr_scheduler.ExponentialLR(optimizer, 0.5)


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "exponential": _exponential,
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=9),
    "a function": lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (n + 1)),
    "several": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), _exponential(o)], [2]
    ),
    "by the loss": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "for averages": lambda o: swa_utils.SWALR(o, 0.05),
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("name", "as_tensor"),
    # ReduceLROnPlateau asks for the elements of a learning rate that is a tensor
    [(name, t) for name in SCHEDULERS for t in (False, True) if not (t and name == "by the loss")],
)
def test_a_scheduler_may_be_stepped_in_the_program(name: str, as_tensor: bool, first: bool) -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = linear()
        rate: Any = torch.tensor(0.1) if as_tensor else 0.1
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        scheduler = SCHEDULERS[name](optimizer)
        optimizer.step()  # else a scheduler warns
        found: list[Tensor | None] = []

        def tick() -> None:
            scheduler.step(*((1.0,) if name == "by the loss" else ()))

        def step(x: Tensor) -> None:
            if first:
                tick()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if not first:
                tick()

        run = wrap(step)
        for i in range(6):
            run(normal(i, 8, 4))
            rates = [torch.as_tensor(g["lr"], dtype=torch.float64) for g in optimizer.param_groups]
            found += [*left(model), *rates, torch.tensor(scheduler.last_epoch)]
        assert all(type(g) is dict for g in optimizer.param_groups)
        return found

    both(program)


def test_a_scheduler_without_conditions_on_its_epoch_costs_one_further_program() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))
    step = jit(_with(model, optimizer, scheduler))
    for i in range(12):
        step(normal(i, 8, 4))
    assert len(explain(step).programs) == 2 and scheduler.last_epoch == 12


def test_a_scheduler_that_needs_a_program_for_each_epoch_is_refused_by_name_in_the_end() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 50)
    step = jit(_with(model, optimizer, scheduler))
    with pytest.raises(RuntimeError, match=r"captured 8 times in turn.*'last_epoch'"):
        for i in range(20):
            step(normal(i, 8, 4))
    epoch, rate = scheduler.last_epoch, optimizer.param_groups[0]["lr"]
    with pytest.raises(RuntimeError, match="captured 8 times in turn"):
        step(normal(0, 8, 4))
    assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (epoch, rate)


def _with(model: nn.Module, optimizer: Any, scheduler: Any) -> Callable[[Tensor], None]:
    """A step of training that steps a scheduler, too."""
    train = step_of(model, optimizer)

    def step(x: Tensor) -> None:
        train(x)
        scheduler.step()

    return step


def test_a_scheduler_by_a_number_that_the_program_computes_is_refused_with_its_line() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer)

    @jit
    def step(x: Tensor) -> None:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step(loss.item())

    with pytest.raises(RuntimeError, match=r"asks for the value of a number.*test_groups.py"):
        step(normal(0, 8, 4))
    assert scheduler.last_epoch == 0


def test_a_scheduler_steps_for_an_optimizer_that_the_program_does_not_step() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        optimizer = torch.optim.SGD(linear().parameters(), lr=0.1)
        held = {"schedulers": [_exponential(optimizer)]}
        optimizer.step()

        def tick(x: Tensor) -> Tensor:
            for s in held["schedulers"]:
                s.step()
            return x * 2

        run = wrap(tick)
        return [run(torch.ones(2) * optimizer.param_groups[0]["lr"]) for _ in range(4)]

    both(program)


def test_what_a_scheduler_tells_is_of_each_call() -> None:
    scheduler = _exponential(torch.optim.SGD(linear().parameters(), lr=0.5))
    f = jit(lambda x: x * scheduler.get_last_lr()[0])
    assert f(torch.ones(())) == 0.5
    scheduler.optimizer.step()
    scheduler.step()
    assert f(torch.ones(())) == 0.25


def test_an_optimizer_that_the_program_makes_is_its_own() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = linear()

        def step(x: Tensor) -> None:
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()

        run = wrap(step)
        return [t for i in range(4) for t in (run(normal(i, 8, 4)), *left(model))]

    both(program)


def test_an_optimizer_that_a_computed_name_finds_is_known() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = linear()
        model.held = torch.optim.SGD(model.parameters(), lr=0.1)  # type: ignore[assignment]

        def step(x: Tensor) -> None:
            optimizer: Any = getattr(model, "he" + "ld")
            optimizer.param_groups[0]["lr"] *= 0.5
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        run = wrap(step)
        return [t for i in range(4) for t in (run(normal(i, 8, 4)), *left(model))]

    both(program)


def _add(optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": [torch.zeros(2, requires_grad=True)]})


def _load(optimizer: torch.optim.Optimizer) -> None:
    optimizer.__setstate__({"state": {}})


def _shorten(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["params"].pop()


def _delete(optimizer: torch.optim.Optimizer) -> None:
    del optimizer.param_groups[0]["foreach"]


def _drop(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state.pop("exp_avg")


@pytest.mark.parametrize("change", [_load, _shorten, _delete, _drop])
def test_other_changes_of_an_optimizer_are_those_of_eager_mode(change: Stepped) -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = linear()
        optimizer = torch.optim.Adam(model.parameters())
        model(normal(0, 8, 4)).sum().backward()
        optimizer.step()

        def f(x: Tensor) -> Tensor:
            change(optimizer)
            return x * 2

        found: list[Tensor | None] = [wrap(f)(torch.ones(2))]
        sizes = [len(optimizer.param_groups[0]), len(optimizer.param_groups[0]["params"])]
        names = sorted(n for s in optimizer.state.values() for n in s)
        return [*found, torch.tensor(sizes), torch.tensor(bytearray("".join(names).encode()))]

    both(program)


def test_a_group_of_tensors_that_the_program_makes_is_refused_and_the_optimizer_put_back() -> None:
    optimizer = torch.optim.Adam(linear().parameters())

    @jit
    def f(x: Tensor) -> Tensor:
        _add(optimizer)
        return x * 2

    with pytest.raises(RuntimeError, match="adds a tensor or number that it computes to a list"):
        f(torch.ones(2))
    assert len(optimizer.param_groups) == 1


def test_a_group_that_the_program_has_from_before_the_call_may_be_changed() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        optimizer = torch.optim.SGD(linear().parameters(), lr=0.1)
        group = optimizer.param_groups[0]

        def f(x: Tensor) -> Tensor:
            group["lr"] *= 0.5
            optimizer.zero_grad()
            return x * 2

        run = wrap(f)
        return [torch.stack((run(torch.ones(2))[0], torch.tensor(group["lr"]))) for _ in range(5)]

    both(program)


def test_an_optimizer_that_the_graph_of_objects_cannot_find_is_refused_with_its_line() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    address = id(optimizer)

    @jit
    def step(x: Tensor) -> None:
        model(x).square().mean().backward()
        ctypes.cast(address, ctypes.py_object).value.step()

    with pytest.raises(RuntimeError, match=r"steps a SGD that none of its variables.*test_groups"):
        step(normal(0, 8, 4))


def test_a_hook_that_an_optimizer_gets_is_noticed() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def double(optimizer: Any, args: Any, kwargs: Any) -> None:
            for p in optimizer.param_groups[0]["params"]:
                p.grad.mul_(2)

        run = wrap(step_of(model, optimizer))
        found: list[Tensor | None] = []
        for i in range(6):
            run(normal(i, 8, 4))
            found += left(model)
            if i == 2:
                handle = optimizer.register_step_pre_hook(double)
            if i == 4:
                handle.remove()
        return found

    both(program)


def test_assigned_numbers_cost_no_further_captures() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(x: Tensor, rate: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for i in range(8):
        step(normal(i, 8, 4), 0.1 / (i + 1))
    assert len(explain(step).programs) == 2  # for the first rate, and for any
    assert nn.utils.parameters_to_vector(model.parameters()).isfinite().all()


@pytest.mark.parametrize("text", [str, lambda rate: f"{rate:.4f}", lambda rate: rate < 0.04, round])
def test_a_program_may_ask_for_the_value_of_a_learning_rate(text: Any) -> None:
    optimizer = torch.optim.SGD(linear().parameters(), lr=0.1)

    def f(x: Tensor) -> Any:
        return [text(group["lr"]) for group in optimizer.param_groups]

    run = jit(f)
    for _ in range(4):
        assert run(torch.ones(2)) == f(torch.ones(2))
        optimizer.param_groups[0]["lr"] *= 0.5


def test_a_learning_rate_that_becomes_a_tensor_or_an_integer_is_noticed() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model = linear()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        found: list[Tensor | None] = []

        run = wrap(step_of(model, optimizer))
        for i, rate in enumerate((0.1, 0.2, torch.tensor(0.1), torch.tensor(0.3), 1, 0.1)):
            optimizer.param_groups[0]["lr"] = rate
            run(normal(i, 8, 4))
            found += left(model)
        return found

    both(program)


def test_numbers_that_the_program_scales_cost_no_further_captures() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(x: Tensor) -> None:
        optimizer.param_groups[0]["lr"] *= 0.5
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for i in range(4):
        step(normal(i, 8, 4))
    assert optimizer.param_groups[0]["lr"] == 0.1 / 16
    assert len(explain(step).programs) == 2  # for the first rate, and for any


def test_an_item_that_a_group_gets_between_calls_is_noticed() -> None:
    optimizer = torch.optim.SGD(linear().parameters(), lr=0.1)
    f = jit(lambda x: x * optimizer.param_groups[0].get("scale", 1.0))
    assert f(torch.ones(())) == 1.0
    optimizer.param_groups[0]["scale"] = 3.0
    assert f(torch.ones(())) == 3.0


def test_a_scheduler_that_the_program_might_step_costs_one_further_program() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = _exponential(optimizer)

    @jit
    def step(x: Tensor, ticks: bool) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if ticks:
            scheduler.step()

    for i in range(6):
        step(normal(i, 8, 4), False)
        optimizer.step()
        scheduler.step()
    assert len(explain(step).programs) == 2  # for the first rate, and for any
