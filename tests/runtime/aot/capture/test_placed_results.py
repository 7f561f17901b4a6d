"""Results in the memory of an argument or of another result, with a history of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import runtime

from .boundary_helpers import compiled

PROGRAMS = {
    "the detach() of an argument": "v = w.detach(); v.add_(x.sum()); return v,",
    "views of that": "v = w.detach(); v.add_(x.sum()); return v[0], v, v.view(-1)[1:]",
    "a view of that alone": "v = w.detach(); v.add_(x.sum()); return v[1:], w",
    "a part of it": "v = w[:1].detach(); v.mul_(x.sum()); return v, w",
    "two of them": "u = w.detach(); v = w.detach(); v.mul_(x.sum()); u.mul_(x[0]); return u, v",
    "elements that are shown twice": "v = w.detach(); v.unfold(0, 2, 1).add_(x.sum()); return v, w",
    "what is closed over": "v = closed.detach(); v.add_(x.sum()); return v, closed",
    "an intermediate": "y = x * 2; v = y.detach(); v.mul_(x.sum()); return y, v",
    "views of an intermediate": "y = x * 2; v = y.detach(); v.mul_(x.sum()); return y[0], v[0], v",
    "a view of it as a leaf": "y = x * 2; v = y.detach().requires_grad_(); return y, v[:1]",
    "views of it as a leaf": (
        "y = x * 2; v = y.detach().requires_grad_(); return y[0], v[0], v[1:], y"
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_it_shares_that_memory(program: str, requires_grad: bool, dynamic: bool) -> None:
    def seen(leaf: Any, grad: Any, wrapped: Any) -> list[Any]:
        scope: dict[str, Any] = {"closed": leaf(torch.tensor([0.5, 2.0]), requires_grad)}
        exec("def f(x, w):\n    " + program.replace("; ", "\n    "), scope)
        x, w = leaf(torch.tensor([0.3, 0.7]), True), leaf(torch.tensor([1.5, 2.5]), requires_grad)
        argument = w * 1 if requires_grad else w
        results = wrapped(scope["f"])(x, argument)
        flags = [(t.requires_grad, t.is_leaf) for t in (*results, argument)]
        wanted = [x, w] if requires_grad else [x]
        loss = sum(i * t.sin().sum() for i, t in enumerate(results, 1))
        found = [
            None if g is None else runtime.unwrap(g) for g in grad(loss, wanted, allow_unused=True)
        ]
        with torch.no_grad():
            results[0].add_(1)
        return [
            flags,
            found,
            [runtime.unwrap(t.detach()) for t in (*results, argument, scope["closed"])],
        ]

    expected = seen(lambda t, flag: t.requires_grad_(flag), torch.autograd.grad, lambda f: f)
    found = seen(runtime.wrap, runtime.autograd.grad, lambda f: compiled(f, dynamic=dynamic))
    assert found[0] == expected[0]
    torch.testing.assert_close(found[1:], expected[1:])


def test_a_result_with_the_memory_of_an_argument_by_set_has_the_history_of_its_writes() -> None:
    def f(x: Any, w: Any) -> Any:
        y = torch.zeros(2) * 1
        y.set_(x)
        return y.mul_(w)

    x, w = runtime.tensor([1.0, 2.0]), runtime.tensor([3.0, 4.0], requires_grad=True)
    y = compiled(f)(x, w)
    assert y.data_ptr() == x.data_ptr() and y.tolist() == [3.0, 8.0]
    assert runtime.autograd.grad(y.sum(), w)[0].tolist() == [1.0, 2.0]
