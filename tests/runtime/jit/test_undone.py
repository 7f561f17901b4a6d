"""A capture that fails, or that is tried once more, leaves optimizers and schedulers as they were;
what cannot be donated is named."""

from __future__ import annotations

import datetime
import gc
import os
import pathlib
import weakref
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import lr_scheduler

from runtime import jit

from .training import linear, normal, step_of


def _trained(optimizer: Any) -> tuple[Any, torch.optim.Optimizer]:
    model = linear()
    made = optimizer(model.parameters())
    for i in range(2):
        step_of(model, made)(normal(i, 8, 4))
    return model, made


def _snapshot(optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    """Objects and numbers of an optimizer: what is in its state, its groups and its attributes."""
    state = {
        id(p): {name: (id(x), x.clone() if isinstance(x, Tensor) else x) for name, x in s.items()}
        for p, s in optimizer.state.items()
    }
    groups = [
        {name: x if name != "params" else [id(p) for p in x] for name, x in g.items()}
        for g in optimizer.param_groups
    ]
    return (
        state,
        groups,
        [id(g) for g in optimizer.param_groups],
        {name: id(x) for name, x in vars(optimizer).items()},
    )


def _more_state(optimizer: Any, x: Tensor) -> None:
    for s in optimizer.state.values():
        s["more"] = x.sum()


def _other_state(optimizer: Any, x: Tensor) -> None:
    for s in optimizer.state.values():
        for name in list(s):
            s[name] = x.sum()


def _state_of_another(optimizer: Any, x: Tensor) -> None:
    optimizer.state[torch.nn.Parameter(torch.ones(2))] = {"step": x.sum()}


def _step(optimizer: Any, x: Tensor) -> None:
    for p in optimizer.param_groups[0]["params"]:
        p.grad = torch.ones_like(p) * x.sum()
    optimizer.step()


FAILING: dict[str, Callable[[Any, Tensor], Any]] = {
    "nothing": lambda optimizer, x: None,
    "more state": _more_state,
    "other state": _other_state,
    "state of another parameter": _state_of_another,
    "no state": lambda optimizer, x: optimizer.state.clear(),
    "another state": lambda optimizer, x: setattr(optimizer, "state", {}),
    "a number": lambda optimizer, x: optimizer.param_groups[0].update(lr=0.7, weight_decay=0.5),
    "an item": lambda optimizer, x: optimizer.param_groups[0].update(more=1),
    "no item": lambda optimizer, x: optimizer.param_groups[0].pop("lr"),
    "no parameters": lambda optimizer, x: optimizer.param_groups[0]["params"].clear(),
    "another group": lambda optimizer, x: optimizer.add_param_group(
        {"params": [torch.nn.Parameter(x + 1)]}
    ),
    "no groups": lambda optimizer, x: optimizer.param_groups.clear(),
    "other groups": lambda optimizer, x: setattr(optimizer, "param_groups", []),
    "an attribute": lambda optimizer, x: setattr(optimizer, "more", 1),
    "no attribute": lambda optimizer, x: delattr(optimizer, "defaults"),
    "a step": _step,
    "two steps": lambda optimizer, x: [f(optimizer, x) for f in (_step, _step)],
}


@pytest.mark.parametrize(
    "make",
    [lambda p: torch.optim.SGD(p, 0.1, momentum=0.5), lambda p: torch.optim.Adam(p)],
    ids=["SGD", "Adam"],
)
@pytest.mark.parametrize("name", FAILING)
def test_a_program_that_fails_leaves_its_optimizer_as_it_was(name: str, make: Any) -> None:
    model, optimizer = _trained(make)
    before, weights = _snapshot(optimizer), [p.detach().clone() for p in model.parameters()]

    @jit
    def f(x: Tensor) -> None:
        optimizer.zero_grad()
        FAILING[name](optimizer, x)
        os.getcwd()  # which is refused

    with pytest.raises(RuntimeError, match="getcwd"):
        f(torch.ones(2))
    torch.testing.assert_close(_snapshot(optimizer), before, rtol=0, atol=0)
    torch.testing.assert_close([p.detach() for p in model.parameters()], weights, rtol=0, atol=0)
    step_of(model, optimizer)(normal(3, 8, 4))  # and it still works


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 1),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=9),
    "by the loss": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_program_that_fails_leaves_its_scheduler_as_it_was(name: str) -> None:
    optimizer = torch.optim.SGD(linear().parameters(), lr=0.1)
    scheduler = SCHEDULERS[name](optimizer)
    optimizer.step()
    before = dict(vars(scheduler))

    @jit
    def f(x: Tensor) -> None:
        scheduler.last_epoch += 3
        scheduler._last_lr = [5.0]
        os.getcwd()  # which is refused

    with pytest.raises(RuntimeError, match="getcwd"):
        f(torch.ones(2))
    assert vars(scheduler) == before and optimizer.param_groups[0]["lr"] == before["_last_lr"][0]


