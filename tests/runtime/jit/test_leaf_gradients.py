"""What a captured step does to ``.grad``, by each way that torch has, is what it does in eager
mode, in each of several calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import runtime
from runtime import jit

Step = Callable[[Any, Any, Any], Any]


def params() -> tuple[nn.Parameter, nn.Parameter]:
    return nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([[3.0, 4.0]]))


def adds_up(p: Any, q: Any, x: Any) -> Any:
    (p * x).sum().backward()
    (p * p * q).sum().backward()


def zeroed_in_place(p: Any, q: Any, x: Any) -> Any:
    if p.grad is not None:
        p.grad.zero_()
    (p * x).sum().backward()


def by_autograd(p: Any, q: Any, x: Any) -> Any:
    torch.autograd.backward([(p * x).sum(), (q * x).sum()])


def with_cotangent(p: Any, q: Any, x: Any) -> Any:
    (p * x).backward(x)
    torch.autograd.backward([q * x], [x.view(1, 2)])


def by_old_name(p: Any, q: Any, x: Any) -> Any:
    torch.autograd.backward((q * x,), grad_variables=(x.view(1, 2),))


def for_some_inputs(p: Any, q: Any, x: Any) -> Any:
    (p * q * x).sum().backward(inputs=[q])


def for_one_input(p: Any, q: Any, x: Any) -> Any:
    (p * q * x).sum().backward(inputs=p)


def twice(p: Any, q: Any, x: Any) -> Any:
    y = (p * p * x).sum()
    y.backward(retain_graph=True)
    y.backward()


def of_a_gradient(p: Any, q: Any, x: Any) -> Any:
    (g,) = torch.autograd.grad((p * p * x).sum(), p, create_graph=True)
    (g * g).sum().backward()


def with_history(p: Any, q: Any, x: Any) -> Any:
    p.grad = None
    (p * p * p * x).sum().backward(create_graph=True)
    g = p.grad
    p.grad = None
    (g * g).sum().backward()


def assigned(p: Any, q: Any, x: Any) -> Any:
    p.grad = x * 2
    q.grad = None


def assigned_and_added(p: Any, q: Any, x: Any) -> Any:
    p.grad = x * 2
    (p * x).sum().backward()


def deleted(p: Any, q: Any, x: Any) -> Any:
    (p * x).sum().backward()
    del p.grad


def returned(p: Any, q: Any, x: Any) -> Any:
    (p * q).sum().backward()
    return p.grad * 2, q.grad + 1, p.grad.clone()


def shared(p: Any, q: Any, x: Any) -> Any:
    (p + x).backward(x)
    return x * 1


def retained(p: Any, q: Any, x: Any) -> Any:
    y = p * x
    y.retain_grad()
    (y * y).sum().backward()
    return y.grad * 1


def retained_leaf(p: Any, q: Any, x: Any) -> Any:
    p.retain_grad()
    y = p * x
    y.retain_grad()
    y.retain_grad()
    (y * p).sum().backward()
    return y.grad + p.grad


def frozen(p: Any, q: Any, x: Any) -> Any:
    p.requires_grad_(False)
    (p * q * x).sum().backward()
    p.requires_grad_(True)


def frozen_by_flag(p: Any, q: Any, x: Any) -> Any:
    p.requires_grad = False
    (p * q * x).sum().backward()
    p.requires_grad = True
    (p * x).sum().backward()


def stepped(p: Any, q: Any, x: Any) -> Any:
    (p * p * x).sum().backward()
    with torch.no_grad():
        p.sub_(0.1 * p.grad)
    p.grad = None


def by_data(p: Any, q: Any, x: Any) -> Any:
    (p * p * x).sum().backward()
    p.data.sub_(0.1 * p.grad)
    p.grad.zero_()


def before_asked(p: Any, q: Any, x: Any) -> Any:
    found = p.grad
    (p * x).sum().backward()
    return torch.zeros(2) if found is None else found * 1


def transposed(p: Any, q: Any, x: Any) -> Any:
    (q.t() * x).sum().backward()


def of_one_cotangent(p: Any, q: Any, x: Any) -> None:
    (p + q[0]).backward(x)


def of_one_cotangent_that_is_left(p: Any, q: Any, x: Any) -> Any:
    g = x * 1
    (p + q[0]).backward(g)
    p.grad.mul_(2)
    return g, q.grad * 1


def retained_and_returned(p: Any, q: Any, x: Any) -> Any:
    p.retain_grad()
    (p * q * x).sum().backward()
    return p


def module_zeroes(p: Any, q: Any, x: Any) -> None:
    nn.ParameterList([p, q]).zero_grad(set_to_none=False)
    (p * q * x).sum().backward()


def module_drops(p: Any, q: Any, x: Any) -> None:
    nn.ParameterList([p, q]).zero_grad()
    (p * x).sum().backward()


def twice_by_grad(p: Any, q: Any, x: Any) -> Any:
    y = (p * p * x).sum()
    (g,) = torch.autograd.grad(y, p, retain_graph=True)
    (h,) = torch.autograd.grad(y, [p], torch.ones(()), True)
    y.backward()
    return g, h


def nothing(p: Any, q: Any, x: Any) -> Any:
    return x * 2


STEPS: dict[str, Step] = {
    f.__name__: f
    for f in (
        adds_up,
        zeroed_in_place,
        by_autograd,
        with_cotangent,
        by_old_name,
        for_some_inputs,
        for_one_input,
        twice,
        of_a_gradient,
        with_history,
        assigned,
        assigned_and_added,
        deleted,
        returned,
        shared,
        retained,
        retained_leaf,
        frozen,
        frozen_by_flag,
        stepped,
        by_data,
        before_asked,
        transposed,
        of_one_cotangent,
        of_one_cotangent_that_is_left,
        retained_and_returned,
        module_zeroes,
        module_drops,
        twice_by_grad,
        nothing,
    )
}


def seen(x: Any) -> Any:
    x = runtime.unwrap(x) if isinstance(x, torch.Tensor) else x
    return (
        (x.tolist(), x.stride())
        if isinstance(x, torch.Tensor)
        else None
        if x is None
        else [seen(part) for part in x]
    )


def course(step: Step, wrap: Callable[..., Any], closed: bool, before: bool) -> list[Any]:
    """Results, parameters and gradients after each of three calls."""
    p, q = params()
    if before:
        p.grad, q.grad = torch.ones(2), torch.ones(1, 2)
    f = wrap((lambda x: step(p, q, x)) if closed else step)
    found = []
    for i in range(3):
        x = torch.tensor([1.0 + i, 2.0])
        result = f(x) if closed else f(p, q, x)
        found.append(
            [
                seen(result),
                seen(p),
                seen(q),
                seen(p.grad),
                seen(q.grad),
                p.requires_grad,
                p.grad is not None and p.grad is q.grad,
            ]
        )
    return found


@pytest.mark.filterwarnings("ignore:Using backward", "ignore:`grad_variables` is deprecated")
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    "name, closed",
    [
        (name, closed)
        for name in STEPS
        for closed in (True, False)
        if closed or not name.startswith(("frozen", "module"))
    ],
)  # an argument is not frozen by the step, and is no parameter
def test_gradients_are_those_of_eager_mode_in_each_call(
    name: str, closed: bool, before: bool
) -> None:
    step = STEPS[name]
    assert course(step, jit, closed, before) == course(step, lambda f: f, closed, before)


def test_a_gradient_that_is_asked_for_is_the_object_of_before() -> None:
    p, _ = params()
    p.grad = torch.ones(2)
    before = p.grad
    jit(lambda x: (p * x).sum().backward())(torch.ones(2))
    assert p.grad is before and before.tolist() == [2.0, 2.0]


REFUSED: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "of a result": (
        lambda p, q, x: setattr(p * 2, "grad", x),
        "assigns a gradient to a tensor that it has computed",
    ),
    "retained of what has none": (
        lambda p, q, x: (x * 2).retain_grad(),
        "can't retain_grad on Tensor that has requires_grad=False",
    ),
    "in a transform": (
        lambda p, q, x: runtime.func.grad(lambda y: ((y * y).sum().backward(), y.sum())[1])(x),
        r"calls backward\(\) on a value of a transform",
    ),
    "assigned .data": (lambda p, q, x: setattr(p, "data", x), "assigns to .data of a tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_gradients_that_no_call_could_assign_are_refused(name: str) -> None:
    f, why = REFUSED[name]
    p, q = params()
    with pytest.raises(RuntimeError, match=why):
        jit(lambda x: f(p, q, x))(torch.ones(2))
    assert p.grad is None and p.requires_grad


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_tensor_with_hooks_that_gets_a_gradient_is_refused(register: str) -> None:
    p, q = params()
    getattr(p, register)(lambda *args: None)
    jit(lambda x: (q * x).sum().backward())(torch.ones(2))
    with pytest.raises(RuntimeError, match="adds to the gradient of a tensor with hooks"):
        jit(lambda x: (p * x).sum().backward())(torch.ones(2))


def test_a_tensor_with_a_history_from_before_is_refused() -> None:
    p, _ = params()
    y = p * 2
    with pytest.raises(RuntimeError, match="has a history from before the call"):
        jit(lambda x: (y * x).sum().backward())(torch.ones(2))


PASSES: dict[str, Callable[[Any, Any], Any]] = {
    "backward()": lambda y, p: y.backward(),
    "backward() that keeps nothing": lambda y, p: y.backward(retain_graph=False, create_graph=True),
    "backward() of autograd": lambda y, p: torch.autograd.backward([y]),
    "grad()": lambda y, p: torch.autograd.grad(y, p),
    "grad() that keeps nothing": lambda y, p: torch.autograd.grad(y, p, None, False, True),
}


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("name", PASSES)
def test_a_history_that_a_pass_has_freed_is_not_passed_twice(name: str) -> None:
    p, _ = params()

    def step(x: Any) -> None:
        y = (p * p * x).sum()
        PASSES[name](y, p)
        y.backward()

    for f in (step, jit(step)):
        with pytest.raises(RuntimeError, match="a second time"):
            f(torch.ones(2))


def test_a_result_whose_history_a_pass_has_freed_has_it_no_more() -> None:
    def step(x: Any) -> Any:
        leaf = torch.ones(2, requires_grad=True)
        y = (leaf * leaf * x).sum()
        y.backward()
        return y, (leaf * x).sum()

    for f in (step, jit(step)):
        spent, kept = f(torch.ones(2))
        assert spent.requires_grad and kept.requires_grad
        kept.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            spent.backward()


def test_a_result_has_no_history_that_a_gradient_in_the_program_has_freed() -> None:
    w, v = params()

    def step(x: Any) -> Any:
        beside = x * v
        y = (beside * w * w).sum()
        (g,) = torch.autograd.grad(y, w)
        return y, beside, g

    results = []
    for f in (step, jit(step), jit(step)):
        spent, beside, g = f(torch.ones(2))
        beside.sum().backward()  # the pass has not come to what it is made of
        with pytest.raises(RuntimeError, match="a second time"):
            spent.backward()
        assert v.grad is not None
        results.append((spent.item(), g.tolist(), v.grad.tolist()))
        v.grad = None
    assert results[0] == results[1] == results[2]
