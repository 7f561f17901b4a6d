"""A function that is captured inside another one: the outer one knows nothing of the examples that
the inner one is captured with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import aot_function, cond, make_fx, map, nop, scan, while_loop
from runtime.func import grad, vmap

X, W = (
    torch.tensor([[0.3, 0.9], [0.1, 0.2], [2.0, 2.5]], dtype=torch.float64),
    torch.tensor([1.2, 0.7], dtype=torch.float64),
)


def _loop(x: Any, w: Any) -> Any:
    return while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, y * w), (torch.zeros((), dtype=torch.int64), x)
    )[1]


# each captured apart, and beside it in closed form
INNER: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "cond": (
        lambda x, w: cond(x.sum() > 2, lambda x: x * w, lambda x: x - w, (x,)),
        lambda x, w: x * w if x.sum() > 2 else x - w,
    ),
    "while_loop": (_loop, lambda x, w: x * w**3),
    "scan": (
        lambda x, w: scan(lambda c, e: (c * w, c * e), x, torch.stack([x, w]), unroll=False)[1].sum(
            0
        ),
        lambda x, w: x * x + x * w * w,
    ),
    "map": (
        lambda x, w: map(lambda e: e * w, torch.stack([x, w]), unroll=False).sum(0),
        lambda x, w: (x + w) * w,
    ),
}


def _outer(
    inner: Callable[[Any, Any], Any], choose: Callable[..., Any]
) -> Callable[[Any, Any], Any]:
    """Both branches capture a function that closes over ``w``."""
    return lambda x, w: choose(
        x.sum() > 1, lambda x: inner(x, w) * 2, lambda x: inner(x, w) * 3, (x,)
    )


def _in_python(
    choice: Any, on_true: Callable[..., Any], on_false: Callable[..., Any], operands: Any
) -> Any:
    return (on_true if choice else on_false)(*operands)


@pytest.mark.parametrize("name", INNER)
def test_both_branches_capture_functions_that_close_over_a_tensor(name: str) -> None:
    f, expected = _outer(INNER[name][0], cond), _outer(INNER[name][1], _in_python)
    torch.testing.assert_close(vmap(f, (0, None))(X, W), torch.stack([expected(x, W) for x in X]))
    gradients = []
    for x in X:
        mine, ours = x.clone().requires_grad_(), W.clone().requires_grad_()
        gradients.append(torch.autograd.grad(expected(mine, ours).sum(), (mine, ours)))
    batched = vmap(grad(lambda x, w: f(x, w).sum(), (0, 1)), (0, None))
    for run in (batched, make_fx(batched)(X.flip(0), W)):
        torch.testing.assert_close(
            run(X, W), tuple(torch.stack(each) for each in zip(*gradients, strict=True))
        )
    compiled = aot_function(f, nop)
    for x, expected_gradients in zip(X, gradients, strict=True):
        given = runtime.wrap(x.clone(), True), runtime.wrap(W.clone(), True)
        compiled(*given).sum().backward()
        for t, g in zip(given, expected_gradients, strict=True):
            assert t.grad.tolist() == pytest.approx(g.tolist())


@pytest.mark.parametrize("name", INNER)
def test_an_outer_call_takes_the_tensors_that_its_branches_use_and_no_others(name: str) -> None:
    graph = make_fx(_outer(INNER[name][0], cond))(X[0], W).graph
    (call,) = [n for n in graph.nodes if n.target is torch.ops.higher_order.cond]
    assert {n.op for n in call.args[3]} == {"placeholder"} and len(call.args[3]) == 2


def test_a_branch_that_returns_a_size_is_refused() -> None:
    def program(x: Any) -> Any:
        return cond(x.sum() > 0, lambda x: x.shape[0], lambda x: x.shape[0] + 1, (x,))

    with pytest.raises(RuntimeError, match="a branch of cond returns a size, which is no tensor"):
        make_fx(program, tracing_mode="symbolic")(torch.ones(3))