NO_DONATION: dict[str, tuple[Callable[[], Tensor], str]] = {
    "a leaf": (lambda: torch.ones(2, requires_grad=True), "tensor that requires grad"),
    "a parameter": (lambda: torch.nn.Parameter(torch.ones(2)), "Parameter"),
    "a view": (lambda: torch.ones(4)[:2], "view of another tensor"),
    "a view of all": (lambda: torch.ones(4).view(2, 2), "view of another tensor"),
    "a sparse tensor": (lambda: torch.eye(2).to_sparse(), "tensor of layout torch.sparse_coo"),
}


@pytest.mark.parametrize("name", NO_DONATION)
def test_what_cannot_be_donated_is_named(name: str) -> None:
    make, kind = NO_DONATION[name]
    x = make()
    with pytest.raises(
        ValueError,
        match=f"^a donated argument has a {kind}. Donate plain tensors without history that own",
    ):
        jit(lambda x: x * 2, donate=0)(x)


@pytest.mark.parametrize("donate", [0, -2, "x", ["x"], (0, "x")])
def test_what_is_donated_is_found_by_position_and_by_name(donate: Any) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x * 2 + y

    run = jit(f, donate=donate)
    calls: list[Callable[..., Any]] = [
        lambda x, y: run(x, y),
        lambda x, y: run(x, y=y),
        lambda x, y: run(y=y, x=x),
    ]
    for call in calls:
        x, y = torch.ones(3), torch.ones(3)
        assert call(x, y).tolist() == [3.0] * 3
        assert (x.numel(), y.numel()) == (0, 3)


def test_an_empty_tensor_may_be_donated_if_it_was_not_taken() -> None:
    run = jit(lambda x: x * 2, donate=0)
    x = torch.ones(0)
    assert run(x).shape == (0,)
    with pytest.raises(ValueError, match="has been donated before"):
        run(x)


def test_a_tensor_that_was_filled_again_may_be_donated_again() -> None:
    run, x = jit(lambda x: x * 2, donate=0), torch.ones(2)
    run(x)
    x.data = torch.full((2,), 3.0)
    assert run(x).tolist() == [6.0, 6.0] and x.numel() == 0


def test_a_call_that_fails_donates_nothing_to_the_next_one() -> None:
    run, x = jit(lambda x, n: x * n if n else x.reshape(7), donate=0), torch.ones(2)
    with pytest.raises(RuntimeError):
        run(x, 0)
    assert jit(lambda x: x * 2)(x).tolist() == [2.0, 2.0] and x.numel() == 2


def test_what_is_donated_is_found_among_any_arguments() -> None:
    run, xs = jit(lambda *xs: xs[0] * 2 + xs[1], donate=1), [torch.ones(2), torch.ones(2)]
    assert run(*xs).tolist() == [3.0, 3.0] and [x.numel() for x in xs] == [2, 0]
    assert jit(lambda *xs: xs[0] * 2, donate=3)(*xs[:1]).tolist() == [2.0, 2.0]


