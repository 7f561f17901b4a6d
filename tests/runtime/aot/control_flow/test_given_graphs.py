"""Torch's own operators with graphs that were made elsewhere: their bodies may return
what they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import runtime
from runtime.aot import aot_function, associative_scan, cond, make_fx, nop
from runtime.func import grad, jvp, vmap

HIGHER = torch.ops.higher_order
X, S, W = torch.tensor([0.3, 0.4]), torch.tensor([2.0, -1.0]), torch.tensor([1.5, 1.2])
STEPS = 3


def _goes_on(i: Any, y: Any, s: Any, w: Any) -> Any:
    return i < STEPS


def _step(i: Any, y: Any, s: Any, w: Any) -> Any:
    return i + 1, y * w + s, s


def _small(i: Any, y: Any, s: Any, w: Any) -> Any:
    return (y.sum() < 9) & (i < 6)


def _module(f: Callable[..., Any]) -> fx.GraphModule:
    return fx.symbolic_trace(f)


def loop(x: Any, s: Any, w: Any, stops: Callable[..., Any] = _goes_on) -> Any:
    """A loop whose body returns ``s`` as it is."""
    return HIGHER.while_loop(
        _module(stops), _module(_step), (torch.zeros((), dtype=torch.int64), x, s), (w,)
    )[1:]


def loop_by_values(x: Any, s: Any, w: Any) -> Any:
    return loop(x, s, w, _small)


def plain(x: Any, s: Any, w: Any) -> Any:
    for _ in range(STEPS):
        x = x * w + s
    return x, s * 1


def plain_by_values(x: Any, s: Any, w: Any) -> Any:
    i = 0
    while bool(x.sum() < 9) and i < 6:
        x, i = x * w + s, i + 1
    return x, s * 1


def _loss(f: Callable[..., Any]) -> Callable[..., Any]:
    def loss(*args: Any) -> Any:
        y, s = f(*args)
        return (y.square() * s.exp()).sum()

    return loss


def _stack(args: Any) -> Any:
    return [torch.stack([t, t / 2, t * 3]) for t in args]


NESTINGS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "itself": lambda f: f,
    "grad": lambda f: grad(_loss(f), (0, 1, 2)),
    "grad of the weights": lambda f: grad(_loss(f), 2),
    "jvp": lambda f: lambda *args: jvp(f, args, tuple(t.cos() for t in args)),
    "jvp of the carry": lambda f: lambda x, s, w: jvp(lambda x: f(x, s, w), (x,), (x.cos(),)),
    "grad of grad": lambda f: grad(lambda x, s, w: grad(_loss(f), 2)(x, s, w).sum(), (0, 1)),
}


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize(
    ("ours", "expected"),
    [(loop, plain), (loop_by_values, plain_by_values)],
    ids=["counted", "by values"],
)
def test_a_body_may_return_a_value_of_the_carry_as_it_is(
    nesting: str, ours: Any, expected: Any
) -> None:
    wanted = NESTINGS[nesting](expected)(X, S, W)
    run = NESTINGS[nesting](ours)
    torch.testing.assert_close(run(X, S, W), wanted)
    torch.testing.assert_close(make_fx(run)(X, S, W)(X, S, W), wanted)


@pytest.mark.parametrize(
    "dims", [(0, 0, 0), (0, None, None), (None, 0, None), (None, None, 0), (1, 0, None)]
)
@pytest.mark.parametrize("ours", [loop, loop_by_values])
@pytest.mark.parametrize("of", ["itself", "grad"])
def test_each_element_of_a_batch_has_the_loop_of_its_own(
    dims: tuple[Any, ...], ours: Any, of: str
) -> None:
    args = [
        t if d is None else torch.stack([t, t / 2, t * 3], d)
        for t, d in zip((X, S.abs(), W), dims, strict=True)
    ]
    f = NESTINGS[of](ours)
    elements = [
        [t if d is None else t.select(d, i) for t, d in zip(args, dims, strict=True)]
        for i in range(3)
    ]
    expected = [
        torch.stack(each)
        for each in zip(
            *(NESTINGS[of](plain if ours is loop else plain_by_values)(*e) for e in elements),
            strict=True,
        )
    ]
    batched = vmap(f, dims)
    for run in (batched, make_fx(batched)(*args)):
        torch.testing.assert_close(list(run(*args)), expected)


def _carry_and_slice(c: Any, x: Any, w: Any) -> Any:
    return c * w, c, x


def scanned(c: Any, xs: Any, w: Any) -> Any:
    """A scan whose body returns the carry and the slice as they are."""
    return HIGHER.scan(_module(_carry_and_slice), [c], [xs], (w,))


def plain_scan(c: Any, xs: Any, w: Any) -> Any:
    cs = []
    for _ in range(xs.shape[0]):
        cs.append(c)
        c = c * w
    return c, torch.stack(cs), xs * 1


def _sum(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: sum((i + 1) * t.square().sum() for i, t in enumerate(f(*args)))


SCANS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "itself": lambda f: lambda *args: tuple(f(*args)),
    "grad": lambda f: grad(_sum(f), (0, 1, 2)),
    "grad of the slices": lambda f: grad(_sum(f), 1),
    "jvp": lambda f: (
        lambda *args: jvp(lambda *args: tuple(f(*args)), args, tuple(t.cos() for t in args))
    ),
    "jvp of the weights": lambda f: (
        lambda c, xs, w: jvp(lambda w: tuple(f(c, xs, w)), (w,), (w.cos(),))
    ),
    "vmap": lambda f: lambda *args: vmap(lambda *args: tuple(f(*args)))(*_stack(args)),
    "vmap of grad": lambda f: (
        lambda *args: vmap(grad(_sum(f), (0, 2)), (0, None, None))(_stack(args)[0], *args[1:])
    ),
}


@pytest.mark.parametrize("nesting", SCANS)
def test_the_body_of_a_scan_may_return_what_it_is_given(nesting: str) -> None:
    xs = torch.linspace(-1, 1, 8).reshape(4, 2)
    wanted = SCANS[nesting](plain_scan)(X, xs, W)
    run = SCANS[nesting](scanned)
    torch.testing.assert_close(run(X, xs, W), wanted)
    torch.testing.assert_close(make_fx(run)(X, xs, W)(X, xs, W), wanted)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_loop_that_passes_a_value_on_has_gradients(dynamic: bool) -> None:
    leaves = [runtime.wrap(t.clone(), True) for t in (X, S, W)]
    found = runtime.autograd.grad(aot_function(_loss(loop), nop, dynamic=dynamic)(*leaves), leaves)
    torch.testing.assert_close(
        [runtime.unwrap(g) for g in found], list(grad(_loss(plain), (0, 1, 2))(X, S, W))
    )


STRUCTURES: dict[str, Callable[[Any, Any], Any]] = {
    "other names": lambda a, b: {"p": a["s"] + b["s"], "t": a["t"] + b["t"]},
    "too few": lambda a, b: {"s": a["s"] + b["s"]},
    "too many": lambda a, b: {"s": a["s"] + b["s"], "t": a["t"] + b["t"], "u": a["t"] + b["t"]},
    "a list": lambda a, b: [a["s"] + b["s"], a["t"] + b["t"]],
}


@pytest.mark.parametrize("mode", ["pointwise", "generic"])
@pytest.mark.parametrize("name", STRUCTURES)
def test_another_structure_of_partial_results_is_refused_with_the_line(
    name: str, mode: str
) -> None:
    xs = {"s": torch.ones(4), "t": torch.ones(4)}

    def program(xs: Any) -> Any:
        return associative_scan(STRUCTURES[name], xs, 0, combine_mode=mode)

    with pytest.raises(
        RuntimeError,
        match=r"(?s)associative_scan: combine_fn returns the structure .*its arguments have .*dict",
    ):
        program(xs)
    with pytest.raises(
        RuntimeError, match=r"(?s)combine_fn returns the structure .*test_given_graphs\.py"
    ):
        make_fx(program)(xs)


def test_sizes_that_no_tensor_has_are_carried_by_tensors_without_elements() -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        m, n = y.shape
        return cond(x.sum() > 0, lambda x: x * m + n, lambda x: x - m, (x,))

    graph = make_fx(program, tracing_mode="symbolic")(X, torch.ones(3, 5)).graph
    (call,) = graph.find_nodes(op="call_function", target=HIGHER.cond)
    carriers = [n.meta["val"] for n in call.args[3][1:]]
    assert sorted(t.shape[0] for t in carriers) == [3, 5]
    assert all(t.shape[1:] == (0,) and t.dtype is torch.bool for t in carriers)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_gradients_of_a_branch_may_be_one_tensor_twice(sign: float) -> None:
    def loss(x: Any, y: Any) -> Any:
        return cond(x.sum() > 0, lambda x, y: x + y, lambda x, y: x - y, (x, y)).square().sum()

    x = X * sign
    g = 2 * (x + sign * S)
    for run in (grad(loss, (0, 1)), make_fx(grad(loss, (0, 1)))(X, S)):
        torch.testing.assert_close(run(x, S), (g, g * sign))