def test_a_donating_call_inside_another_one_takes_its_own_arguments() -> None:
    inner = jit(lambda x: x * 2, donate=0)
    kept: list[Tensor] = []

    def compiler(module: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            kept.append(torch.ones(2))
            inner(kept[-1])
            return module(*args)

        return run

    outer, x = jit(lambda x: x * 3, donate=0, compiler=compiler), torch.ones(2)
    for n in range(1, 3):
        x = torch.ones(2)
        assert outer(x).tolist() == [3.0, 3.0] and x.numel() == 0
        assert [t.numel() for t in kept] == [0] * n


def test_a_donated_tensor_is_not_kept_alive() -> None:
    run, x = jit(lambda x: x * 2, donate=0), torch.ones(2)
    reference = weakref.ref(x)
    run(x)
    del x
    gc.collect()
    assert reference() is None


def test_an_item_of_a_group_may_become_a_tensor_that_the_program_computes() -> None:
    optimizer = torch.optim.SGD(linear().parameters(), lr=0.1)

    @jit
    def f(x: Tensor) -> Tensor:
        optimizer.param_groups[0]["lr"] = x.sum()
        return x * 2

    for n in range(1, 4):
        assert f(torch.full((2,), float(n))).tolist() == [2.0 * n] * 2
        assert optimizer.param_groups[0]["lr"].item() == 2.0 * n


def _keeps_a_set(t: Any, x: Tensor) -> None:
    t.kept = {"mask": x * 2, "names": {"a"}}


def _keeps_one_list_inside_too(t: Any, x: Tensor) -> None:
    t.kept = [x * 2]
    t.other = {"kept": t.kept}


def _keeps_a_list_in_itself(t: Any, x: Tensor) -> None:
    t.kept = [x * 2]
    t.kept.append(t.kept)


@pytest.mark.parametrize(
    ("keep", "text"),
    [
        (_keeps_a_list_in_itself, "assigns a list that holds itself to 'kept'"),
        (_keeps_a_set, "assigns a set, which it has made, to 'kept'"),
        (_keeps_one_list_inside_too, "assigns one list to 'kept'.*and to 'other'"),
    ],
)
def test_what_a_call_would_not_make_anew_is_refused(keep: Any, text: str) -> None:
    t = SimpleNamespace(kept=None, other=None)

    @jit
    def f(x: Tensor) -> Tensor:
        keep(t, x)
        return x

    with pytest.raises(RuntimeError, match=f"{text}.*It happened at .*test_undone.py"):
        f(torch.ones(2))
    assert (t.kept, t.other) == (None, None)


class Made:
    def __init__(self) -> None:
        self.n = 0


def _counter() -> Callable[[], int]:
    found: list[int] = []
    return lambda: found.append(1) or len(found)  # type: ignore[func-returns-value]


MADE: dict[str, Callable[[], Any]] = {
    "an object": Made,
    "a set": lambda: {1},
    "an array": lambda: np.zeros(2),
    "an iterator": lambda: iter([1, 2]),
    "a generator": lambda: (i for i in (1, 2)),
    "a module": torch.nn.Identity,
    "a function with a list": _counter,
}


@pytest.mark.parametrize("name", MADE)
def test_a_result_that_may_change_and_that_a_call_would_not_make_anew_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"returns a .*anew.*It happened at .*test_undone.py"):
        jit(lambda x: (x * 2, MADE[name]()))(torch.ones(2))


KEPT: dict[str, Any] = {
    "a fraction": Fraction(1, 3),
    "a path": pathlib.PurePath("a"),
    "a date": datetime.date(2000, 1, 1),
    "a number of NumPy": np.float32(2.0),
    "an object that was there": Made(),
    "a set that was there": {1},
}


@pytest.mark.parametrize("name", KEPT)
def test_a_result_that_may_not_change_or_was_there_is_returned(name: str) -> None:
    f = jit(lambda x, held: (x * 2, KEPT[name], held))
    held = [Made()]
    for _ in range(3):
        _, found, (inside,) = f(torch.ones(2), held)
        assert found is KEPT[name] and inside is held[0]


def test_a_function_without_variables_and_a_constant_that_are_made_are_returned() -> None:
    f = jit(lambda x: (x * 2, lambda y: y + 1, Fraction(1, 2)))
    for _ in range(3):
        _, function, half = f(torch.ones(2))
        assert function(1) == 2 and half == Fraction(1, 2)


def test_a_list_that_the_program_assigns_to_two_places_is_one_list() -> None:
    t = SimpleNamespace(kept=None, other=None, numbers=None, others=None)

    @jit
    def f(x: Tensor) -> Tensor:
        t.kept = t.other = [x * 2]
        t.numbers = t.others = [1, 2]
        return x

    for n in (1.0, 2.0, 3.0):
        f(torch.full((1,), n))
        assert t.kept is t.other and t.kept[0].item() == 2 * n
        assert t.numbers is t.others and t.numbers == [1, 2]


def test_a_tensor_whose_elements_are_compared_can_be_resized_after_that() -> None:
    scale = torch.tensor([2.0, 3.0])
    compiled = jit(lambda x: x * sum(scale.tolist()))
    assert compiled(torch.ones(1)) == 5
    assert scale.untyped_storage().resizable()
    scale.resize_(3).fill_(1)
    assert compiled(torch.ones(1)) == 3
